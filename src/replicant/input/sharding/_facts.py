"""What is known of a pipeline before it is read: whoever shares it, plans it or goes on with it asks here."""

import dataclasses
import functools
import os
from typing import TypeVar

from ..files._file_names import FileNames, FileParts
from ..files._files import ReadFiles
from ..graph._graph import Node, known, nodes
from ..graph._structure import STRING, flatten
from ..sources._sources import Rows
from ..transforms._ignore_errors import IgnoreErrors
from ..transforms.batches._batch import Batch
from ..transforms.elements._map import Map
from ..transforms.elements._stateful import Scan, TakeWhile
from ..transforms.memory._cache import Cache
from ..transforms.memory._prefetch import Prefetch
from ..transforms.mixtures._interleave import Interleave
from ..transforms.mixtures._sample_from import Choose, Sample
from ._elastic import why_not_elastic

_Kind = TypeVar("_Kind", bound=Node)


@dataclasses.dataclass(frozen=True)
class Source:
    """A node without inputs. ``read`` says that its elements name files which are read later."""

    node: Node
    read: bool

    @property
    def has_files(self) -> bool:
        return isinstance(self.node, FileNames) or (self.read and _is_named(self.node))


class PipelineFacts:
    """The facts of one graph. Each is found once, when somebody first asks, because functions of the user may be called for it.

    Args:
        node: The graph that yields global batches.
    """

    def __init__(self, node: Node) -> None:
        self.node = node

    def of_graph(self, node: Node) -> "PipelineFacts":
        """Return the facts of a rewritten graph, which are these if nothing has changed."""
        return self if node is self.node else PipelineFacts(node)

    @functools.cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, inputs first."""
        return tuple(nodes(self.node))

    def of(self, *kinds: type[_Kind]) -> list[_Kind]:
        """Return the nodes of these kinds."""
        return [each for each in self.nodes if isinstance(each, kinds)]

    @functools.cached_property
    def sources(self) -> list[Source]:
        """The nodes without inputs, in order."""
        return _sources(self.node)

    @functools.cached_property
    def files(self) -> list[str]:
        """The names of the files that are read, as far as sources name them."""
        return [name for source in self.sources if source.has_files for name in names_of(source.node)]

    @functools.cached_property
    def batch_sizes(self) -> tuple[int | None, int | None]:
        """The rows of a global batch, and of the last one if it is smaller; None if they are not known."""
        return _batch_sizes(self.node)

    @functools.cached_property
    def why_not_elastic(self) -> str | None:
        """Why no other number of workers can read on what some read by files; None if any number can."""
        return why_not_elastic(self.node)


def _sources(node: Node, read: bool = False) -> list[Source]:
    if not node.inputs:
        return [Source(node, read)]
    read = read or _reads(node)
    return [source for child in node.inputs for source in _sources(child, read)]


def _reads(node: Node) -> bool:
    """Whether a node reads the files that its input names."""
    if isinstance(node, Interleave):
        first = node.first()
        return first is not None and any(map(_reads, nodes(first)))
    return isinstance(node, ReadFiles)


def _batch_sizes(node: Node) -> tuple[int | None, int | None]:
    batch, whole = node, True
    while isinstance(batch, Map | Prefetch | Cache | Scan | TakeWhile | IgnoreErrors):
        whole = whole and not isinstance(batch, TakeWhile | IgnoreErrors)  # these may leave out the last batch
        batch = batch.input
    if isinstance(batch, Sample | Choose):
        sizes = {_batch_sizes(each)[0] for each in batch.choices}
        return (sizes.pop() if len(sizes) == 1 else None), None
    if isinstance(batch, Batch) and len(batch.sizes) == 1:
        size = batch.sizes[0]
        rest = batch.input.cardinality % size if known(batch.input.cardinality) and not batch.drop_remainder else 0
        return size, (rest or None) if whole else None
    sizes = {leaf.shape[0] if leaf.shape else None for leaf in flatten(node.spec)[0]}
    return (sizes.pop() if len(sizes) == 1 else None), None


def _is_named(node: Node) -> bool:
    return isinstance(node, Rows) and any(leaf.dtype == STRING for leaf in flatten(node.spec)[0])


def names_of(node: Node) -> list[str]:
    """Return the names of the files, or parts of them, that a source has; its label if it is not a list of names."""
    if not isinstance(node, Rows):
        return [node.label]
    if isinstance(node, FileParts):
        return [f"{os.fsdecode(name)} (row group {part})" for name, part in zip(*node.tables, strict=True)]
    specs = flatten(node.spec)[0]
    return [os.fsdecode(name) for table, spec in zip(node.tables, specs, strict=True) if spec.dtype == STRING for name in table]


def num_files(node: Node) -> int:
    """Return how many files, or parts of them, a source may name."""
    return node.size if isinstance(node, Rows) else 0
