"""The curves of several folders of event files, by tag."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from ...storage._urls import is_url
from ...summary import ScalarEvent
from ...summary._read import read

Curves: TypeAlias = dict[str, dict[str, list[ScalarEvent]]]
"""The points of each run, by the name of the run, of each tag."""


def read_curves(folders: Sequence[str], tell: Callable[[str], None]) -> Curves:
    """Read the scalars of all folders. A run is named by its folder, as the user has named the folder above it.

    Args:
        folders: The folders.
        tell: Is told of each file whose last record lacks its end. A program may be writing it, and it is left out.

    Raises:
        SummaryError: If a folder has no event files, or if one is damaged.
    """
    found: Curves = {}
    for folder in dict.fromkeys(folders):
        for run, tags in read(folder, tell).items():
            name = folder if run == "." else f"{folder.rstrip('/')}/{run}" if is_url(folder) else str(Path(folder) / run)
            for tag, points in tags.items():
                found.setdefault(tag, {})[name] = points
    return dict(sorted(found.items()))
