"""Files whose elements are read by their numbers, from an index of where each begins."""

import abc
import dataclasses
import functools
import hashlib
import os
import weakref
from typing import Any, Self

import numpy as np

from ..._whole_file import open_regular
from ...errors import DatasetError
from ..graph._blocks import Block, concatenate
from ..graph._graph import Node, nodes
from ..graph._graph import Reader as NumberReader
from ..graph._structure import flatten
from ._files import ReadFiles, paths_of
from ._remedies import if_not_opened

Facts = tuple[int, int]  # the size of a file, and the nanoseconds of its last change


class Index(abc.ABC):
    """The elements of one file."""

    num_skipped = 0  # records that were left out
    spec: Any = None  # of its elements, if it is known before they are read

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The number of elements."""

    @property
    @abc.abstractmethod
    def identity(self) -> str:
        """A text that is another one once the elements are."""

    @abc.abstractmethod
    def read(self, numbers: np.ndarray) -> list[Any]:
        """Return the elements with these numbers.

        Raises:
            DatasetError: If the file is damaged there, or has changed.
        """

    def block(self, numbers: np.ndarray) -> Block | None:
        """Return the elements with these numbers in columns, if all elements have one structure; None if `read` returns them.

        Raises:
            DatasetError: As `read`.
        """
        del numbers


class OpenFile:
    """A local file. It has a length, and slices of it are read when they are asked for.

    Raises:
        DatasetError: If it cannot be opened, or has other facts than it had.
    """

    identity = None  # what `Reader.identity` says of files on this machine

    def __init__(self, method: str, path: str, facts: Facts | None = None) -> None:
        self.method, self.path = method, path
        try:
            self._file = open_regular(path, buffering=0)
        except OSError as error:
            what = f"{method}: cannot open {path!r}: {error.strerror}."
            raise DatasetError(f"{what} {if_not_opened(path, error)}") from error
        self.close = weakref.finalize(self, self._file.close)  # even if an iterator is dropped
        found = os.fstat(self._file.fileno())
        self.facts = (found.st_size, found.st_mtime_ns)
        if facts not in (None, self.facts):
            self.close()
            raise DatasetError(
                f"{method}: {path!r} has changed since its index was made. Put the file back as it was, or make the dataset again."
            )

    def __len__(self) -> int:
        return self.facts[0]

    def __getitem__(self, where: slice) -> bytes:
        start, stop, _ = where.indices(len(self))
        parts: list[bytes] = []
        while start < stop and (part := os.pread(self._file.fileno(), stop - start, start)):
            parts.append(part)
            start += len(part)
        if start < stop:
            raise self._shorter(start)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def fill(self, view: Any, start: int) -> None:
        """Read bytes from a place on, until this writable buffer is full.

        Raises:
            DatasetError: If the file ends before.
        """
        view = memoryview(view).cast("B")
        filled = 0
        while filled < len(view) and (count := os.preadv(self._file.fileno(), [view[filled:]], start + filled)):
            filled += count
        if filled < len(view):
            raise self._shorter(start + filled)

    def _shorter(self, end: int) -> DatasetError:
        return DatasetError(f"{self.method}: {self.path!r} ends at byte {end} now. It became shorter while it was read.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def facts_of(path: str) -> Facts | None:
    """Return what changes with the contents of a file, or None if there is no file."""
    try:
        found = os.stat(path)  # noqa: PTH116 - names may be anything
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


@dataclasses.dataclass(frozen=True, eq=False)
class IndexedFiles(ReadFiles):
    """The elements of the files that the input names, by their numbers."""

    @property
    def cardinality(self) -> int:
        return int(self._ends[-1])

    @functools.cached_property
    def indexes(self) -> list[Index]:
        """The indexes of the files, which are made when they are first needed."""
        found: list[Index] = []
        for path in paths_of(self.form, self.input):
            index = self.form.index(path)
            self.form.check_alike(path, index.spec, found[0].spec if found else None)
            found.append(index)
        return found

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([0, *(each.size for each in self.indexes)])

    @property
    def identity(self) -> str:
        """A text that is another one once the elements are."""
        return hashlib.blake2b(" ".join(each.identity for each in self.indexes).encode(), digest_size=8).hexdigest()

    def reader(self) -> NumberReader:
        return self._read

    def _read(self, numbers: np.ndarray) -> Block:
        which = np.searchsorted(self._ends, numbers, side="right") - 1
        return self._in_columns(numbers, which) or self._one_by_one(numbers, which)

    def _in_columns(self, numbers: np.ndarray, which: np.ndarray) -> Block | None:
        blocks: list[Block] = []
        for file in (files := np.unique(which)):
            block = self.indexes[file].block(numbers[which == file] - self._ends[file])
            if block is None:
                return None
            blocks.append(block)
        if len(files) == 1:
            return blocks[0]
        places = np.empty(len(numbers), np.int64)
        places[np.argsort(which, kind="stable")] = np.arange(len(numbers))
        return concatenate(blocks).take(places)

    def _one_by_one(self, numbers: np.ndarray, which: np.ndarray) -> Block:
        found: list[Any] = [None] * len(numbers)
        for file in np.unique(which):
            places = np.flatnonzero(which == file)
            elements = self.indexes[file].read(numbers[places] - self._ends[file])
            for place, element in zip(places, elements, strict=True):
                found[place] = flatten(element)
        structure = found[0][1]
        alike = next((i for i, (_, its) in enumerate(found) if its != structure), len(found))
        return Block.of_elements(structure, [leaves for leaves, _ in found[:alike]])


def indexed_below(node: Node) -> list[IndexedFiles]:
    """Return the sources of a graph that have an index."""
    return [each for each in nodes(node) if isinstance(each, IndexedFiles)]
