"""Files that say how many elements they have, and of which any can be read by its number."""

import abc
import dataclasses
import functools
import os
from collections.abc import Iterator
from typing import Any

from ...errors import DatasetError, ElementError
from ..graph._blocks import Block
from ..graph._graph import UNKNOWN, Node
from ._counts import facts_for_counts, may_count
from ._file_names import FileNames
from ._format import Format, NoReader, Reader, check_unchanged, store_fails


class Numbered(Reader):
    """Reads a file whose elements have numbers. The position is the number of the next one."""

    form: Any  # a `NumberedFormat`
    path: str
    spec: Any  # of its elements, or None if only that of all files is known
    size: int  # their number
    next = 0

    @property
    def position(self) -> int:
        return self.next

    def move_to(self, position: int) -> None:
        """Go on at an element.

        Raises:
            DatasetError: If there are fewer.
        """
        if position > self.size:
            raise DatasetError(
                f"{self.form.name}: the position is behind element {position} of {self.path!r}, which has only {self.size} now. "
                "The file has changed since the position was saved: put it back as it was, or start the pass again."
            )
        self.next = position

    @abc.abstractmethod
    def run(self, start: int, stop: int) -> Block:
        """Return the elements from ``start`` on, at least one and none from ``stop`` on.

        Raises:
            ElementError: If the first is damaged, and those behind it may not be.
            DatasetError: If the file is.
        """

    def pull(self, limit: int) -> Block | None:
        while self.next < self.size:
            try:
                block = self.run(self.next, min(self.next + limit, self.size))
            except DatasetError as error:
                is_left_out, is_one = self.form.leaves_out(error), isinstance(error, ElementError)
                lost = (1 if is_one else self.size - self.next) if is_left_out or is_one else 0
                self.next += lost  # whoever asks again gets the one behind it
                if not is_left_out:
                    raise
                self.num_skipped += lost
            else:
                self.next += block.size
                return block
        return None

    def skip(self, count: int) -> int:
        if self.form.skips:  # what is left out is known only when it is read
            return Reader.skip(self, count)
        skipped = min(count, self.size - self.next)
        self.next += skipped
        return skipped


@dataclasses.dataclass(frozen=True)
class NumberedFormat(Format):
    """The format of files that `Numbered` readers read. ``skips`` says whether to leave out what cannot be read."""

    skips: bool = dataclasses.field(default=False, kw_only=True)

    @abc.abstractmethod
    def opened(self, path: str) -> Numbered:
        """Open a file.

        Raises:
            DatasetError: If it is missing or damaged.
        """

    @property
    def settings(self) -> list[str]:
        """What positions depend on, as the user would write it."""
        return []

    @property
    def label(self) -> str:
        settings = self.settings + ['on_error="skip"'] * self.skips
        return f"{self.name}({', '.join(settings)})"

    def leaves_out(self, error: DatasetError) -> bool:
        """Return whether what has failed is left out. A store that does not answer may answer later, so nothing of it is."""
        return self.skips and not store_fails(error)

    def spec_of(self, paths: Iterator[str]) -> Any:
        failure: DatasetError | None = None
        for path in paths:
            try:
                reader = self.opened(path)
            except DatasetError as error:
                if not self.leaves_out(error):
                    raise
                failure = failure or error
            else:
                reader.close()
                if reader.spec is not None:
                    return reader.spec
        if failure is not None:  # of all files: more likely a wrong name than damage
            raise failure
        return None

    def open(self, path: str, position: Any, spec: Any, part: int | None = None, identity: str | None = None) -> Reader:
        try:
            reader = self.opened(path)
        except DatasetError as error:
            if not self.leaves_out(error):
                raise
            return NoReader(1, position)
        try:
            check_unchanged(self.name, path, identity, reader.identity)
            self.check_alike(path, reader.spec, spec)
            reader.move_to(position)
            if reader.spec is None:  # only the first element of all says it
                reader.spec = spec
        except BaseException:
            reader.close()
            raise
        return reader

    def cardinality(self, node: Node) -> int:
        if not isinstance(node, FileNames) or self.skips or not may_count(node):
            return 0 if node.cardinality == 0 else UNKNOWN
        return sum(self._counted(os.fsdecode(path)) for path in node.tables[0])

    def num_elements(self, path: str, part: int | None) -> int | None:
        return None if self.skips else self._counted(path)

    def _counted(self, path: str) -> int:
        return _count(self, path, facts_for_counts(self.name, path, "elements"))


@functools.lru_cache(maxsize=4096)
def _count(form: NumberedFormat, path: str, facts: object) -> int:
    del facts  # of a file that has changed, the elements are counted again
    reader = form.opened(path)
    try:
        return reader.size
    finally:
        reader.close()
