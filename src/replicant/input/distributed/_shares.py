"""What this worker's replicas get in each step, before it is placed on their devices.

`BatchShares` cuts global batches; `ElementShares` gives every replica the next element, unchanged.
"""

import abc
import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from ...errors import DatasetError, ElementError
from ...replicas._topology import Topology
from ...runtime._jax_dtypes import in_jax_dtype
from ..graph._graph import INFINITE, UNKNOWN, Cursor, Node, State, describe, known
from ..graph._structure import PerReplicaSpec, TensorSpec, component_names, flatten, map_leaves, show_structure
from ..sharding._facts import PipelineFacts
from ..sharding._rebatch import chunk_sizes, own_steps, static_chunk_size, worker_chunk

# Receives this worker's rows of one component in replica order, and the number of rows for each of its replicas. If there
# is only one replica in all, it receives the whole component; the sizes are then its leading size, or () for a scalar.
# Returns what the user sees.
Place = Callable[[np.ndarray, tuple[int, ...]], Any]

# Receives one component of the elements of this worker's replicas, in replica order. Returns what the user sees.
PlaceEach = Callable[[Sequence[Any]], Any]


class WorkersPlace(Protocol):
    """Places batches on the devices of several workers."""

    def whole(self, leaf: np.ndarray, sizes: tuple[int, ...]) -> Any:
        """Place one component of a batch that all workers have; replica r gets `sizes[r]` rows."""
        ...

    def form(self, columns: Sequence[Sequence[Any]]) -> Any:
        """Return what the other workers have to know about components of which each has the parts of its own replicas."""
        ...

    def together(self, columns: Sequence[Sequence[Any]], forms: Sequence[Any] | None = None) -> list[Any]:
        """Place such components; all workers call it in the same step. Without the `forms` of all workers, it exchanges them."""
        ...

    def states(self, state: State) -> list[State]:
        """Return the states that all workers passed, in worker order."""
        ...


MISSING = object()  # stands for the element of a replica that gets none


@dataclasses.dataclass
class Share:
    """One step of this worker: for each component, the arguments of the function that places it.

    Raises:
        ElementError: If a number is beyond the dtype that JAX gives it.
    """

    structure: Any
    parts: list[tuple[Any, ...]]
    place: Callable[..., Any]
    num_examples: int
    workers: WorkersPlace | None = None  # places all components at once, instead of `place`

    def __post_init__(self) -> None:
        self.parts = [(_in_jax_dtype(part[0], self.structure, i), *part[1:]) for i, part in enumerate(self.parts)]

    def placed(self, forms: Sequence[Any] | None = None) -> Any:
        """Return what the user sees. `forms` are those of this step on all workers, if they are known."""
        if self.workers is not None:
            return jax.tree_util.tree_unflatten(self.structure, self.workers.together(self._columns(), forms))
        return jax.tree_util.tree_unflatten(self.structure, [self.place(*part) for part in self.parts])

    def form(self) -> Any:
        """Return what other workers have to know about this step, or None if that is nothing."""
        return None if self.workers is None else self.workers.form(self._columns())

    @property
    def num_bytes(self) -> int:
        """The memory that its rows take on the host."""
        columns = [column if isinstance(column, list) else [column] for column, *_ in self.parts]
        return sum(getattr(part, "nbytes", 0) for column in columns for part in column)

    def _columns(self) -> list[Any]:
        return [column for (column,) in self.parts]


