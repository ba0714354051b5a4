"""The workers' heartbeats. Each has a number, and says how many steps its worker has started."""

from ._peers import Peers
from ._sealed_store import SealedStore


class Beats:
    """This worker's heartbeats, and those of the others.

    Args:
        peers: The workers.
        sealed: Where the heartbeats are put.

    Attributes:
        steps: The number of programs over all workers that this worker has started. All workers start them in the same order.
    """

    def __init__(self, peers: Peers, sealed: SealedStore):
        self.steps = 0
        self._peers, self._sealed = peers, sealed
        self._number = 0

    def count_step(self) -> None:
        """Note that this worker starts a program over all workers."""
        self.steps += 1

    def send(self) -> None:
        """Send a heartbeat, if the store does not fail."""
        self._number += 1
        self._sealed.try_put(f"beat/{self._peers.process_id}", f"{self._number} {self.steps}")

    def last(self) -> dict[int, str] | None:
        """The last heartbeat of each worker by its rank, or None if the store fails."""
        beats = self._sealed.list("beat/")
        return None if beats is None else {int(rank): text for rank, text in beats.items()}

    def ahead(self) -> set[int]:
        """The ranks that have started more programs over all workers than this worker."""
        return {rank for rank, text in (self.last() or {}).items() if int(text.split()[1]) > self.steps}
