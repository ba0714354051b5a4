"""Cuts a global batch for the replicas: pure functions of small integers, with one rule for every policy."""

from ...replicas._topology import Topology


def chunk_sizes(batch_size: int, num_replicas: int) -> tuple[int, ...]:
    """Return how many rows of a global batch each replica gets, in replica order.

    Replicas are filled one after the other with ``ceil(batch_size / num_replicas)`` rows, so the last replicas may get fewer
    or none. tf.distribute does the same under ``AutoShardPolicy.DATA``, and its guide documents it for all policies.

    >>> chunk_sizes(16, 4), chunk_sizes(5, 4), chunk_sizes(4, 3), chunk_sizes(0, 2)
    ((4, 4, 4, 4), (2, 2, 1, 0), (2, 2, 0), (0, 0))
    """
    share = -(-batch_size // num_replicas)
    return tuple(min(share, max(0, batch_size - replica * share)) for replica in range(num_replicas))


def worker_chunk(batch_size: int, topology: Topology) -> tuple[int, tuple[int, ...]]:
    """Return the first row of a global batch that belongs to this worker, and the sizes of its replicas.

    >>> worker_chunk(10, Topology(num_workers=2, worker_index=1, replicas_per_worker=2))
    (6, (3, 1))
    """
    sizes = chunk_sizes(batch_size, topology.num_replicas)
    first = topology.local_replica_ids[0]
    return sum(sizes[:first]), sizes[first : first + topology.replicas_per_worker]


def static_chunk_size(batch_size: int | None, num_replicas: int) -> int | None:
    """Return the size that all replicas' chunks have in common, or None if they can differ.

    >>> static_chunk_size(6, 3), static_chunk_size(5, 3), static_chunk_size(None, 3)
    (2, None, None)
    """
    if batch_size is None or batch_size % num_replicas:
        return None
    return batch_size // num_replicas


def own_steps(batch_size: int, topology: Topology) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Cut a batch that no other worker has into steps: the first row, and the sizes of this worker's replicas, for each.

    The chunks are those of a batch that all replicas share, and this worker's replicas take them in turn, so its own
    batch lasts as many steps as there are workers. Steps without rows are left out.

    >>> own_steps(4, Topology(num_workers=2, replicas_per_worker=1))
    ((0, (2,)), (2, (2,)))
    >>> own_steps(5, Topology(num_workers=2, replicas_per_worker=2))
    ((0, (2, 2)), (4, (1, 0)))
    """
    sizes = chunk_sizes(batch_size, topology.num_replicas)
    num_used = max(1, sum(size > 0 for size in sizes))
    share = topology.replicas_per_worker
    return tuple((sum(sizes[:first]), sizes[first : first + share]) for first in range(0, num_used, share))