@dataclasses.dataclass
class Run:
    """Some steps of the only worker, read at once.

    Its positions are those that a cursor reaches which reads so many steps, one after the other, from where the run begins.

    Args:
        structure: That of each step.
        columns: For each component, the rows of all steps.
        count: The number of steps.
        sizes: The numbers of rows that each step has for the replicas, or for the only one.
        begin: The position of the source before the run.
        passes: The passes that had begun after it.
        place: Places one component of a step.
    """

    structure: Any
    columns: list[np.ndarray]
    count: int
    sizes: tuple[int, ...]
    begin: State
    passes: int
    place: Place

    def __post_init__(self) -> None:
        self.columns = [_in_jax_dtype(column, self.structure, i) for i, column in enumerate(self.columns)]

    def after(self, count: int) -> State:
        """Return the position after the first `count` steps."""
        return {"step": count, "source": self.begin, "passes": self.passes}

    def placed(self, step: int) -> list[Any]:
        """Return the components of one step, placed one by one."""
        rows = sum(self.sizes)
        return [self.place(column[step * rows : (step + 1) * rows], self.sizes) for column in self.columns]


class ShareCursor(abc.ABC):
    """A position in the steps of this worker."""

    @abc.abstractmethod
    def next(self) -> Share | None:
        """Return the next step, or None at the end and from then on."""

    def next_run(self, count: int) -> Run | None:
        """Return the next `count` steps, all of one size; None, and nothing has moved, if they have to be asked for one by one."""
        del count

    @abc.abstractmethod
    def state(self) -> State:
        """Return the position."""

    def fix(self) -> None:
        """Do what `Cursor.fix` does."""
        return

    @property
    @abc.abstractmethod
    def num_skipped(self) -> int:
        """The number of records that could not be read, and were left out."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stop what runs in the background."""


class Shares(abc.ABC):
    """The steps of this worker, and what is known about them."""

    topology: Topology
    workers: WorkersPlace | None

    @property
    @abc.abstractmethod
    def nodes(self) -> tuple[Node, ...]:
        """The graphs that are read."""

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """The pipeline on one line, the same on all workers if they share one."""

    @property
    @abc.abstractmethod
    def spec(self) -> Any:
        """Structure of `PerReplicaSpec`, or of `TensorSpec` with one replica."""

    @property
    @abc.abstractmethod
    def cardinality(self) -> int:
        """The number of steps, INFINITE or UNKNOWN."""

    @property
    @abc.abstractmethod
    def ends_everywhere(self) -> bool:
        """Whether all workers have the same number of steps, whatever the data."""

    @property
    def asks_others(self) -> bool:
        """Whether placing a step requires an exchange with the other workers."""
        return False

    @abc.abstractmethod
    def open(self, state: State | None = None) -> ShareCursor:
        """Return a cursor at the beginning of a new pass, or at a position."""

    @abc.abstractmethod
    def nothing(self) -> Share:
        """Return a step without rows."""


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
        leaves, structure = _known(self.whole.spec)
        sizes = (0,) * self.topology.replicas_per_worker
        if self.workers is not None:
            return Share(structure, [([_no_rows(leaf) for _ in sizes],) for leaf in leaves], self.place, 0, self.workers)
        return Share(structure, [(_no_rows(leaf), sizes) for leaf in leaves], self.place, 0)


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


