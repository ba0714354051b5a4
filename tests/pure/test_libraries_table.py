"""The table of libraries in docs/flax.md: no cell is empty, and every test that it names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"^works: `(?P<test>test_\w+)\[(?P<library>\w+)\]`$")
REASON = re.compile(r"^does not apply: \w.{8,}$")
FILES = ("tests/devices/test_libraries.py", "tests/processes/test_neighbours.py")
COLUMNS = {"Keras": "keras", "Flax NNX": "nnx", "Flax Linen": "linen", "Equinox": "equinox", "plain JAX": "jax"}
ROWS = [
    "`run`",
    "`function`",
    "`GradientTape`",
    "`fit`",
    "checkpoint",
    "resume after `kill -9`",
    "ragged last batch",
    "two workers",
]


def table():
    """Return the rows of the table: the name of each, and its cells."""
    section = (ROOT / "docs/flax.md").read_text().partition("## What works")[2]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def problems_of(cell, library, sources):
    """Return what is wrong with a cell."""
    found = NAMED.match(cell)
    if found is None:
        return [] if REASON.match(cell) else [f"{cell!r} names neither a test nor a reason"]
    if found["library"] != library:
        return [f"{cell!r} stands in the column of {library}"]
    defined = [source for source in sources if f"\ndef {found['test']}(library" in source and f'"{library}"' in source]
    return [] if defined else [f"{cell!r}: there is no such test"]


def test_every_cell_names_a_test_that_is_there_or_a_reason():
    head, line, *rows = table()
    sources = [(ROOT / name).read_text() for name in FILES]
    assert head == ["", *COLUMNS]
    assert set(line) == {"---"}
    assert [row[0] for row in rows] == ROWS
    assert [len(row) for row in rows] == [1 + len(COLUMNS)] * len(ROWS)
    assert [
        p for row in rows for cell, name in zip(row[1:], COLUMNS.values(), strict=True) for p in problems_of(cell, name, sources)
    ] == []


def test_cells_that_are_wrong_are_found():
    source = ['\ndef test_run(library):\n "keras" "jax"']
    assert problems_of("works: `test_run[keras]`", "keras", source) == []
    assert problems_of("does not apply: it has no `fit`", "jax", source) == []
    assert problems_of("works: `test_runs[keras]`", "keras", source) == ["'works: `test_runs[keras]`': there is no such test"]
    assert problems_of("works: `test_run[nnx]`", "nnx", source) == ["'works: `test_run[nnx]`': there is no such test"]
    assert problems_of("works: `test_run[jax]`", "keras", source) == ["'works: `test_run[jax]`' stands in the column of keras"]
    for cell in ("", "yes", "works", "-", "does not apply", "does not apply: "):
        assert problems_of(cell, "jax", source) == [f"{cell!r} names neither a test nor a reason"]
