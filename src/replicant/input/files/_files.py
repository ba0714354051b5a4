"""Files: a source of their names, and a reader that goes through each file from beginning to end."""

import abc
import dataclasses
import functools
import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np

from ...errors import ArgumentError, ArgumentTypeError, DatasetError
from ...storage._counts import counting, current_counts
from ...storage._retry import RemoteError
from ...storage._store import Store
from ...storage._urls import checked_name, is_url
from ..graph._blocks import Block, Boxed
from ..graph._graph import NOT_COMPARED, UNKNOWN, Cursor, Node, OneInput, State, Through, nodes, rewrite
from ..graph._structure import STRING, TensorSpec
from ..sources._sources import Rows
from . import _stream
from ._limits import MAX_RECORD_BYTES, too_large
from ._stream import FileStream

_STRING_SPEC = TensorSpec((), STRING)
_AFTER_RECORD = 1 << 21  # bytes that may have to be seen behind a record to know where it ends
_ONE_LEAF = jax.tree_util.tree_structure(0)


@dataclasses.dataclass(frozen=True, eq=False)
class FileNames(Rows):
    """File names. Sharding a dataset by files shards this node."""

    spec: Any = dataclasses.field(default=_STRING_SPEC, metadata=NOT_COMPARED)
    name: str = dataclasses.field(default="files", metadata=NOT_COMPARED)

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


class Reader(abc.ABC):
    """A position in one file."""

    num_skipped = 0  # records that were left out

    @property
    def identity(self) -> str | None:
        """A text that is another one once the contents of the file are; None for a file on this machine."""
        return None

    @property
    @abc.abstractmethod
    def position(self) -> Any:
        """The position of the next element, as JSON can hold it. The beginning is 0."""

    @abc.abstractmethod
    def pull(self, limit: int) -> Block | None:
        """Return the next elements, at most ``limit``; None at the end.

        Raises:
            DatasetError: If the file is damaged here.
        """

    def skip(self, count: int) -> int:
        """Move ahead by up to ``count`` elements, and return how many there were."""
        skipped = 0
        while skipped < count and (block := self.pull(count - skipped)) is not None:
            skipped += block.size
        return skipped

    @abc.abstractmethod
    def close(self) -> None:
        """Close the file."""


def check_unchanged(method: str, path: str, before: str | None, now: str | None, since: str = "the position was saved") -> None:
    """Check that a file is what it was before, for example when a position was saved (`Reader.identity`).

    Raises:
        DatasetError: If it is another one.
    """
    if before is not None and before != now:
        raise DatasetError(
            f"{method}: {path!r} has changed since {since}: it was {before}, and is now {now}. "
            "Put the file back as it was, or begin the pass anew."
        )


def store_fails(error: Exception) -> bool:
    """Return whether an error is that of a store which may answer later: not that an object is missing."""
    return isinstance(error.__cause__, RemoteError) and not isinstance(error.__cause__.__cause__, FileNotFoundError)


class Format(abc.ABC):
    """How the elements of a file are read."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The public name of the dataset that reads this format."""

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """The name and the settings that positions depend on."""

    @abc.abstractmethod
    def open(self, path: str, position: Any, spec: Any, part: int | None = None, identity: str | None = None) -> Reader:
        """Return a reader of a file, or of one of its parts. ``spec`` is that of all elements.

        Raises:
            DatasetError: If the file cannot be opened, or is not the one that ``identity`` names.
        """

    def spec_of(self, paths: Iterator[str]) -> Any:
        """Return the spec of the elements, or None if there is none. ``paths`` are the files in their order."""
        del paths
        return _STRING_SPEC

    def cardinality(self, node: Node) -> int:
        """Return the number of elements in the files that a node names."""
        return 0 if node.cardinality == 0 else UNKNOWN

    def count_parts(self, path: str) -> int:
        """Return the number of parts of a file that can be read by themselves."""
        del path
        return 1

    def parts(self, path: str) -> Sequence[int | None]:
        """Return the numbers of the parts of a file, or None alone if it has none.

        Raises:
            DatasetError: If the file cannot be opened.
        """
        del path
        return (None,)

    def has_index(self, path: str) -> bool:
        """Return whether the elements of a file can be read by their numbers."""
        del path
        return False

    def index(self, path: str) -> Any:
        """Return what reads the elements of a file that has an index by their numbers (`Index`).

        Raises:
            DatasetError: If the file cannot be opened, or is damaged.
        """
        raise NotImplementedError

    def num_elements(self, path: str, part: int | None) -> int | None:
        """Return the number of elements of a file, or of a part; None if that is known only when they are read.

        Raises:
            DatasetError: If the file cannot be opened.
        """
        del path, part
        return None


