"""What one of several workers reads of a pipeline."""

from replicant.data import AutoShardPolicy
from replicant.input.graph._graph import Node
from replicant.input.sharding._autoshard import Sharding, divided
from replicant.input.sharding._facts import PipelineFacts


def autoshard(node: Node, num_workers: int, worker: int, policy: AutoShardPolicy) -> tuple[Node, Sharding]:
    """Return the graph that a worker opens instead of ``node``, and the decision."""
    return divided(PipelineFacts(node), num_workers, policy).of_worker(worker)
