"""docs/formats.md states the cells that `make test-writers` tries, and no others."""

import sys
from pathlib import Path

WRITERS = Path(__file__).parents[1] / "writers"


def test_the_table_is_that_of_the_cells(monkeypatch):
    monkeypatch.syspath_prepend(str(WRITERS))
    from _table import PAGE, page

    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), f"{Path(sys.executable).name} tests/writers/_table.py"
