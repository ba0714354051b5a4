"""What a file of weights holds, whatever its format."""

import dataclasses
import difflib
import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from ...errors import CheckpointError

_MOST_NAMES = 5  # in a message


@dataclasses.dataclass(frozen=True)
class Entry:
    """One array of a file.

    Attributes:
        name: What it is called in the file.
        shape: Its shape.
        dtype: Its dtype; object for strings.
        label: What its program called it, if the file tells that as well, such as ``"dense/kernel"``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    label: str = ""

    @property
    def num_bytes(self) -> int | None:
        """How many bytes its numbers have; None for strings."""
        return None if self.dtype == object else math.prod(self.shape) * self.dtype.itemsize


class WeightsFile:
    """The arrays of an open file, by name. Use it in a ``with`` statement.

    Attributes:
        path: Where it lies.
        format: What it is, as a noun for messages.
        entries: Its arrays by name.
    """

    path: str
    format: str
    entries: Mapping[str, Entry]

    def read(self, name: str) -> Any:
        """Return an array, or a Python number of a checkpoint of Replicant's.

        Raises:
            CheckpointError: If there is none of this name, or if it is damaged.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Close the file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def entry(self, name: str) -> Entry:
        """Return what is known about an array.

        Raises:
            CheckpointError: If there is none of this name.
        """
        if name in self.entries:
            return self.entries[name]
        raise CheckpointError(f"{self.path} has no array {name!r}.{_instead(name, list(self.entries))}")


def _instead(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or names[:3]
    return f" It has {listed(close)}." if close else " It has none."


def listed(names: list[str]) -> str:
    """Return the first few names for a message, and how many there are.

    >>> listed(["a", "b"])
    "'a', 'b'"
    """
    shown = ", ".join(map(repr, names[:_MOST_NAMES]))
    return shown if len(names) <= _MOST_NAMES else f"{shown}, ... ({len(names)} in all)"
