"""Files: a source of their names, and a reader that goes through each file from beginning to end."""

import abc
import dataclasses
import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ...errors import ArgumentError, ArgumentTypeError, DatasetError
from ...storage._retry import RemoteError
from ...storage._store import Store
from ...storage._urls import checked_name, is_url
from ..graph._blocks import Block, Boxed
from ..graph._graph import UNKNOWN, Cursor, OneInput, State, Through
from ..graph._structure import STRING, TensorSpec
from ..sources._sources import Rows
from . import _stream
from ._stream import FileStream

_STRING_SPEC = TensorSpec((), STRING)
_ONE_LEAF = jax.tree_util.tree_structure(0)


@dataclasses.dataclass(frozen=True, eq=False)
class FileNames(Rows):
    """File names. Sharding a dataset by files shards this node."""

    spec: Any = _STRING_SPEC
    name: str = "files"

    @property
    def label(self) -> str:
        return f"{self.name}({self.size} files)"


def file_names(method: str, names: Any) -> FileNames:
    """Return a source of these names: one, or several in their order.

    Raises:
        ArgumentTypeError: If something is not a file name.
        ArgumentError: If there is no name.
    """
    return FileNames(size=len(texts := _names(method, names)), tables=(np.array(texts, dtype=object),))


def matching_files(patterns: Any) -> FileNames:
    """Return a source of the names that match the patterns, sorted.

    Raises:
        DatasetError: If a pattern matches nothing.
    """
    found: set[str] = set()
    for pattern in _names("list_files", patterns):
        matches = _matching(pattern)
        if not matches:
            searched = "" if is_url(pattern) else f" (searched from {Path.cwd()})"
            raise DatasetError(
                f"list_files: no file matches {pattern!r}{searched}. "
                "Check the path; `*` matches within one folder, and `**` is not recursive."
            )
        found.update(matches)
    names = np.array(sorted(found), dtype=object)
    return FileNames(size=len(names), tables=(names,), name="list_files")


def _matching(pattern: str) -> list[str]:
    if not is_url(pattern):
        return glob.glob(pattern)  # noqa: PTH207 - the pattern may be absolute or relative
    try:
        return Store(pattern).matches()
    except RemoteError as error:
        raise DatasetError(f"list_files: {error}.") from error


def _names(method: str, names: Any) -> list[str]:
    if isinstance(names, str | bytes | os.PathLike):
        names = [names]
    if isinstance(names, np.ndarray):
        names = names.ravel().tolist()
    if not isinstance(names, Iterable):
        raise ArgumentTypeError(f"{method} takes a file name or a list of them. Received: {names!r}.")
    try:
        texts = [checked_name(method, name) for name in names]
    except TypeError as error:
        raise ArgumentTypeError(f"{method} takes a file name or a list of them. Received: {names!r}.") from error
    if not texts:
        raise ArgumentError(f"{method}: there is no file name in {names!r}.")
    return texts


# Elements, where each of them ends, and what is wrong after them.
Cut = tuple[list[Any], Sequence[int] | np.ndarray, DatasetError | None]


