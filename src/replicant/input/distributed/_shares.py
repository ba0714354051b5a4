"""What this worker's replicas get in each step, before it is placed on their devices: `BatchShares` or `ElementShares`."""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from ...errors import DatasetError, ElementError
from ...replicas._topology import Topology
from ...runtime._jax_dtypes import in_jax_dtype
from ..graph._graph import Node, State
from ..graph._structure import TensorSpec, component_names, flatten

# Receives this worker's rows of one component in replica order, and the number of rows for each of its replicas. If there
# is only one replica in all, it receives the whole component; the sizes are then its leading size, or () for a scalar.
# Returns what the user sees.
Place = Callable[[np.ndarray, tuple[int, ...]], Any]


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


def _in_jax_dtype(column: Any, structure: Any, number: int) -> Any:
    """Return a component, or a list of those of each replica, in the dtype that JAX gives it."""
    if isinstance(column, list):
        return [_in_jax_dtype(each, structure, number) for each in column]

    def name() -> str:
        return f"{component_names(structure)[number]} of the dataset"

    return in_jax_dtype(column, name, error=ElementError, mend="in the dataset, with `map`")


def no_rows(spec: TensorSpec) -> np.ndarray:
    """Return an array without rows."""
    return np.empty((0, *(size or 0 for size in spec.shape[1:])), spec.dtype)


def known_spec(spec: Any) -> tuple[list[TensorSpec], Any]:
    """Return the leaves and the structure of a spec.

    Raises:
        DatasetError: If it is not known.
    """
    if spec is None:
        raise DatasetError(
            "This worker has no elements, so it cannot know what the other workers' elements look like. Give every worker at "
            "least one element, or declare their spec: `Dataset.from_generator(fn, output_signature=...)`."
        )
    return flatten(spec)
