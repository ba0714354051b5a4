"""The rooms of the package: no circles, no arrows that run back up, and a picture of them that is up to date."""

import collections
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def rooms():
    sys.path.insert(0, str(DOCS))
    try:
        import rooms

        yield rooms
    finally:
        sys.path.remove(str(DOCS))


@pytest.fixture(scope="module")
def arrows(rooms):
    return rooms.module_arrows()


@pytest.mark.long
def test_there_are_no_circles(rooms, arrows):
    assert rooms.all_circles(arrows) == []


def test_no_arrow_runs_back_up(rooms, arrows):
    assert rooms.arrows_up(arrows) == []


def test_every_folder_says_what_it_is_for(rooms):
    folders = [path for path in rooms.modules().values() if path.name == "__init__.py"]
    assert [str(path) for path in folders if not path.read_text().startswith('"""')] == []


def test_no_folder_has_more_than_twenty_files(rooms):
    sizes = collections.Counter(path.parent for path in rooms.modules().values())
    assert {str(folder): size for folder, size in sizes.items() if size > 20} == {}


def test_the_picture_is_up_to_date(rooms, arrows):
    assert (DOCS / "pictures" / "rooms.svg").read_text() == rooms.drawing(arrows), "python docs/rooms.py --draw"


CASES = [
    ({}, []),
    ({"a": {"b"}, "b": set()}, []),
    ({"a": {"b"}, "b": {"a"}}, [["a", "b"]]),
    ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}, [["a", "b", "c"]]),
    ({"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"c"}}, [["c", "d"], ["a", "b"]]),
]


@pytest.mark.parametrize(("given", "found"), CASES)
def test_circles(rooms, given, found):
    assert rooms.circles(given) == found


def test_imports_count_wherever_they_are(rooms, tmp_path):
    path = tmp_path / "_x.py"
    path.write_text(
        "import replicant.errors\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ._y import Y\n"
        "def f():\n    from .. import data\n    from ..keras import fit\n"
    )
    known = dict.fromkeys(["replicant", "replicant.errors", "replicant.a._y", "replicant.data", "replicant.keras"], path)
    assert sorted(rooms.imports("replicant.a._x", path, known)) == [
        "replicant.a._y",
        "replicant.data",
        "replicant.errors",
        "replicant.keras",
    ]


def test_shortcuts_are_left_out(rooms):
    assert rooms.without_shortcuts({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": {"b"}, "b": {"c"}, "c": set()}
