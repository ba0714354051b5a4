"""The input plan: a printable value that says what each worker reads, and what each replica gets of it."""

import dataclasses
from typing import Any

from ..._display import short, table, titled
from ...errors import DatasetError
from ...replicas._topology import Topology
from .._options import AutoShardPolicy
from .._profile import InputProfile
from ..graph._graph import Node, known
from ..graph._structure import flatten
from ..transforms._ignore_errors import IgnoreErrors
from ..transforms.batches._batch import Batch
from ..transforms.elements._map import Map
from ..transforms.elements._stateful import Scan, TakeWhile
from ..transforms.memory._cache import Cache
from ..transforms.memory._prefetch import Prefetch
from ..transforms.mixtures._sample_from import Choose, Sample
from ._autoshard import Sharding, autoshard
from ._elastic import why_not_elastic
from ._rebatch import own_steps, worker_chunk

Steps = tuple[tuple[int, ...], ...]  # rows of a worker's replicas, for each step that one batch lasts


@dataclasses.dataclass(frozen=True)
class WorkerPlan:
    """What one worker reads.

    Args:
        replica_ids: The ids of its replicas.
        files: The names of its files, or None if it reads everything.
        steps: The rows of its replicas for each step of a full batch; empty if the batch size is not known.
        last_steps: The same for the last batch; empty if that is full or not known.
    """

    replica_ids: tuple[int, ...]
    files: tuple[str, ...] | None
    steps: Steps
    last_steps: Steps


@dataclasses.dataclass(frozen=True)
class InputPlan:
    """How a dataset is distributed. `Dataset.explain` returns this plan, and the strategies follow it.

    Args:
        policy: The policy: DATA, FILE or OFF.
        reason: The reason for this policy.
        batch_size: The number of rows of a global batch, or None if it is not known before the batch is read.
        last_batch_size: The number of rows of the last batch, if it is smaller and known.
        workers: The plan of each worker.
        bound: Why no other number of workers could continue from a saved position; None if others could.
        profile: How long the stages took, if that was asked for.
    """

    policy: AutoShardPolicy
    reason: str
    batch_size: int | None
    last_batch_size: int | None
    workers: tuple[WorkerPlan, ...]
    bound: str | None
    profile: InputProfile | None = None

    def __str__(self) -> str:
        size = "of unknown size" if self.batch_size is None else f"of {self.batch_size}"
        last = "" if self.last_batch_size is None else f", the last one of {self.last_batch_size}"
        num_replicas = sum(len(worker.replica_ids) for worker in self.workers)
        head = [
            f"Input plan: {_count(len(self.workers), 'worker')}, {_count(num_replicas, 'replica')}",
            f"  policy: {self.policy.name}, because {self.reason}",
            f"  global batches: {size}{last}",
            *([] if self.is_elastic else [f"  saved positions: continue with {self._these_workers} only, because {self.bound}"]),
        ]
        took = [] if self.profile is None else [str(self.profile)]
        return "\n".join([*head, *(f"  worker {i}: {_show(worker)}" for i, worker in enumerate(self.workers)), *took])

    @property
    def is_elastic(self) -> bool:
        """Whether any number of workers that can share the dataset could continue from a saved position."""
        return self.bound is None

    @property
    def _these_workers(self) -> str:
        return _count(len(self.workers), "worker")

    def _repr_html_(self) -> str:
        heads = ("worker", "replicas", "reads", "rows per batch")
        rows = [
            (str(i), *map(short, (", ".join(map(str, each.replica_ids)), _reads(each), _show_steps(each.steps) or "not known")))
            for i, each in enumerate(self.workers)
        ]
        return titled(f"Input plan: {self.policy.name}, because {self.reason}", table(rows, heads))

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as a dict that JSON can hold."""
        return {**dataclasses.asdict(self), "policy": self.policy.name, "is_elastic": self.is_elastic}


def input_plan(node: Node, policy: AutoShardPolicy, num_workers: int, replicas_per_worker: int) -> InputPlan:
    """Make the plan for a dataset of global batches.

    Raises:
        DatasetError: If it cannot be shared by this policy.
    """
    batch_size, last = batch_sizes(node)
    sharded = [autoshard(node, num_workers, worker, policy) for worker in range(num_workers)]
    sharding = sharded[0][1]
    last = last if sharding.files is None else None  # that depends on what the files hold
    topologies = [Topology(num_workers, worker, replicas_per_worker) for worker in range(num_workers)]
    workers = tuple(
        WorkerPlan(topology.local_replica_ids, its.files, cut_steps(batch_size, topology, its), cut_steps(last, topology, its))
        for topology, (_, its) in zip(topologies, sharded, strict=True)
    )
    return InputPlan(sharding.policy, sharding.reason, batch_size, last, workers, _bound(node, policy))


def _bound(node: Node, policy: AutoShardPolicy) -> str | None:
    """Why positions are bound to a number of workers. If two workers read everything, then more do, which have fewer files each."""
    try:
        sharding = autoshard(node, 2, 0, policy)[1]
    except DatasetError:
        return "others cannot share the data at all"
    if sharding.policy is AutoShardPolicy.OFF:
        return "each reads its own part"
    return None if sharding.shared else why_not_elastic(node)


def cut_steps(batch_size: int | None, topology: Topology, sharding: Sharding) -> Steps:
    """Return the rows of this worker's replicas, for each step that a batch lasts."""
    if batch_size is None:
        return ()
    if sharding.shared:
        return (worker_chunk(batch_size, topology)[1],)
    return tuple(sizes for _, sizes in own_steps(batch_size, topology))


def batch_sizes(node: Node) -> tuple[int | None, int | None]:
    """Return the rows of a global batch, and of the last one if it is smaller; None if they are not known."""
    batch, whole = node, True
    while isinstance(batch, Map | Prefetch | Cache | Scan | TakeWhile | IgnoreErrors):
        whole = whole and not isinstance(batch, TakeWhile | IgnoreErrors)  # these may leave out the last batch
        batch = batch.input
    if isinstance(batch, Sample | Choose):
        sizes = {batch_sizes(each)[0] for each in batch.choices}
        return (sizes.pop() if len(sizes) == 1 else None), None
    if isinstance(batch, Batch) and len(batch.sizes) == 1:
        size = batch.sizes[0]
        rest = batch.input.cardinality % size if known(batch.input.cardinality) and not batch.drop_remainder else 0
        return size, (rest or None) if whole else None
    sizes = {leaf.shape[0] if leaf.shape else None for leaf in flatten(node.spec)[0]}
    return (sizes.pop() if len(sizes) == 1 else None), None


def _show(worker: WorkerPlan) -> str:
    ids = ", ".join(map(str, worker.replica_ids))
    rows = f"; rows per batch: {_show_steps(worker.steps)}" if worker.steps else ""
    last = f"; of the last: {_show_steps(worker.last_steps)}" if worker.last_steps else ""
    return f"replica{'s' if len(worker.replica_ids) > 1 else ''} {ids}; reads {_reads(worker)}{rows}{last}"


def _reads(worker: WorkerPlan) -> str:
    return "everything" if worker.files is None else ", ".join(worker.files)


def _show_steps(steps: Steps) -> str:
    return ", then ".join(" + ".join(map(str, sizes)) for sizes in steps)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
