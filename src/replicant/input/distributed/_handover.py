"""How workers go on from a position that others saved: another number of workers, or with another number of replicas.

A position under DATA means the same for everyone. A position under FILE holds one position for each worker, of its own files. All
who go on read what each of these workers had left, one worker's after the other's, and share every batch, as under DATA. That lasts
until the end of the last pass that any of the workers had begun (`_elastic`), so every example is seen once in each pass. Then each
reads its own files, if there are more passes.
"""

import dataclasses

from ...errors import DatasetError
from .._options import AutoShardPolicy
from ..graph._graph import Node, State
from ..sharding._autoshard import divided, in_agreement
from ..sharding._elastic import repeat_of, with_repeat
from ..sharding._rest import Rest
from ._batch_shares import BatchShares
from ._shares import Shares

_REMEDY = "Use as many workers as before, or AutoShardPolicy.DATA throughout, with which the number does not matter."


@dataclasses.dataclass(frozen=True)
class Leg:
    """What the workers read in one go: their own pass or the rest of one, what other workers had left, or what comes after that.

    Args:
        whole: The pass that the workers would begin.
        shares: What is read.
        begin: The position where it begins, None for the beginning.
        resharded: Whether the pass began with other workers, whose rest has been read.
        left_by: Whose rest this is, if it is one: the number of workers, that of replicas for each, and the passes that had begun.
    """

    whole: Shares
    shares: Shares
    begin: State | None = None
    resharded: bool = False
    left_by: State | None = None

    @property
    def has_other_steps(self) -> bool:
        """Whether other workers began this pass, so that its number of steps is not the dataset's cardinality."""
        return self.left_by is not None or self.resharded

    def following(self) -> "Leg | None":
        """Return what the workers read after this, or None if it is the end."""
        if self.left_by is None:
            return None
        num_passes, node = self.left_by["passes"], _batches(self.whole).node
        repeat = repeat_of(node)
        if repeat is None or num_passes == repeat.count:
            return None
        node = with_repeat(node, lambda repeat: dataclasses.replace(repeat, first=num_passes))
        return Leg(self.whole, dataclasses.replace(_batches(self.whole), node=node), resharded=True)

    def position(self, step: int, share: State) -> State:
        """Return a position, with which `leg_at` goes on, from this worker's own in its shares. It may take an exchange."""
        shares, begun = self.shares, {"step": step, **({"resharded": True} if self.resharded else {})}
        if self.left_by is not None:
            return {**begun, "share": share, "rest": self.left_by}
        if shares.workers is None or not shares.asks_others:
            return {**begun, "share": share}
        of_files = {"by_files": shares.by_files} if isinstance(shares, BatchShares) else {}
        replicas = shares.topology.replicas_per_worker
        return {**begun, "workers": shares.workers.states(share), "replicas_per_worker": replicas, **of_files}


def leg_at(whole: Shares, position: State | None) -> Leg:
    """Return what is read at a position, or from the beginning of a pass if it is None.

    Raises:
        DatasetError: If only other workers can go on from there.
    """
    if position is None:
        return Leg(whole, whole)
    resharded, rest = bool(position.get("resharded")), rest_at(whole, position)
    if rest is not None:
        left_by, begin = rest
        return Leg(whole, _left(_batches(whole), left_by), begin, resharded, left_by)
    own = position["workers"][whole.topology.worker_index] if "workers" in position else position["share"]
    return Leg(whole, whole, own, resharded)


def rest_at(shares: Shares, position: State) -> tuple[State, State] | None:
    """Return whose rest has to be read at a position first, and where that begins; None if the position is one of these workers.

    Raises:
        DatasetError: If only other workers can go on from there.
    """
    if "rest" in position:
        return position["rest"], position["share"]
    if "workers" in position:
        return _of_parts(shares, position)
    if shares.asks_others:
        return _of_whole(shares, position)
    return None


def _left(shares: BatchShares, left_by: State) -> BatchShares:
    """What the workers had left, as all workers read it."""
    num_workers, num_passes = left_by["num_workers"], left_by["passes"]
    division = divided(shares.facts, num_workers, AutoShardPolicy.FILE)

    def graph(worker: int) -> Node:
        node = in_agreement(division.of_worker(worker)[0])
        if repeat_of(node) is None:
            return node
        return with_repeat(node, lambda repeat: dataclasses.replace(repeat, count=num_passes))

    inputs = tuple(map(graph, range(num_workers)))
    node = Rest(inputs=inputs, spec=shares.whole.spec, replicas_per_worker=left_by["replicas_per_worker"])
    return dataclasses.replace(shares, node=node, shared=True, by_files=False)


def _batches(shares: Shares) -> BatchShares:
    assert isinstance(shares, BatchShares), "others leave no rest"
    return shares


def _of_parts(shares: Shares, position: State) -> tuple[State, State] | None:
    """What has to be read after a position of several workers, each of which read its own part."""
    topology, workers = shares.topology, position["workers"]
    replicas = position.get("replicas_per_worker", topology.replicas_per_worker)
    same_cut = replicas == topology.replicas_per_worker or not any(worker.get("step") for worker in workers)
    same_parts = position.get("by_files", _by_files(shares)) == _by_files(shares)
    if shares.asks_others and len(workers) == topology.num_workers and same_cut and same_parts:
        return None
    why = _why_not(shares) if position.get("by_files") else "only they know what it was"
    if why is not None:
        raise DatasetError(
            f"The position was saved by {len(workers)} workers of {replicas} replica(s), each of which read its own part of the "
            f"data. It cannot be continued by {topology.num_workers} of {topology.replicas_per_worker} in this pipeline: {why}. "
            f"{_REMEDY}"
        )
    passes = max(worker["passes"] for worker in workers)
    left_by = {"num_workers": len(workers), "replicas_per_worker": replicas, "passes": passes}
    return left_by, {"step": 0, "source": {"workers": workers}}


def _of_whole(shares: Shares, position: State) -> tuple[State, State]:
    """What has to be read after a position in the whole, by workers that read their own files."""
    share = position["share"]
    why = _why_not(shares) if "passes" in share else "an older version of Replicant saved it"
    if why is not None:
        raise DatasetError(
            "The position was saved where no worker read data of its own: by one worker, or under AutoShardPolicy.DATA. So it "
            f"cannot be continued by {shares.topology.num_workers} workers, each of which reads its own part of the data: {why}. "
            f"{_REMEDY}"
        )
    left_by = {"num_workers": 1, "replicas_per_worker": 1, "passes": share["passes"]}
    return left_by, {"step": 0, "source": {"workers": [share]}}


def _by_files(shares: Shares) -> bool:
    return isinstance(shares, BatchShares) and shares.by_files


def _why_not(shares: Shares) -> str | None:
    """Why what workers had left cannot be read by others."""
    if not isinstance(shares, BatchShares):
        return "an input function makes the parts"
    return shares.facts.why_not_elastic
