"""The elements of files, which are read one file after the other, each from beginning to end."""

import dataclasses
import functools
import os
from collections.abc import Iterator
from typing import Any

from ...errors import DatasetError
from ...storage._counts import counting, current_counts
from ..graph._blocks import Block
from ..graph._graph import NOT_COMPARED, Cursor, Node, OneInput, State, Through, nodes, rewrite
from ._file_names import FileParts
from ._format import Format, Reader, check_unchanged, store_fails


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
        DatasetError: If the name is not a string.
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
        self.reader: Reader | None = None
        self.before: State | None = None  # the position of the name of the reader's file
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
        self.offset, self.identity, self.identities = 0, None, {}

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
