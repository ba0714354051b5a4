"""Each cell of the table: its file is read as its own library reads it, or refused with the words that the table states."""

import shutil
from pathlib import Path

import pytest
from _cells import Cell, cells, differences

from replicant.errors import ReplicantError

ALL = cells()


def test_no_two_cells_have_one_name():
    names = [cell.name for cell in ALL]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("cell", [pytest.param(cell, id=cell.name) for cell in ALL])
def test_cell(cell: Cell, tmp_path: Path):
    if cell.program is not None and shutil.which(cell.program) is None:
        pytest.skip(f"the program {cell.program} is not on this machine")
    read, theirs = cell.write(tmp_path)
    if cell.refused is not None:
        with pytest.raises(ReplicantError) as caught:
            read()
        assert cell.refused in str(caught.value)
        return
    ours = read()
    assert list(differences(ours, theirs)) == []
    assert len(ours), "a cell without elements says nothing"
