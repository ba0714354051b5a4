"""Auto-sharding: a pure rewrite of the graph that decides which worker reads what when several share a dataset.

Batches are cut afterwards, by the same rule under every policy. Under DATA, all workers see the same global batches and each
takes its chunks (`_rebatch.worker_chunk`); under FILE and OFF, a worker's batches are its own (`_rebatch.own_steps`).
"""

import dataclasses
import os
from collections.abc import Callable, Sequence

import numpy as np

from ...errors import DatasetError
from .._options import AutoShardPolicy
from ..files._file_names import FileNames, FileParts
from ..files._files import ReadFiles
from ..graph._graph import Node, rewrite
from ..sources._foreign import Foreign
from ..sources._sources import Rows
from ..transforms._cache_file import FileStore
from ..transforms._whole_files import ExampleFiles
from ..transforms.memory._cache import Cache, MemoryStore
from ..transforms.mixtures._combine import Zip
from ..transforms.mixtures._interleave import Interleave
from ..transforms.mixtures._sample_from import Sample
from ..transforms.order._global_shuffle import GlobalShuffle
from ..transforms.order._group_shuffle import GroupShuffle
from ._facts import PipelineFacts, Source, names_of, num_files

_OF_ZIP = "`zip` pairs elements by their places, which shares of files would change"
_OF_MIXTURES = "`sample_from_datasets` draws one sequence, whatever the number of workers"
_OF_GLOBAL_SHUFFLES = "`global_shuffle` gives one order, whatever the number of workers"


@dataclasses.dataclass(frozen=True)
class Sharding:
    """What one worker reads, and why. ``policy`` is DATA, FILE or OFF, and ``files`` is None if it reads everything."""

    policy: AutoShardPolicy
    reason: str
    files: tuple[str, ...] | None = None

    @property
    def shared(self) -> bool:
        """Whether all workers see the same batches and share each of them."""
        return self.policy is AutoShardPolicy.DATA


@dataclasses.dataclass(frozen=True)
class Division:
    """How some workers share a pipeline, which is the same for all of them: by a policy, DATA, FILE or OFF, for a reason."""

    facts: PipelineFacts
    num_workers: int
    policy: AutoShardPolicy
    reason: str

    def of_worker(self, index: int) -> tuple[Node, Sharding]:
        """Return the graph that a worker opens, and what that means."""
        node = self.facts.node
        if self.num_workers == 1 or self.policy is AutoShardPolicy.OFF:
            return node, Sharding(self.policy, self.reason)
        if self.policy is AutoShardPolicy.DATA:
            return in_agreement(node), Sharding(self.policy, self.reason)

        def own_files(source: Node) -> Node:
            if isinstance(source, Rows):
                tables = tuple(table[index :: self.num_workers] for table in source.tables)
                return dataclasses.replace(source, size=len(tables[0]), tables=tables)
            assert isinstance(source, Foreign)
            own = source.of_worker(self.num_workers, index)
            assert own is not None, "decided before"
            return own

        files = tuple(name for source in self.facts.sources for name in names_of(own_files(source.node)))
        suffix = f".worker-{index}-of-{self.num_workers}"
        return _rewrite_sources(node, own_files, suffix), Sharding(self.policy, self.reason, files)


def divided(facts: PipelineFacts, num_workers: int, policy: AutoShardPolicy) -> Division:
    """Return how ``num_workers`` share a pipeline.

    Args:
        facts: The facts of the graph that yields global batches.
        num_workers: The number of workers that share it.
        policy: The policy. AUTO means FILE if everything is read from files and there are enough of them, else for DATA.

    Raises:
        DatasetError: If the policy is FILE and there are fewer files than workers, or a source cannot be shared.

    >>> from replicant.data import Dataset
    >>> divided(PipelineFacts(Dataset.range(8).batch(4).node), 2, AutoShardPolicy.AUTO).of_worker(0)[1]
    Sharding(policy=<AutoShardPolicy.DATA: 2>, reason='the dataset reads no files', files=None)
    """
    by_parts = facts
    if policy in (AutoShardPolicy.AUTO, AutoShardPolicy.FILE):
        by_parts = facts.of_graph(rewrite(facts.node, lambda each: _in_parts(each, num_workers)))
    if policy is AutoShardPolicy.AUTO and num_workers > 1 and facts.of(Sample):
        _check_same(by_parts.sources, num_workers)
        return Division(facts, num_workers, AutoShardPolicy.DATA, _OF_MIXTURES)
    decided, reason = _decided(by_parts.sources, num_workers, policy)
    if policy is AutoShardPolicy.AUTO and decided is AutoShardPolicy.FILE and (why := _why_one_sequence(facts)):
        return Division(facts, num_workers, AutoShardPolicy.DATA, why)
    return Division(by_parts if decided is AutoShardPolicy.FILE else facts, num_workers, decided, reason)


