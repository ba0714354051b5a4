"""The programs in TensorFlow's words, and the page about them.

They make the calls of public programs, with code and data of their own. `replicant migrate` translates them, and two devices give
the numbers of one. Each saves its numbers in `numbers.npz`, or as a worker in `numbers-<its index>.npz`. `docs/ported.md` is the
table of them.
"""

import re
from pathlib import Path

import _keras_io
import _tensorflow

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "ported.md"
ROW = re.compile(r"^\| [^|`]+, `(?P<program>\w+/\w+)\.py` \|[^|]+\| (?P<by_hand>\d+) \| (?P<equal>[^|]+?) \|$", re.MULTILINE)
PROGRAMS = {
    f"{folder}/{name}": ported
    for folder, table in (("of_tensorflow", _tensorflow.TENSORFLOW), ("of_keras_io", _keras_io.KERAS_IO))
    for name, ported in table.items()
}


def test_every_program_is_in_the_table():
    files = {f"{path.parent.name}/{path.stem}" for path in HERE.glob("of_*/*.py")}
    assert files == set(PROGRAMS)


def test_the_page_has_the_rows_of_the_table():
    rows = {row["program"]: row for row in ROW.finditer(PAGE.read_text())}
    assert list(rows) == list(PROGRAMS)
    for name, ported in PROGRAMS.items():
        assert int(rows[name]["by_hand"]) == len(ported.by_hand), name
        assert (rows[name]["equal"] == "yes") == (not ported.aside and ported.apart == 1e-5), name


def test_no_program_names_what_it_becomes():
    for name, ported in PROGRAMS.items():
        text = (HERE / f"{name}.py").read_text()
        assert re.search("^import (tensorflow as tf|keras)$", text, re.MULTILINE), name
        assert ("strategy" in text) == (ported.strategy is None), name
        assert "replicant" not in text, name
