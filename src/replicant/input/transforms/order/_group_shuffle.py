"""A shuffle in two levels, of elements that are read in groups: row groups of tables, or whole files.

A pseudorandom permutation orders the groups of a pass, of which ``window`` at a time are in memory; another one orders the elements
of these. So the position is the number of the window and a number in it, and each group is read once, from beginning to end.
"""

import dataclasses

from ....errors import DatasetError
from ...files._file_names import FileParts
from ...files._files import ReadFiles, path_and_part
from ...files.columns._groups import Group, Held
from ...graph._blocks import Block
from ...graph._graph import Cursor, Node, State, nodes
from ._permutation import Chunks
from ._shuffle import Drawing, Seeds


@dataclasses.dataclass(frozen=True, eq=False)
class GroupShuffle(Drawing, ReadFiles):
    """The elements of the files that the input names, in another order. ``window`` groups are in memory at a time."""

    window: int = 1

    @property
    def label(self) -> str:
        return f"global_shuffle({', '.join([*self.settings, f'window={self.window}'])}) of {self.form.label}"

    @property
    def sampled(self) -> Node:
        return ReadFiles(inputs=self.inputs, form=self.form, names=self.names)

    def open(self, state: State | None = None) -> Cursor:
        return GroupShuffleCursor(self, self.draws(state), state)

    def groups(self) -> list[Group]:
        """Return the groups of all files, in the order of the files.

        Raises:
            DatasetError: If a file cannot be opened to count them.
        """
        in_parts = any(isinstance(each, FileParts) for each in nodes(self.input))
        cursor, found = self.input.open(), []
        while (block := cursor.pull(1)) is not None:
            path, part = path_and_part(self.form, next(block.elements()), in_parts)
            found += [Group(path, each) for each in (self.form.parts(path) if part is None else [part])]
        return found


class GroupShuffleCursor(Cursor):
    """Holds one window. What is wrong in its files is raised after its elements, so that the others are not lost."""

    def __init__(self, node: GroupShuffle, seeds: Seeds, state: State | None) -> None:
        self.node, self.seeds = node, seeds
        self.skipped_before = 0  # in windows that are left
        self.window, self.next, self.failed = (state["window"], state["next"], state["failed"]) if state else (0, 0, 0)
        self.digest: str | None = state["digest"] if state else None  # of the window's files when the position was saved
        self.count: int | None = state["groups"] if state else None
        self.windows: list[list[Group]] | None = None
        self.held: Held | None = None
        self.order: Chunks | None = None

    def _planned(self) -> list[list[Group]]:
        """The windows of this pass."""
        if self.windows is None:
            groups = self.node.groups()
            if self.count not in (None, len(groups)):
                raise self._changed(f"they had {self.count} parts in all, and have {len(groups)} now")
            self.count = len(groups)
            ordered = Chunks(len(groups), self.seeds).permutation.all()
            size = self.node.window
            self.windows = [[groups[i] for i in ordered[at : at + size]] for at in range(0, len(groups), size)]
        return self.windows

    def _load(self) -> Held:
        if self.held is None:
            held = Held(self.node.form, self._planned()[self.window], self.node.spec)
            if self.digest not in (None, held.digest) or self.next > held.size or self.failed > len(held.failures):
                raise self._changed(f"those of window {self.window} are others, or have {held.size} elements now")
            self.digest, self.held = held.digest, held
            self.order = Chunks(held.size, (*self.seeds, self.window))
        return self.held

    def _changed(self, what: str) -> DatasetError:
        return DatasetError(
            f"{self.node.form.name}: the files have changed since the position was saved: {what}. Put them back as they were, or "
            "start the pass again."
        )

    def _leave(self) -> None:
        self.skipped_before = self.num_skipped
        self.held = self.order = self.digest = None
        self.window, self.next, self.failed = self.window + 1, 0, 0

    def _check(self, held: Held) -> None:
        """Raise the next of the window's errors, if there is one."""
        if self.failed < len(held.failures):
            self.failed += 1
            raise held.failures[self.failed - 1]

    def pull(self, limit: int) -> Block | None:
        while self.window < len(self._planned()):
            held = self._load()
            if self.next < held.size:
                assert self.order is not None, "made with the window"
                block = held.take(self.order.after(self.next, limit))
                self.next += block.size
                return block
            self._check(held)
            self._leave()
        return None

    def skip(self, count: int) -> int:
        skipped = 0
        while skipped < count and self.window < len(self._planned()):
            size = self._size()
            if self.next > size:
                raise self._changed(f"those of window {self.window} have {size} elements now")
            step = min(size - self.next, count - skipped)
            self.next, skipped = self.next + step, skipped + step
            if self.next == size:
                if self.held is not None:
                    self._check(self.held)
                self._leave()
        return skipped

    def _size(self) -> int:
        """The number of elements of this window, which is loaded only if the files do not say it."""
        if self.held is None:
            counts = [self.node.form.num_elements(each.path, each.part) for each in self._planned()[self.window]]
            known = [count for count in counts if count is not None]
            if len(known) == len(counts):
                return sum(known)
        return self._load().size

    def reset(self) -> None:
        self.skipped_before = self.num_skipped
        self.window, self.next, self.failed, self.digest, self.count = 0, 0, 0, None, None
        self.seeds = self.seeds.of_next_pass(self.node)
        self.windows = self.held = self.order = None

    def close(self) -> None:
        self.skipped_before = self.num_skipped
        self.held = self.order = None

    @property
    def num_skipped(self) -> int:
        return self.skipped_before + (self.held.num_skipped if self.held is not None else 0)

    def state(self) -> State:
        left = self.held is not None and self.next == self.held.size and self.failed == len(self.held.failures)
        here = (self.window + 1, 0, 0, None) if left else (self.window, self.next, self.failed, self.digest)
        numbers = dict(zip(("window", "next", "failed", "digest"), here, strict=True))
        return {**self.seeds.state(), "groups": self.count, **numbers}
