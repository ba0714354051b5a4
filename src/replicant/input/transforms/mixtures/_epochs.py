"""How often each source of a mixture was read, from a position."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from ...graph._graph import Node, State, known, rewrite
from ..elements._index import Repeat
from ._sample_from import Choose, Sample


def epochs_by_source(graphs: Iterable[Node], position: State) -> dict[str, float]:
    """Return how many passes over each source the elements make up that came before a position.

    Sources whose length is not known count whole passes of their `repeat`. Each is called by its number, with that of the mixture
    before it if there are several. Datasets of weight 0 are left out, and so are mixtures inside functions, as of `flat_map`.

    >>> from replicant.data import Dataset
    >>> parts = [Dataset.range(4).repeat(), Dataset.range(10).repeat()]
    >>> dataset = Dataset.choose_from_datasets(parts, Dataset.from_tensor_slices([0, 1, 0]).repeat()).batch(3)
    >>> iterator = iter(dataset)
    >>> _ = [next(iterator) for _ in range(5)]
    >>> epochs_by_source([dataset.node], iterator.state())
    {'0': 2.5, '1': 0.5}
    """
    mixtures = [each for graph in graphs for each in _mixtures(graph)]
    states = list(_states(position))
    if len(mixtures) != len(states):  # functions make some of them
        return {}
    found: dict[str, float] = {}
    for number, (mixture, state) in enumerate(zip(mixtures, states, strict=True)):
        numbers = mixture.numbers if isinstance(mixture, Sample) else range(len(mixture.choices))
        for place, (source, choice) in enumerate(zip(numbers, mixture.choices, strict=True)):
            name = f"{source}" if len(mixtures) == 1 else f"{number}.{source}"
            found[name] = _epochs(choice, state, place)
    return found


def _mixtures(node: Node) -> Iterator[Choose | Sample]:
    """Outer ones first, as in positions."""
    if isinstance(node, Choose | Sample):
        yield node
    for each in node.inputs:
        yield from _mixtures(each)


def _states(position: Any) -> Iterator[State]:
    if isinstance(position, dict):
        if "given_by_source" in position:
            yield position
        position = list(position.values())
    if isinstance(position, list | tuple):
        for each in position:
            yield from _states(each)


def _epochs(choice: Node, state: State, place: int) -> float:
    size = rewrite(choice, lambda node: dataclasses.replace(node, count=1) if isinstance(node, Repeat) else node).cardinality
    if known(size) and size > 0:
        return state["given_by_source"][place] / size
    begun = state["passes_by_source"][place]
    return float(begun if place in state["ended"] else max(begun - 1, 0))
