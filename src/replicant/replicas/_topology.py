"""The number of workers, and of the replicas of each. Every size in the package derives from these numbers."""

import dataclasses

from ..errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class Topology:
    """How many workers there are, which one this process is, and how many replicas each one holds.

    Replicas are numbered worker by worker: the first replica of worker ``w`` is number ``w * replicas_per_worker``.

    Args:
        num_workers: The number of processes that take part.
        worker_index: The index of this process, from 0.
        replicas_per_worker: The number of replicas on each worker.

    Raises:
        ArgumentError: If a number is below 1, or if the index is not in ``range(num_workers)``.

    >>> topology = Topology(num_workers=2, worker_index=1, replicas_per_worker=4)
    >>> topology.num_replicas, topology.local_replica_ids
    (8, (4, 5, 6, 7))
    """

    num_workers: int = 1
    worker_index: int = 0
    replicas_per_worker: int = 1

    def __post_init__(self) -> None:
        for name in ("num_workers", "replicas_per_worker"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"Topology: {name} must be at least 1. Received: {getattr(self, name)}.")
        if not 0 <= self.worker_index < self.num_workers:
            raise ArgumentError(
                f"Topology: worker_index must be from 0 to {self.num_workers - 1} with {self.num_workers} worker(s). "
                f"Received: {self.worker_index}."
            )

    @property
    def num_replicas(self) -> int:
        """The number of replicas on all workers together."""
        return self.num_workers * self.replicas_per_worker

    @property
    def local_replica_ids(self) -> tuple[int, ...]:
        """The global numbers of this worker's replicas, in order."""
        first = self.worker_index * self.replicas_per_worker
        return tuple(range(first, first + self.replicas_per_worker))
