"""What workers say about themselves, sealed: anybody can write who reaches the store, and is ignored without the job's secret."""

import logging

from ..wire import _seal, _supervisor
from ._peers import Peers
from ._steady_store import SteadyStore

_SHOWN = 200  # characters of what somebody else has written
_KINDS = {"fate/failed": "a failure", "fate/ended": "an end", "fate/left": "an end", "fate/leave": "a request to leave"}
_logger = logging.getLogger("replicant.cluster")


class SealedStore:
    """The sealed texts in a store.

    Args:
        peers: The workers.
        store: The store.
        secret: What only the workers of this job know.

    Attributes:
        forged: What was found without a seal of this job.
    """

    def __init__(self, peers: Peers, store: SteadyStore, secret: str):
        self.store, self.forged = store, set[str]()
        self._peers, self._secret = peers, secret

    def put(self, key: str, text: str) -> None:
        """Store a text, and try until that has succeeded. Raises as `SteadyStore.put`."""
        self.store.put(key, self._closed(key, text))

    def try_put(self, key: str, text: str) -> bool:
        """Store a text. Returns whether that has succeeded."""
        return self.store.try_put(key, self._closed(key, text))

    def list(self, folder: str) -> dict[str, str] | None:
        """The texts in a folder that a worker of this job has put there, or None if the store fails. Others are told once."""
        found = self.store.list(folder)
        if found is None:
            return None
        texts = {key: _seal.open_(self._secret, self.store.at(folder + key), sealed) for key, sealed in found.items()}
        for key, text in texts.items():
            if text is None:
                self._note_forged(folder + key, found[key])
        return {key: text for key, text in texts.items() if text is not None}

    def _closed(self, key: str, text: str) -> str:
        return _seal.close(self._secret, self.store.at(key), text)

    def _note_forged(self, key: str, text: str) -> None:
        what = _KINDS.get("/".join(key.split("/")[:2]), "a message")
        if what in self.forged:
            return
        self.forged.add(what)
        shown = "".join(each if each.isprintable() else " " for each in text[:_SHOWN])
        told = (
            f"{what} was reported by no worker of this job, and is ignored: somebody else can write to its coordination service. "
            f"The key {key!r} holds {shown!r}."
        )
        _logger.warning("Worker %d of %d: %s", self._peers.process_id, self._peers.num_processes, told)
        _supervisor.tell_forged(told)
