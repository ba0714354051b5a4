"""A shuffle of all elements without a buffer: element i is the one whose number a pseudorandom permutation gives for i.

So the position is one number, whatever was read, and elements are read by their numbers. A `map` right before it is applied
after it, which gives the same elements and leaves the threads to it.
"""

import dataclasses
from typing import Any

from ....errors import DatasetError
from ...files._file_names import FileNames
from ...files._files import ReadFiles, paths_of
from ...files._indexed import IndexedFiles, indexed_below
from ...graph._blocks import Block
from ...graph._graph import Counting, Cursor, Node, OneInput, State, rewrite
from ..elements._map import Map
from ._group_shuffle import GroupShuffle
from ._permutation import Chunks
from ._shuffle import Drawing, Seeds


@dataclasses.dataclass(frozen=True)
class Order:
    """What determines an order, and whether every pass has another one."""

    seed: int | None
    entropy: int
    reshuffle: bool


@dataclasses.dataclass(frozen=True, eq=False)
class GlobalShuffle(OneInput, Drawing):
    """All elements of an input that has a reader, in another order."""

    @property
    def label(self) -> str:
        return f"global_shuffle({', '.join(self.settings)})"

    @property
    def sampled(self) -> Node:
        return self.input

    def open(self, state: State | None = None) -> Cursor:
        found = [each.identity for each in indexed_below(self.input)]
        if state and state.get("files", []) != found:
            raise DatasetError(
                "global_shuffle: the files have changed since the position was saved: they have other elements, or others "
                "are read. Put them back as they were, or start the pass again."
            )
        return GlobalShuffleCursor(self, self.draws(state), state["next"] if state else 0)


class GlobalShuffleCursor(Counting):
    """Counts."""

    def __init__(self, node: GlobalShuffle, seeds: Seeds, position: int) -> None:
        super().__init__(position, node.cardinality)
        self.node, self.seeds = node, seeds
        read = node.input.reader()
        assert read is not None, "checked when the dataset was made"
        self.read = read
        self.files = indexed_below(node.input)
        self.order = Chunks(self.size, seeds)

    def pull(self, limit: int) -> Block | None:
        if self.position >= self.size:
            return None
        numbers = self.order.after(self.position, limit)
        self.position += len(numbers)  # even if the function of a `map` fails for one of them
        block = self.read(numbers)
        self.position -= len(numbers) - block.size
        return block

    def reset(self) -> None:
        super().reset()
        self.seeds = self.seeds.of_next_pass(self.node)
        self.order = Chunks(self.size, self.seeds)

    def state(self) -> State:
        state = {**self.seeds.state(), **super().state()}
        return {**state, "files": [each.identity for each in self.files]} if self.files else state

    @property
    def num_skipped(self) -> int:
        return sum(index.num_skipped for each in self.files for index in each.indexes)


def globally_shuffled(node: Node, order: Order, window: int | None) -> Node:
    """Return the elements of a node in another order.

    Raises:
        DatasetError: If its elements cannot be read by their numbers, or in groups if there is a window.
    """
    if isinstance(node, Map):
        return node.with_inputs(globally_shuffled(node.input, order, window))
    settings: Any = dataclasses.asdict(order)
    if window is not None:
        if type(node) is ReadFiles and type(node.input) is FileNames:
            return GroupShuffle(inputs=node.inputs, form=node.form, names=node.names, window=window, **settings)
        raise DatasetError(
            f"global_shuffle(window={window}) reads groups of elements of files, but `{node.label}` is not a dataset of named "
            "files. Call it directly after a dataset of files that takes their names and no num_parallel_reads, such as "
            "`ParquetDataset(files)`; for arrays, leave `window` out."
        )
    node = rewrite(node, _with_index)
    if node.reader() is None:
        raise DatasetError(_refusal(_obstacle(node)))
    return GlobalShuffle(inputs=(node,), **settings)


def _with_index(node: Node) -> Node:
    """The node, changed to read files by the numbers of their elements if they have an index."""
    if type(node) is not ReadFiles or type(node.input) is not FileNames:
        return node
    paths = paths_of(node.form, node.input)
    return IndexedFiles(inputs=node.inputs, form=node.form, names=node.names) if all(map(node.form.has_index, paths)) else node


def _obstacle(node: Node) -> Node:
    """The first node whose elements have no numbers, although those of its inputs have."""
    if isinstance(node, ReadFiles):
        return node
    return next((_obstacle(child) for child in node.inputs if child.reader() is None), node)


def _refusal(node: Node) -> str:
    if isinstance(node, ReadFiles):
        remedy = (
            "Call `global_shuffle(window=8)` directly after it, which mixes the elements of 8 row groups, or files, at a time. Or "
            "use `shuffle(buffer_size)`."
        )
    elif node.inputs:
        remedy = "Call `global_shuffle` before it, or use `shuffle(buffer_size)`."
    else:
        remedy = (
            "Use `shuffle(buffer_size)`. Or read from something that takes an index: "
            "`Dataset.range(len(source)).global_shuffle().map(lambda i: source[i])`, or an array, which "
            '`np.load(path, mmap_mode="r")` leaves on the disk.'
        )
    return f"global_shuffle reads elements by their numbers, but `{node.label}` can only give them in order. {remedy}"