@dataclasses.dataclass(frozen=True)
class FileFormat(abc.ABC):
    """How elements are cut out of a file."""

    compression: str = ""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The public name of the dataset that reads this format."""

    @abc.abstractmethod
    def split(self, path: str, offset: int, data: memoryview, last: bool) -> Cut:
        """Return the whole elements at the beginning of ``data``, where each of them ends, and what is wrong after them.

        ``data`` begins at ``offset`` of the uncompressed file, and ``last`` says that nothing follows it. It is overwritten
        afterwards.
        """


class FileReader:
    """Reads one file in large pieces. The position is the offset of the next element in the uncompressed file.

    The pieces share one buffer, because allocating new memory for each of them takes longer than filling it.

    Raises:
        DatasetError: If the file cannot be opened, or is not the one that ``identity`` names.
    """

    def __init__(self, form: FileFormat, path: str, offset: int, identity: str | None = None) -> None:
        self.form, self.path = form, path
        self.stream = FileStream(form.name, path, form.compression)
        if identity is not None and identity != self.stream.identity:
            self.stream.close()
            raise DatasetError(
                f"{form.name}: {path!r} has changed since the position was saved: it was {identity}, and is now "
                f"{self.stream.identity}. Put the file back as it was, or begin the pass anew."
            )
        self.stream.skip(offset)
        self.items = np.empty(0, object)
        self.offsets = np.array([offset])  # of each item, and of the end of the last one
        self.next = 0
        self.buffer = bytearray(_stream.PIECE)
        self.filled = 0  # number of bytes that were read after the last item
        self.failure: DatasetError | None = None
        self.at_end = False

    @property
    def position(self) -> int:
        return int(self.offsets[self.next])

    def read(self, limit: int) -> np.ndarray:
        """Return the next elements, at most `limit`; none at the end.

        Raises:
            DatasetError: If the file is damaged here.
        """
        while self.next == len(self.items):
            if self.failure is not None:
                raise self.failure
            if self.at_end:
                return self.items[:0]
            self._refill()
        first, self.next = self.next, min(self.next + limit, len(self.items))
        return self.items[first : self.next]

    def _refill(self) -> None:
        offset = self.offsets[-1]
        if self.filled > len(self.buffer) // 2:
            self.buffer = self.buffer + bytes(len(self.buffer))
        view = memoryview(self.buffer)
        count = self.stream.read_into(view[self.filled :])
        self.at_end = not count
        self.filled += count
        items, ends, self.failure = self.form.split(self.path, int(offset), view[: self.filled], self.at_end)
        self.items = np.fromiter(items, object, len(items))
        self.offsets = offset + np.concatenate([[0], np.asarray(ends, np.int64)])
        used = int(ends[-1]) if len(ends) else 0
        self.filled -= used
        view[: self.filled] = view[used : used + self.filled].tobytes()
        self.next = 0

    def close(self) -> None:
        self.stream.close()


@dataclasses.dataclass(frozen=True, eq=False)
class ReadFiles(OneInput):
    """The elements of each file that the input names, one file after the other."""

    form: FileFormat

    @property
    def label(self) -> str:
        return f"{self.form.name}({self.form.compression})"

    @property
    def spec(self) -> Any:
        return _STRING_SPEC

    @property
    def cardinality(self) -> int:
        return 0 if self.input.cardinality == 0 else UNKNOWN

    def open(self, state: State | None = None) -> Cursor:
        cursor = ReadFilesCursor(self.input.open(state and state["source"]), self.form)
        if state:
            cursor.offset, cursor.identity = state["offset"], state.get("identity")
        return cursor


class ReadFilesCursor(Through):
    """Keeps one file open. Its position is that of the file's name in the source, and the offset in the file."""

    def __init__(self, source: Cursor, form: FileFormat) -> None:
        super().__init__(source)
        self.form = form
        self._forget()

    def _forget(self) -> None:
        self.reader: FileReader | None = None
        self.before: State | None = None
        self.offset = 0  # where to begin in the next file that is opened
        self.identity: str | None = None  # what that file was when the position was saved, if it is at a URL

    def _open_next(self) -> FileReader | None:
        before = self.source.state()
        block = self.source.pull(1)
        if block is None:
            return None
        name = next(block.elements())
        if not isinstance(name, str | bytes):
            raise DatasetError(f"{self.form.name} reads a dataset of file names, which are strings. Received: {name!r}.")
        self.before = before
        self.reader = FileReader(self.form, os.fsdecode(name), self.offset, self.identity)
        self.offset, self.identity = 0, None
        return self.reader

    def pull(self, limit: int) -> Block | None:
        while reader := self.reader or self._open_next():
            items = reader.read(limit)
            if len(items):
                return Block(_ONE_LEAF, [Boxed(items)], len(items))
            reader.close()
            self.reader = None
        return None

    def skip(self, count: int) -> int:
        skipped = 0
        while skipped < count and (reader := self.reader or self._open_next()):
            items = reader.read(count - skipped)
            skipped += len(items)
            if not len(items):
                reader.close()
                self.reader = None
        return skipped

    def reset(self) -> None:
        self.close()
        self.source.reset()
        self._forget()

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
        self.source.close()

    def state(self) -> State:
        if self.reader is None:
            state = {"offset": self.offset, "source": self.source.state()}
            return state if self.identity is None else {**state, "identity": self.identity}
        state = {"offset": self.reader.position, "source": self.before}
        return state if (identity := self.reader.stream.identity) is None else {**state, "identity": identity}
