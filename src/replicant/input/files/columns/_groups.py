"""Groups of elements that are in memory as a whole: row groups of tables, or files that have no such parts."""

import dataclasses
import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....errors import DatasetError
from ....storage._retry import RemoteError
from ...graph._blocks import Block, Boxed, concatenate
from .._files import Format, Reader

_ALL = 1 << 62  # more elements than a group has


@dataclasses.dataclass(frozen=True)
class Group:
    """A file, or the number of one of its parts."""

    path: str
    part: int | None


@dataclasses.dataclass
class _Loaded:
    """What was read of some groups: their elements, what is wrong in them, and what tells them from others."""

    blocks: list[Block] = dataclasses.field(default_factory=list)
    failures: list[DatasetError] = dataclasses.field(default_factory=list)
    facts: list[tuple[str | None, int]] = dataclasses.field(default_factory=list)
    num_skipped: int = 0

    def read(self, reader: Reader) -> None:
        """Read a group to its end, or to where its reader does not get past an error."""
        blocks: list[Block] = []
        while True:
            before = reader.position
            try:
                block = reader.pull(_ALL)
            except DatasetError as error:
                if isinstance(error.__cause__, RemoteError):  # the store may answer again
                    raise
                self.failures.append(error)
                if reader.position == before:
                    break
            else:
                if block is None:
                    break
                blocks.append(block)
        self.blocks += _joined(blocks)
        self.facts.append((reader.identity, sum(block.size for block in blocks)))
        self.num_skipped += reader.num_skipped


class Held:
    """The elements of some groups, of which any can be taken.

    Args:
        form: The format of the files.
        groups: The groups.
        spec: The spec of their elements.

    Raises:
        DatasetError: If a store does not answer. What is wrong with a file is in ``failures``.
    """

    def __init__(self, form: Format, groups: Sequence[Group], spec: Any) -> None:
        loaded = _Loaded()
        for group in groups:
            try:
                reader = form.open(group.path, 0, spec, group.part)
            except DatasetError as error:
                if isinstance(error.__cause__, RemoteError):
                    raise
                loaded.failures.append(error)
                loaded.facts.append((None, 0))
                continue
            try:
                loaded.read(reader)
            finally:
                reader.close()
        self.blocks, self.failures, self.num_skipped = loaded.blocks, loaded.failures, loaded.num_skipped
        self.digest = hashlib.blake2b(repr(loaded.facts).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
        self.ends = np.cumsum([0, *(block.size for block in self.blocks)])
        kinds: dict[Any, int] = {}
        self.kinds = np.array([kinds.setdefault(block.structure, len(kinds)) for block in self.blocks], np.int64)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(self.ends[-1])

    def take(self, numbers: np.ndarray) -> Block:
        """Return the elements with these numbers, as far as they have the structure of the first."""
        if self.kinds.any():
            kinds = self.kinds[np.searchsorted(self.ends, numbers, side="right") - 1]
            numbers = numbers[: int(np.argmax(kinds != kinds[0])) or None]
        order = np.argsort(numbers)
        ascending = numbers[order]
        bounds = np.searchsorted(ascending, self.ends).tolist()
        each = zip(self.blocks, self.ends.tolist(), itertools.pairwise(bounds), strict=False)
        parts = [block.take(ascending[a:b] - begin) for block, begin, (a, b) in each if a < b]
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        return concatenate(parts).take(places)


def _joined(blocks: list[Block]) -> list[Block]:
    """The same elements in few blocks, where that copies no arrays."""
    found: list[Block] = []
    for (_, boxed), run in itertools.groupby(blocks, lambda block: (block.structure, _is_boxed(block))):
        alike = [*run]
        found += [concatenate(alike)] if boxed else alike
    return found


def _is_boxed(block: Block) -> bool:
    return all(isinstance(each, Boxed) for each in block.columns)
