"""The parts of all workers in one folder of the store. The worker that puts the last one gathers all of them under one key."""

from ._parts import pack_parts, unpack_parts
from ._peers import Peers
from ._steady_store import SteadyStore


class Gathering:
    """The parts of all workers, each of which puts one.

    Args:
        peers: The workers.
        store: The store.
        folder: The folder, the same on all workers: a name, or a name and a number. All workers put their parts of one number only
            once they have those of the one before.

    Attributes:
        is_uncounted: Whether this worker itself must check whether all parts are there.
    """

    def __init__(self, peers: Peers, store: SteadyStore, folder: str):
        self.is_uncounted = False
        self._peers, self._store, self._folder = peers, store, folder
        self._own, self._all = f"{folder}/of/{peers.process_id}", f"{folder}/all"

    def put(self, part: str) -> list[str] | None:
        """Put this worker's part, and try until that has succeeded. Returns as `count`, and raises as `SteadyStore.put`."""
        self._store.put(self._own, part)
        return self.count()

    def try_put(self, part: str) -> bool:
        """Put this worker's part. Returns whether that has succeeded."""
        if not self._store.try_put(self._own, part):
            return False
        self.count()
        return True

    def count(self) -> list[str] | None:
        """Note that this worker's part is there. The last worker to do so gathers all parts, and returns them."""
        count = self._store.increment(f"{self._folder}/count")
        self.is_uncounted = count is None  # it may have been counted, and must not be counted twice: this worker checks itself
        if count is None or count < self._peers.num_processes:
            return None
        self.is_uncounted = True  # unless it succeeds now
        return self.gather()[0]

    def gather(self) -> tuple[list[str] | None, list[int]]:
        """Look for all parts, and put them under one key if they are there.

        Several workers may do so at the same time, because all of them put the same.

        Returns:
            The parts, or None if they could not be gathered, and the ranks whose parts are missing.
        """
        found = self._store.list(f"{self._folder}/of/")
        if found is None:
            return None, []
        ranks = range(self._peers.num_processes)
        missing = [rank for rank in ranks if str(rank) not in found]
        if missing:
            return None, missing
        parts = [found[str(rank)] for rank in ranks]
        if not self._store.try_put(self._all, pack_parts(parts)):
            return None, []  # the others must be able to read it, too
        self.is_uncounted = False
        kind, _, number = self._folder.partition("/")
        if number and int(number):  # all have put their parts, so all have read the previous ones
            self._store.delete(f"{kind}/{int(number) - 1}")
        return parts, []

    def wait(self, timeout_seconds: float) -> list[str] | None:
        """All parts, once a worker has gathered them; None if none has in time. Raises as `SteadyStore.put`."""
        text = self._store.get(self._all, timeout_seconds)
        return None if text is None else unpack_parts(text)