@dataclasses.dataclass(frozen=True)
class ElementShares(Shares):
    """The next element for each replica in turn, unchanged.

    Args:
        sources: One graph that all replicas of this worker read from, or one for each.
        topology: The workers and replicas.
        place: Places one component.
        workers: Places batches, instead of `place`, if devices of several workers take part.
    """

    sources: tuple[Node, ...]
    topology: Topology
    place: PlaceEach
    workers: WorkersPlace | None = None

    @property
    def asks_others(self) -> bool:
        return self.workers is not None

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.sources

    @property
    def description(self) -> str:
        return " | ".join(map(describe, self.sources))

    @property
    def element_spec(self) -> Any:
        """The spec of the elements."""
        return next((node.spec for node in self.nodes if node.spec is not None), None)

    @property
    def spec(self) -> Any:
        if self.topology.num_replicas == 1 or self.element_spec is None:
            return self.element_spec
        return map_leaves(lambda leaf: PerReplicaSpec(leaf, self.topology.replicas_per_worker), self.element_spec)

    @property
    def cardinality(self) -> int:
        sizes = [node.cardinality for node in self.nodes]
        if INFINITE in sizes or UNKNOWN in sizes:
            return INFINITE if INFINITE in sizes else UNKNOWN
        return max(sizes) if len(sizes) > 1 else -(-sizes[0] // self.topology.replicas_per_worker)

    @property
    def ends_everywhere(self) -> bool:
        return self.topology.num_workers == 1

    def open(self, state: State | None = None) -> "ElementShareCursor":
        states = state["sources"] if state else [None] * len(self.nodes)
        return ElementShareCursor(self, [node.open(each) for node, each in zip(self.nodes, states, strict=True)])

    def of_elements(self, elements: list[Any]) -> Share:
        """Return the step with one element, or `MISSING`, per replica; at least one is an element."""
        flat = [flatten(element) for element in elements if element is not MISSING]
        first, structure = flat[0]
        for _, its in flat:
            if its != structure:
                raise ElementError(
                    "distribute_datasets_from_function: the elements for the replicas of one step must have the same structure. "
                    f"Found {show_structure(structure)} and {show_structure(its)}."
                )
        rest = iter(leaves for leaves, _ in flat)
        nothing = [no_rows_like(leaf) for leaf in first]
        rows = [nothing if element is MISSING else next(rest) for element in elements]
        num_examples = sum(np.shape(leaves[0])[0] if np.ndim(leaves[0]) else 1 for leaves, _ in flat if leaves)
        columns = [(list(column),) for column in zip(*rows, strict=True)]
        return Share(structure, columns, self.place, num_examples, self.workers)

    def nothing(self) -> Share:
        leaves, structure = _known(self.element_spec)
        count = self.topology.replicas_per_worker
        return Share(structure, [([_no_rows(leaf)] * count,) for leaf in leaves], self.place, 0, self.workers)


class ElementShareCursor(ShareCursor):
    """Pulls one element per replica."""

    def __init__(self, shares: ElementShares, sources: list[Cursor]) -> None:
        self.shares, self.sources = shares, sources

    def next(self) -> Share | None:
        count = self.shares.topology.replicas_per_worker
        asked = self.sources if len(self.sources) > 1 else self.sources * count
        elements = [MISSING if (one := source.pull_one()) is None else one[0] for source in asked]
        return None if all(element is MISSING for element in elements) else self.shares.of_elements(elements)

    def state(self) -> State:
        return {"sources": [source.state() for source in self.sources]}

    @property
    def num_skipped(self) -> int:
        return sum(source.num_skipped for source in self.sources)

    def close(self) -> None:
        for source in self.sources:
            source.close()


def no_rows_like(leaf: Any) -> np.ndarray:
    """Return the empty share of a replica where others get ``leaf``; for a scalar it is an empty vector."""
    array = np.asarray(leaf, dtype=object if isinstance(leaf, str | bytes) else None)
    return np.empty((0, *array.shape[1:]), array.dtype)


def _in_jax_dtype(column: Any, structure: Any, number: int) -> Any:
    """Return a component, or a list of those of each replica, in the dtype that JAX gives it."""
    if isinstance(column, list):
        return [_in_jax_dtype(each, structure, number) for each in column]

    def name() -> str:
        return f"{component_names(structure)[number]} of the dataset"

    return in_jax_dtype(column, name, error=ElementError, mend="in the dataset, with `map`")


def _rows(array: np.ndarray, start: int, sizes: tuple[int, ...]) -> list[np.ndarray]:
    ends = [start + sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [array[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _no_rows(spec: TensorSpec) -> np.ndarray:
    return np.empty((0, *(size or 0 for size in spec.shape[1:])), spec.dtype)


def _known(spec: Any) -> tuple[list[TensorSpec], Any]:
    if spec is None:
        raise DatasetError(
            "This worker has no elements, so it cannot know what the other workers' elements look like. Give every worker at "
            "least one element, or declare their spec: `Dataset.from_generator(fn, output_signature=...)`."
        )
    return flatten(spec)


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
