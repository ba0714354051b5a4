"""Programs in TensorFlow's words: `replicant migrate` translates them, and two devices give the numbers of one.

They make the calls of public programs, with code and data of their own. Each saves its numbers in `numbers.npz`, or as a worker in
`numbers-<its index>.npz`. `docs/ported.md` is the table of them.
"""

import functools
import re
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import _keras_io  # noqa: E402
import _ported  # noqa: E402
import _tensorflow  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "ported.md"
ROW = re.compile(r"^\| [^|`]+, `(?P<program>\w+/\w+)\.py` \|[^|]+\| (?P<by_hand>\d+) \| (?P<equal>[^|]+?) \|$", re.MULTILINE)
PROGRAMS = {
    f"{folder}/{name}": ported
    for folder, table in (("of_tensorflow", _tensorflow.TENSORFLOW), ("of_keras_io", _keras_io.KERAS_IO))
    for name, ported in table.items()
}
IN_TEST = ("of_tensorflow/migrate_mirrored_strategy",)  # `make test` runs the shortest, and `make test-all` all of them


@pytest.mark.cases(*IN_TEST)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_the_numbers_of_one_device(name, tmp_path):
    ported = PROGRAMS[name]
    path = tmp_path / f"program_{Path(name).name}.py"  # `keras.py` would hide the module of that name
    _ported.translate(HERE / f"{name}.py", ported.by_hand, path)
    on_devices = functools.partial(_ported.run_on_devices, strategy=ported.strategy)
    run = _ported.run_on_workers if ported.workers else on_devices
    [one] = run(path, 1, tmp_path / "one")
    assert one, "the program saved no numbers"
    for two in run(path, 2, tmp_path / "two"):
        assert two.keys() == one.keys()
        for key in one.keys() - set(ported.aside):
            largest = np.max(np.abs(one[key]), initial=1e-3)
            np.testing.assert_allclose(two[key], one[key], rtol=0, atol=ported.apart * largest, err_msg=f"{name}: {key}")


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
