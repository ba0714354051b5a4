"""Which pipelines any number of workers can read on, after some workers have read a part of them by files.

The workers that go on read what each of the others had left, all of it to the same place: the end of a pass of the outermost
`repeat`, if it can be seen from the end of the pipeline, else the end of the data. There, the files are shared anew.
"""

import dataclasses
from collections.abc import Callable

from ..graph._graph import INFINITE, Node, nodes, sample
from ..sources._foreign import Foreign
from ..transforms.batches._batch import Batch, Unbatch
from ..transforms.batches._padded import PaddedBatch
from ..transforms.elements._index import Repeat, Take
from ..transforms.elements._map import Filter, Map
from ..transforms.memory._prefetch import Prefetch
from ..transforms.mixtures._combine import Zip
from ..transforms.mixtures._interleave import Interleave
from ..transforms.order._nested_orders import NestedOrders
from ..transforms.order._shuffle import Shuffle

# They lose nothing if their input ends after a pass, and begin anew with the next. Others count or remember over passes.
_OPEN = frozenset({Batch, Filter, Interleave, Map, PaddedBatch, Prefetch, Shuffle, Unbatch})


def repeat_of(node: Node) -> Repeat | None:
    """Return the `repeat` between whose passes the files can be shared anew, or None if there is no such place.

    >>> from replicant.data import Dataset
    >>> repeat_of(Dataset.range(8).repeat(2).batch(4).node).label
    'repeat(2)'
    >>> repeat_of(Dataset.range(8).repeat(2).batch(4, drop_remainder=True).node) is None
    True
    """
    last = _last_closed(node)
    return last if isinstance(last, Repeat) else None


def with_repeat(node: Node, change: Callable[[Repeat], Node]) -> Node:
    """Return the graph with another node in place of the one that `repeat_of` returns."""
    if isinstance(node, Repeat):
        return change(node)
    return node.with_inputs(with_repeat(node.inputs[0], change))


def why_not_elastic(node: Node) -> str | None:
    """Return why no other number of workers can read on what some read by files; None if any number can."""
    foreign = next((each for each in nodes(node) if isinstance(each, Foreign)), None)
    if foreign is not None:
        return f"each has a part of a {foreign.kind}, which its library makes"
    last = _last_closed(node)
    repeated = isinstance(last, Repeat)
    one_pass = with_repeat(node, lambda each: dataclasses.replace(each, count=1)) if repeated else node
    if not _is_endless(one_pass):
        return None
    if repeated or not any(isinstance(each, Repeat) and each.count == INFINITE for each in nodes(node)):
        return "each reads its own part, of which one pass has no end"
    return f"each repeats its own part without end, and {last.label} goes on from one pass to the next"


def _last_closed(node: Node) -> Node:
    """The last node that may lose something, or go on with the next pass, where a pass ends."""
    while type(node) in _OPEN and not (isinstance(node, Batch) and node.drop_remainder):
        node = node.inputs[0]
    return node


def _is_endless(node: Node) -> bool:
    """Whether the elements may have no end."""
    if isinstance(node, Take):
        return False
    if isinstance(node, Repeat) and node.count == INFINITE:
        return True
    if isinstance(node, Zip):
        return all(map(_is_endless, node.inputs))
    if isinstance(node, Interleave) and (element := sample(node.input)) is not None:
        made = node.child(element, NestedOrders())
        if made.cardinality == INFINITE or _is_endless(made):
            return True
    return any(map(_is_endless, node.inputs))