def _decided(sources: Sequence[Source], num_workers: int, policy: AutoShardPolicy) -> tuple[AutoShardPolicy, str]:
    """The decision for DATA, FILE or OFF, and the reason."""
    if policy in (AutoShardPolicy.OFF, AutoShardPolicy.HINT):
        return AutoShardPolicy.OFF, f"AutoShardPolicy.{policy.name} was asked for"
    if num_workers == 1:
        return AutoShardPolicy.DATA, "there is one worker, which reads everything"
    if policy is AutoShardPolicy.AUTO and all(source.has_files and source.read for source in sources):
        fewest = min(num_files(source.node) for source in sources)
        if fewest >= num_workers:
            parts = " row groups" if any(isinstance(source.node, FileParts) for source in sources) else ""
            return AutoShardPolicy.FILE, f"everything is read from files, and {fewest}{parts} are enough for {num_workers} workers"
    if policy is AutoShardPolicy.FILE:
        _check_files(sources, num_workers)
        return policy, "AutoShardPolicy.FILE was asked for"
    _check_same(sources, num_workers)
    if policy is AutoShardPolicy.DATA:
        return policy, "AutoShardPolicy.DATA was asked for"
    return AutoShardPolicy.DATA, _why_not_files(sources, num_workers)


def _why_one_sequence(facts: PipelineFacts) -> str | None:
    """Why shares of files would be other elements, or in another order, than all workers are meant to see; None if they are not."""
    if facts.of(Zip):
        return _OF_ZIP
    return _OF_GLOBAL_SHUFFLES if facts.of(GlobalShuffle, GroupShuffle) else None


def _why_not_files(sources: Sequence[Source], num_workers: int) -> str:
    for source in sources:
        if isinstance(source.node, Foreign):
            return f"a {source.node.kind} is shared by files only if AutoShardPolicy.FILE is asked for"
    if any(isinstance(source.node, ExampleFiles) for source in sources):
        return "each file is one example, and examples are shared by batches"
    with_files = [source.node for source in sources if source.has_files and source.read]
    if not with_files:
        return "the dataset reads no files"
    if len(with_files) < len(sources):
        other = next(source.node for source in sources if not (source.has_files and source.read))
        return f"not everything is read from files: {other.label} is not"
    return f"{_count(min(map(num_files, with_files)))} cannot be shared among {num_workers} workers"


def _check_files(sources: Sequence[Source], num_workers: int) -> None:
    """Check that every source can be shared by files.

    Raises:
        DatasetError: If one cannot.
    """
    remedy = (
        "Set `options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA`, so that every worker reads everything and "
        "keeps its share of each batch."
    )
    for source in sources:
        node = source.node
        if isinstance(node, Foreign) and node.of_worker(num_workers, 0) is not None:
            continue
        if not source.has_files:
            raise DatasetError(
                f"AutoShardPolicy.FILE shares the files of a dataset among the {num_workers} workers, but {node.label} reads "
                f"0 files. {remedy}"
            )
        if num_files(node) < num_workers:
            raise DatasetError(
                f"AutoShardPolicy.FILE cannot share {_count(num_files(node))} among {num_workers} workers: each needs "
                f"at least one. Write the data to {num_workers} files or more. Or: {remedy}"
            )


def _check_same(sources: Sequence[Source], num_workers: int) -> None:
    for source in sources:
        node = source.node
        if isinstance(node, Foreign) and not node.same_everywhere:
            raise DatasetError(
                f"A {node.kind} cannot be shared among {num_workers} workers: each worker would draw its own elements, and "
                "some would be seen twice, others never. Use `strategy.distribute_datasets_from_function(fn)`, where "
                "`fn(context)` makes the share of worker `context.input_pipeline_id` of `context.num_input_pipelines`. Or "
                "set AutoShardPolicy.OFF if every worker's own share is what it yields."
            )


def _rewrite_sources(node: Node, fn: Callable[[Node], Node], suffix: str) -> Node:
    """The graph with other sources. Its caches of earlier passes move to other places."""
    if not node.inputs:
        return fn(node)
    inputs = tuple(_rewrite_sources(child, fn, suffix) for child in node.inputs)
    return _with_inputs(node, inputs, suffix)


def _with_inputs(node: Node, inputs: tuple[Node, ...], suffix: str) -> Node:
    if not isinstance(node, Cache):
        return node.with_inputs(*inputs)
    own_file = isinstance(node.store, FileStore)
    store = FileStore(f"{node.store.path}{suffix}", inputs[0], node.method) if isinstance(node.store, FileStore) else MemoryStore()
    return dataclasses.replace(node, inputs=inputs, store=store, name=node.name + suffix if own_file else node.name)


def in_agreement(node: Node) -> Node:
    """Return the graph that all workers read in the same order, even inside the datasets that `interleave` makes."""
    return rewrite(node, lambda each: dataclasses.replace(each, alike=True) if isinstance(each, Interleave) else each)


def _in_parts(node: Node, num_workers: int) -> Node:
    """The node, changed to read row groups instead of whole files if there are too few files but enough row groups."""
    if not isinstance(node, ReadFiles) or type(node.input) is not FileNames or node.input.size >= num_workers:
        return node
    (names,) = node.input.tables
    counts = [node.form.count_parts(os.fsdecode(name)) for name in names]
    if sum(counts) < num_workers or sum(counts) == len(names):
        return node
    tables = np.repeat(names, counts), np.concatenate([np.arange(count) for count in counts])
    return node.with_inputs(FileParts(size=sum(counts), tables=tables))


def _count(number: int) -> str:
    return f"{number} file{'' if number == 1 else 's'}"
