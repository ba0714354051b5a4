"""What a format of files is: how the elements of a file are read, in parts or by their numbers, too, if it has them."""

import abc
from collections.abc import Iterator, Sequence
from typing import Any

from ...errors import DatasetError
from ...storage._retry import RemoteError
from ..graph._blocks import Block
from ..graph._graph import UNKNOWN, Node
from ._file_names import STRING_SPEC


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


class NoReader(Reader):
    """Stands for a file that cannot be opened. It counts as one record."""

    def __init__(self, num_skipped: int, position: Any) -> None:
        self.num_skipped, self.begin = num_skipped, position

    @property
    def position(self) -> Any:
        return self.begin

    def pull(self, limit: int) -> Block | None:
        return None

    def close(self) -> None:
        return


def check_unchanged(method: str, path: str, before: str | None, now: str | None, since: str = "the position was saved") -> None:
    """Check that a file is what it was before, for example when a position was saved (`Reader.identity`).

    Raises:
        DatasetError: If it is another one.
    """
    if before is not None and before != now:
        raise DatasetError(
            f"{method}: {path!r} has changed since {since}: it was {before}, and is now {now}. "
            "Put the file back as it was, or start the pass again."
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
        return STRING_SPEC

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

    def check_alike(self, path: str, found: Any, spec: Any) -> None:
        """Check that the elements of a file are those of all files, if both specs are known.

        Raises:
            DatasetError: If they are others.
        """
        if None not in (found, spec) and found != spec:
            raise DatasetError(
                f"{self.name}: the elements of {path!r} are {found}, and those of the first file {spec}. Write the files "
                f"again with "
                "one shape and dtype, or make a dataset of each kind."
            )

    def num_elements(self, path: str, part: int | None) -> int | None:
        """Return the number of elements of a file, or of a part; None if that is known only when they are read.

        Raises:
            DatasetError: If the file cannot be opened.
        """
        del path, part
        return None
