"""Steps that are cut out of global batches: the rows of this worker's replicas."""

import dataclasses
from collections import deque
from typing import Any

import numpy as np

from ...errors import DatasetError, ElementError
from ...replicas._topology import Topology
from ..graph._graph import UNKNOWN, Cursor, Node, State, describe, known
from ..graph._structure import PerReplicaSpec, TensorSpec, component_names, flatten, map_leaves
from ..sharding._facts import PipelineFacts
from ..sharding._rebatch import chunk_sizes, own_steps, static_chunk_size, worker_chunk
from ._shares import Place, Run, Share, ShareCursor, Shares, WorkersPlace, known_spec, no_rows


@dataclasses.dataclass(frozen=True)
class BatchShares(Shares):
    """The chunks of global batches that belong to this worker.

    Args:
        node: The graph that yields the batches.
        topology: The workers and replicas.
        place: Places one component.
        shared: Whether all workers see the same batches and share each of them. Otherwise the batches are this worker's own.
        facts: Those of the graph that all workers read together. A worker without elements cannot find out its spec by itself.
        workers: Places batches, instead of `place`, if devices of several workers take part.
        by_files: Whether the batches are this worker's own because it reads files of its own.

    Raises:
        DatasetError: If a component is a scalar and there is more than one replica.
        ElementError: If the components have different batch sizes.
    """

    node: Node
    topology: Topology
    place: Place
    shared: bool
    facts: PipelineFacts
    workers: WorkersPlace | None = None
    by_files: bool = False

    def __post_init__(self) -> None:
        if self.topology.num_replicas > 1 and self.whole.spec is not None:
            leaves, structure = flatten(self.whole.spec)
            _check_no_datasets(leaves, structure)
            _check_sizes([leaf.shape for leaf in leaves], structure, self.topology.num_replicas)

    @property
    def whole(self) -> Node:
        """The graph that all workers read together."""
        return self.facts.node

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (self.node,)

    @property
    def description(self) -> str:
        return describe(self.whole)

    @property
    def spec(self) -> Any:
        if self.whole.spec is None or self.topology.num_replicas == 1:
            return self.whole.spec

        def local(leaf: TensorSpec) -> PerReplicaSpec:
            size = static_chunk_size(leaf.shape[0], self.topology.num_replicas)
            return PerReplicaSpec(TensorSpec((size, *leaf.shape[1:]), leaf.dtype), self.topology.replicas_per_worker)

        return map_leaves(local, self.whole.spec)

    @property
    def cardinality(self) -> int:
        size = self.node.cardinality
        if self.ends_everywhere or not known(size) or self.whole.spec is None:
            return size
        sizes = {leaf.shape[0] for leaf in flatten(self.whole.spec)[0]}
        batch_size = sizes.pop() if len(sizes) == 1 else None
        return UNKNOWN if batch_size is None and size else size * len(self.cut(batch_size or 0))

    @property
    def ends_everywhere(self) -> bool:
        return self.shared or self.topology.num_workers == 1

    def cut(self, batch_size: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return the first row and the sizes of this worker's replicas, for each step that a batch lasts."""
        return (worker_chunk(batch_size, self.topology),) if self.shared else own_steps(batch_size, self.topology)

    def of_batch(self, element: Any) -> list[Share]:
        """Return the steps of one batch."""
        leaves, structure = flatten(element)
        _check_no_datasets(leaves, structure)
        arrays = [np.asarray(leaf, dtype=object if isinstance(leaf, str | bytes) else None) for leaf in leaves]
        if self.topology.num_replicas == 1:
            rows = arrays[0].shape[0] if arrays and arrays[0].ndim else 1
            return [Share(structure, [(array, array.shape[:1]) for array in arrays], self.place, rows)]
        _check_sizes([array.shape for array in arrays], structure, self.topology.num_replicas)
        cuts = self.cut(len(arrays[0]) if arrays else 0)
        if self.workers is not None:
            return self._of_workers(structure, arrays, cuts)
        return [
            Share(structure, [(array[start : start + sum(sizes)], sizes) for array in arrays], self.place, sum(sizes))
            for start, sizes in cuts
        ]

    def _of_workers(self, structure: Any, arrays: list[np.ndarray], cuts: Any) -> list[Share]:
        assert self.workers is not None, "only called then"
        if self.shared:
            sizes = chunk_sizes(len(arrays[0]) if arrays else 0, self.topology.num_replicas)
            rows = sum(cuts[0][1])
            return [Share(structure, [(array, sizes) for array in arrays], self.workers.whole, rows)]
        return [
            Share(structure, [(_rows(array, start, sizes),) for array in arrays], self.place, sum(sizes), self.workers)
            for start, sizes in cuts
        ]

    @property
    def asks_others(self) -> bool:
        return self.workers is not None and not self.shared

    def open(self, state: State | None = None) -> "BatchShareCursor":
        cursor = BatchShareCursor(self, self.node.open(state and state["source"]))
        if state:
            cursor.go_to(state["step"])
        return cursor

    def nothing(self) -> Share:
        leaves, structure = known_spec(self.whole.spec)
        sizes = (0,) * self.topology.replicas_per_worker
        if self.workers is not None:
            return Share(structure, [([no_rows(leaf) for _ in sizes],) for leaf in leaves], self.place, 0, self.workers)
        return Share(structure, [(no_rows(leaf), sizes) for leaf in leaves], self.place, 0)


class BatchShareCursor(ShareCursor):
    """Holds the remaining steps of one batch. Its position is where that batch began, and the step within it.

    It also says how many passes have begun, because workers that go on from here share their files anew after them.
    """

    def __init__(self, shares: BatchShares, source: Cursor) -> None:
        self.shares, self.source = shares, source
        self.left: deque[Share] = deque()
        self.before: State | None = None
        self.step = 0

    def go_to(self, step: int) -> None:
        """Go to this step of the batch at the source's position."""
        if step and self._read():
            for _ in range(step):
                self.next()

    def _read(self) -> bool:
        self.before = None if self.shares.shared else self.source.state()
        one = self.source.pull_one()
        self.step = 0
        if one is not None:
            self.left.extend(self.shares.of_batch(one[0]))
        return one is not None

    def next(self) -> Share | None:
        if not (self.left or self._read()):
            return None
        self.step += 1
        return self.left.popleft()

    def next_run(self, count: int) -> Run | None:
        if self.left or self.shares.topology.num_workers > 1:
            return None
        begin = self.source.state()
        pulled = self.source.pull_run(count)
        if pulled is None:
            return None
        (columns, structure), size = flatten(pulled[0]), pulled[1]
        sizes = (size,) if self.shares.topology.num_replicas == 1 else self.shares.cut(size)[0][1]
        return Run(structure, columns, count, sizes, begin, self.source.num_passes, self.shares.place)

    def state(self) -> State:
        step, source = (self.step, self.before) if self.left else (0, self.source.state())
        return {"step": step, "source": source, "passes": self.source.num_passes}

    def fix(self) -> None:
        self.source.fix()

    @property
    def num_skipped(self) -> int:
        return self.source.num_skipped

    def close(self) -> None:
        self.source.close()


def _rows(array: np.ndarray, start: int, sizes: tuple[int, ...]) -> list[np.ndarray]:
    ends = [start + sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [array[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _check_no_datasets(leaves: list[Any], structure: Any) -> None:
    """Check that no component is a dataset, or the spec of one."""
    for i, leaf in enumerate(leaves):
        if hasattr(leaf, "element_spec"):
            raise DatasetError(
                f"{component_names(structure)[i]} of the dataset is a dataset itself, which replicas cannot share. Make elements "
                "of it first, as `window(3).flat_map(lambda window: window.batch(3))` does."
            )


def _check_sizes(shapes: list[tuple[int | None, ...]], structure: Any, num_replicas: int) -> None:
    """Check that every component has rows, and that all have the same number."""
    for i, shape in enumerate(shapes):
        if not shape:
            raise DatasetError(
                f"{component_names(structure)[i]} of the dataset is a scalar, which {num_replicas} replicas cannot "
                "share: every component needs the global batch as its leading dimension. "
                "Call `batch(global_batch_size)` on the dataset, after `enumerate` and `map`s that reduce a batch."
            )
    if len({shape[0] for shape in shapes if shape[0] is not None}) > 1:
        sizes = ", ".join(f"{name} has shape {shape}" for name, shape in zip(component_names(structure), shapes, strict=True))
        raise ElementError(
            f"All components of a global batch need the same leading size to be split over {num_replicas} replicas, "
            f"but {sizes}. If these are single examples, call `batch(global_batch_size)` on the dataset. If they are batches, zip "
            "the datasets before `batch`, or reshape the components in `map`."
        )