@dataclasses.dataclass(frozen=True)
class FileFormat(Format):
    """How elements are cut out of the bytes of a file, from its beginning on."""

    compression: str = ""
    max_record_bytes: int = dataclasses.field(default=MAX_RECORD_BYTES, kw_only=True)
    cuts_all: ClassVar[bool] = False  # whether `split` leaves no whole element of the last data for another call

    @property
    def label(self) -> str:
        return f"{self.name}({self.compression})"

    def stream(self, path: str) -> FileStream:
        """Open a file."""
        return FileStream(self.name, path, self.compression)

    def open(self, path: str, position: Any, spec: Any, part: int | None = None, identity: str | None = None) -> Reader:
        return FileReader(self, path, position, identity)

    @abc.abstractmethod
    def split(self, path: str, offset: int, data: memoryview, last: bool) -> Cut:
        """Return the whole elements at the beginning of ``data``, where each of them ends, and what is wrong after them.

        ``data`` begins at ``offset`` of the uncompressed file, and ``last`` says that nothing follows it. It is overwritten
        afterwards. Of much data, it returns the first element, and those in the first `PIECE`: a million short lines behind a
        long one would take far more memory than their bytes.
        """


class FileReader(Reader):
    """Reads one file in large pieces. The position is the offset of the next element in the uncompressed file.

    The pieces share one buffer, because allocating new memory for each of them takes longer than filling it. What is looked at
    doubles until it holds an element, so no byte of a long one is looked at more than twice on average, and no more is read than
    the file has, whatever it says about its sizes.

    Raises:
        DatasetError: If the file cannot be opened, or is not the one that ``identity`` names.
    """

    def __init__(self, form: FileFormat, path: str, offset: int, identity: str | None = None) -> None:
        self.form, self.path = form, path
        self.stream = form.stream(path)
        try:
            check_unchanged(form.name, path, identity, self.stream.identity)
            self.stream.skip(offset)
        except DatasetError:
            self.stream.close()
            raise
        self.items = np.empty(0, object)
        self.offsets = np.array([offset])  # of each item, and of the end of the last one
        self.next = 0
        self.buffer = bytearray(_stream.PIECE)
        self.begin, self.filled = 0, 0  # where the bytes after the last item are in the buffer, and how many were read
        self.failure: DatasetError | None = None
        self.all_read = False  # whether nothing follows these bytes
        self.at_end = False  # whether nothing follows the items

    @property
    def identity(self) -> str | None:
        return self.stream.identity

    @property
    def position(self) -> int:
        return int(self.offsets[self.next])

    def pull(self, limit: int) -> Block | None:
        items = self.read(limit)
        return Block(_ONE_LEAF, [Boxed(items)], len(items)) if len(items) else None

    def skip(self, count: int) -> int:
        skipped = 0
        while skipped < count and len(items := self.read(count - skipped)):
            skipped += len(items)
        return skipped

    def read(self, limit: int) -> np.ndarray:
        """Return the next elements, at most `limit`; none at the end.

        Raises:
            DatasetError: If the file is damaged here, or an element has too many bytes.
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
        offset, size, most = int(self.offsets[-1]), _stream.PIECE, self.form.max_record_bytes
        if self.filled < size:
            self._fill(size, once=True)
        while True:
            last = self.all_read and self.filled <= size
            data = memoryview(self.buffer)[self.begin : self.begin + min(self.filled, size)]
            items, ends, failure = self._split(offset, data, last)
            if len(items) or failure is not None or last:
                break
            if len(data) >= most + _AFTER_RECORD:
                failure = too_large(self.form.name, self.path, offset, most)
                break
            size = min(2 * size, most + _AFTER_RECORD) if len(data) >= size else size
            self._fill(size)
        self._take(offset, items, np.asarray(ends, np.int64), failure)
        if last and (not len(items) or not self.filled or self.form.cuts_all):
            self.at_end = True

    def _take(self, offset: int, items: list[Any], ends: np.ndarray, failure: DatasetError | None) -> None:
        """Make these the next items, up to the first that has too many bytes."""
        most, used = self.form.max_record_bytes, int(ends[-1]) if len(ends) else 0
        if used > most and len(large := np.flatnonzero(np.diff(ends, prepend=0) > most)):
            items, ends = items[: large[0]], ends[: large[0]]
            used = int(ends[-1]) if len(ends) else 0
            failure = too_large(self.form.name, self.path, offset + used, most)
        self.failure = failure
        self.items = np.fromiter(items, object, len(items))
        self.offsets = offset + np.concatenate([[0], ends])
        self.next = 0
        self.begin, self.filled = self.begin + used, self.filled - used

    def _fill(self, size: int, *, once: bool = False) -> None:
        """Read on, until there are ``size`` bytes or the file ends, or ``once``."""
        if self.begin + size > len(self.buffer):
            rest = memoryview(self.buffer)[self.begin : self.begin + self.filled].tobytes()
            if max(size, len(rest)) > len(self.buffer) or len(self.buffer) > 2 * _stream.PIECE >= size + len(rest):
                self.buffer = bytearray(max(size, len(rest)))
            self.begin = 0
            memoryview(self.buffer)[: len(rest)] = rest
        view = memoryview(self.buffer)
        while self.filled < size and not self.all_read:
            count = self.stream.read_into(view[self.begin + self.filled :])
            self.all_read = not count
            self.filled += count
            if once:
                break

    def _split(self, offset: int, data: memoryview, last: bool) -> Cut:
        """The whole elements at the beginning of ``data``, which is at ``offset`` of the uncompressed file."""
        return self.form.split(self.path, offset, data, last)

    def close(self) -> None:
        self.stream.close()


@dataclasses.dataclass(frozen=True, eq=False)
class FileParts(FileNames):
    """File names, each with the number of one of its parts: row groups, which workers share as they share files."""

    spec: Any = dataclasses.field(default=(_STRING_SPEC, TensorSpec((), np.int64)), metadata=NOT_COMPARED)
    name: str = dataclasses.field(default="parts of files", metadata=NOT_COMPARED)

    @property
    def label(self) -> str:
        return f"{self.name}({self.size} of {len({*self.tables[0]})} files)"


@dataclasses.dataclass(frozen=True, eq=False)
class ReadFiles(OneInput):
    """The elements of each file that the input names, one file after the other.

    ``names`` names all files, of which the input may be a worker's share. All workers take the spec from there.
    """

    form: Format = dataclasses.field(metadata=NOT_COMPARED)
    names: Node | None = None

    @property
    def label(self) -> str:
        return self.form.label

    @property
    def spec(self) -> Any:
        return self._spec

    @functools.cached_property
    def _spec(self) -> Any:
        return self.form.spec_of(paths_of(self.form, self.names or self.input))

    @property
    def cardinality(self) -> int:
        return self.form.cardinality(self.input)

    def open(self, state: State | None = None) -> Cursor:
        cursor = ReadFilesCursor(self.input.open(state and state["source"]), self)
        if state:
            cursor.offset, cursor.identity = state["offset"], state.get("identity")
        return cursor


def paths_of(form: Format, names: Node) -> Iterator[str]:
    """Yield the files that a node names, one after the other."""
    cursor = rewrite(names, lambda each: each.sampled).open()
    try:
        while (block := cursor.pull(1)) is not None:
            yield path_and_part(form, next(block.elements()), in_parts=False)[0]
    finally:
        cursor.close()


def path_and_part(form: Format, name: Any, in_parts: bool) -> tuple[str, int | None]:
    """Return a file, and the number of its part if it is read in parts.

    Raises:
        DatasetError: If the name is no string.
    """
    name, part = name if in_parts else (name, None)
    if not isinstance(name, str | bytes):
        raise DatasetError(f"{form.name} reads a dataset of file names, which are strings. Received: {name!r}.")
    return os.fsdecode(name), None if part is None else int(part)


class ReadFilesCursor(Through):
    """Keeps one file open. Its position is that of the file's name in the source, and the offset in the file."""

    def __init__(self, source: Cursor, node: ReadFiles) -> None:
        super().__init__(source)
        self.node = node
        self.in_parts = any(isinstance(each, FileParts) for each in nodes(node.input))
        self.skipped_before = 0  # in files that are closed
        self.counts = current_counts()
        self._forget()

    def _forget(self) -> None:
        self.reader: Reader | None = None
        self.before: State | None = None
        self.offset: Any = 0  # where to begin in the next file that is opened
        self.identity: str | None = None  # what that file was when the position was saved, if it is at a URL
        self.identities: dict[str, str | None] = {}  # of the files of which parts were opened

    def _open_next(self) -> Reader | None:
        before = self.source.state()
        spec = self.node.spec  # may raise, before a name is taken
        block = self.source.pull(1)
        if block is None:
            return None
        form = self.node.form
        path, part = path_and_part(form, next(block.elements()), self.in_parts)
        self.before = before
        offset, identity = self.offset, self.identity
        self.offset, self.identity = 0, None  # of this file alone, even if it cannot be opened
        try:
            with counting(self.counts):
                self.reader = form.open(path, offset, spec, part, identity)
            if part is not None:
                self._check_same_file(path)
        except DatasetError as error:
            if store_fails(error):  # the file is still the next one, also for `ignore_errors`
                self.source.close()
                self.source = self.node.input.open(before)
                self.offset, self.identity = offset, identity
            raise
        return self.reader

    def _check_same_file(self, path: str) -> None:
        """Check that the part of a file that was opened belongs to the parts that were opened before."""
        assert self.reader is not None
        now = self.reader.identity
        try:
            check_unchanged(self.node.form.name, path, self.identities.setdefault(path, now), now, "another part of it was read")
        except DatasetError:
            self.reader.close()
            self.reader = None
            raise

    def pull(self, limit: int) -> Block | None:
        while reader := self.reader or self._open_next():
            block = reader.pull(limit)
            if block is not None:
                return block
            self._close_file()
        return None

    def skip(self, count: int) -> int:
        skipped = 0
        while skipped < count and (reader := self.reader or self._open_next()):
            there = reader.skip(count - skipped)
            skipped += there
            if not there:
                self._close_file()
        return skipped

    def _close_file(self) -> None:
        if self.reader is not None:
            self.skipped_before += self.reader.num_skipped
            self.reader.close()
            self.reader = None

    @property
    def num_skipped(self) -> int:
        return self.skipped_before + (self.reader.num_skipped if self.reader else 0)

    def reset(self) -> None:
        self._close_file()
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
        return state if (identity := self.reader.identity) is None else {**state, "identity": identity}
