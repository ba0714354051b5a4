"""Steps of an input function's elements: every replica in turn gets the next one, unchanged."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import ElementError
from ...replicas._topology import Topology
from ..graph._graph import INFINITE, UNKNOWN, Cursor, Node, State, describe
from ..graph._structure import PerReplicaSpec, flatten, map_leaves, show_structure
from ._shares import Share, ShareCursor, Shares, WorkersPlace, known_spec, no_rows

# Receives one component of the elements of this worker's replicas, in replica order. Returns what the user sees.
PlaceEach = Callable[[Sequence[Any]], Any]
MISSING = object()  # stands for the element of a replica that gets none


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
        leaves, structure = known_spec(self.element_spec)
        count = self.topology.replicas_per_worker
        return Share(structure, [([no_rows(leaf)] * count,) for leaf in leaves], self.place, 0, self.workers)


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
