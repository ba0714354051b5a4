"""What became of each worker: what it has said about itself, and how long it has been silent."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ..._display import table_of
from ...errors import WorkerLostError
from ..wire import _supervisor
from ._peers import Peers
from ._sealed_store import SealedStore

GRACE_SECONDS = 3.0  # for this worker to fail with its own error, once another has failed
_SHORT_GRACE_SECONDS = 0.5  # likewise, where a supervisor waits for this worker to end
_MAX_FAILURE = 4000  # characters


class Fates:
    """What became of each worker.

    Args:
        peers: The workers.
        sealed: Where they say it.

    Attributes:
        silent: The seconds without a heartbeat of other workers that have been silent for too long, by rank.
    """

    def __init__(self, peers: Peers, sealed: SealedStore):
        self.silent: Mapping[int, float] = {}
        self._peers, self._sealed, self._store = peers, sealed, sealed.store

    def report_failure(self, text: str) -> None:
        """Tell the others that this worker fails, and why."""
        self._sealed.try_put(f"fate/failed/{self._peers.process_id}", text[:_MAX_FAILURE])

    def report_end(self, *, well: bool = True) -> None:
        """Tell the others that this worker's program ends, either without an error or because of another worker."""
        self._sealed.try_put(f"fate/{'ended' if well else 'left'}/{self._peers.process_id}", "")

    def report_request(self) -> None:
        """Tell the others that this worker was asked to leave. Raises as `SteadyStore.put`."""
        self._sealed.put(f"fate/leave/{self._peers.process_id}", "")

    def note_silent(self, silent: Mapping[int, float]) -> None:
        """Note who has been silent for too long."""
        self.silent = {rank: seconds for rank, seconds in silent.items() if rank != self._peers.process_id}

    def told(self) -> dict[str, dict[int, str]]:
        """What workers have said about themselves, by kind and rank.

        A worker has "failed", has "ended" without an error, has "left" because of another worker, or was asked to "leave".
        """
        fates: dict[str, dict[int, str]] = {"failed": {}, "ended": {}, "left": {}, "leave": {}}
        for key, text in (self._sealed.list("fate/") or {}).items():
            kind, _, rank = key.partition("/")
            if kind in fates and rank.isdigit():
                fates[kind][int(rank)] = text
        return fates

    def failures(self, told: Mapping[str, Mapping[int, str]] | None = None) -> dict[int, str]:
        """What other workers have said that have failed, by rank. `told` is what `told` has returned, if it was asked already."""
        failed = (told or self.told())["failed"]
        return {rank: text for rank, text in failed.items() if rank != self._peers.process_id}

    def lost(self, what: str, error: BaseException | None = None) -> WorkerLostError:
        """The error to raise when something that the workers do together has failed. It says what is known about the others."""
        deadline = time.monotonic() + (GRACE_SECONDS if not _supervisor.is_restarted() else _SHORT_GRACE_SECONDS)
        while not (known := self.known()) and time.monotonic() < deadline and not _supervisor.is_ordered():
            time.sleep(0.1)  # a worker reports its failure before it goes, but not before the others notice
        because = "" if error is None else f" ({str(error).strip().splitlines()[0][:300]})"
        return WorkerLostError(
            f"Worker {self._peers.process_id} of {self._peers.num_processes} {what}, and cannot go on: another worker is gone"
            f"{self._peers.with_names(because)}."
            f"{known or ' No worker has said why: one of them was killed, or its host is lost. See its log.'}"
        )

    @contextlib.contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Raise `lost` if the store is lost. `what` says what this worker did meanwhile."""
        try:
            yield
        except (ConnectionError, TimeoutError) as error:
            raise self.lost(what, error) from error

    def known(self) -> str:
        """What is known about the other workers, as the rows of a table."""
        peers, told = self._peers, self.told()
        rows = {peers.name_of(rank): f"failed: {peers.with_names(text)}" for rank, text in self.failures(told).items()}
        for rank in told["ended"]:
            if rank != peers.process_id:
                rows.setdefault(peers.name_of(rank), "has ended its program")
        for rank, seconds in self.silent.items():
            rows.setdefault(peers.name_of(rank), f"has sent no heartbeat for {seconds:.0f} s")
        if trouble := self._store.trouble:
            holder = "the launcher" if peers.supervised else peers.name_of(0)
            rows.setdefault(holder, f"runs the coordination service, which does not answer: {trouble}")
        for what in sorted(self._sealed.forged):
            rows["somebody else"] = f"has written {what} that was reported by no worker of this job"
        return table_of("", rows) if rows else ""

    def wait_for_others(self, timeout_seconds: float) -> None:
        """Wait until all others have ended, failed or fallen silent, because process 0 runs the service through which they talk."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline and not self._store.is_lost:
            told = self.told()
            gone = {*told["ended"], *told["left"], *told["failed"], *self.silent, self._peers.process_id}
            if len(gone) >= self._peers.num_processes:
                return
            time.sleep(0.05)


def describe_error(error: BaseException) -> str:
    """Describe an error in one line, for the other workers. One that speaks of lost workers is told in full: it names them."""
    lines: list[Any] = str(error).strip().splitlines() or [""]
    if isinstance(error, WorkerLostError):
        return f"{type(error).__name__}: {' '.join(line.strip() for line in lines)}"
    return f"{type(error).__name__}: {lines[0][:500]}" if lines[0] else type(error).__name__
