"""Small texts that the workers exchange. All workers make the same exchanges in the same order.

Nothing waits without a deadline, and an error says which workers are missing and what is known about them.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..._display import table_of
from ...errors import WorkerLostError, WorkerMismatchError
from ..wire import _supervisor
from ._fates import Fates
from ._gathering import Gathering
from ._parts import digest_of, is_digest
from ._peers import Peers
from ._sealed_store import SealedStore

_SLICE_SECONDS = 0.5  # between two looks at who has failed
_CHECK_SECONDS = 0.1  # likewise, while this worker itself checks whether all parts are there
_SAME_ORDER = (
    "All workers must do the same things in the same order: do not use the strategy inside `if is_chief:`, and run the same number "
    "of steps everywhere."
)


class Exchange:
    """Exchanges texts with the other workers.

    Args:
        peers: The workers.
        sealed: The store through which they go, and heartbeats that say how many steps each worker has started.
        fates: What became of each worker.
        seconds: The time to wait for the others' texts, unless a call says otherwise.

    Attributes:
        steps: The number of programs over all workers that this worker has started, which all workers start in the same order.
    """

    def __init__(self, peers: Peers, sealed: SealedStore, fates: Fates, seconds: float):
        self.seconds, self.steps = seconds, 0
        self._peers, self._sealed, self._store, self._fates = peers, sealed, sealed.store, fates
        self._lock = threading.RLock()
        self._count = 0

    def count_step(self) -> None:
        """Note that this worker starts a program over all workers."""
        self.steps += 1

    def set_timeout(self, seconds: float) -> None:
        """Set the time to wait for the others' texts."""
        self.seconds = seconds

    def __call__(self, label: str, text: str, timeout_seconds: float | None = None, *, before_next_step: bool = False) -> list[str]:
        """Exchange one text of each worker.

        Args:
            label: What the exchange is about. It must be the same on all workers.
            text: The text of this worker.
            timeout_seconds: The time to wait for the others.
            before_next_step: Whether all workers make this exchange in the main thread, between the same two steps. Then a worker
                that goes on with the next step instead is noticed soon.

        Returns:
            The texts of all workers, in the order of their ranks.

        Raises:
            WorkerLostError: If a worker does not come in time, has ended or has failed.
            WorkerMismatchError: If another worker's exchange is about something else, or if another worker has gone on.
        """
        with self._lock:
            number, self._count = self._count, self._count + 1
            return self._texts(f"x/{number}", label, text, timeout_seconds, before_next_step=before_next_step)

    def collect(
        self, name: str, number: int, label: str, text: str, timeout_seconds: float | None = None, *, advice: str = _SAME_ORDER
    ) -> list[str]:
        """Exchange one text of each worker beside the other exchanges, from any thread.

        Args:
            name: A name without slashes that the workers use for these exchanges alone, and then `forget`.
            number: 0, 1, ... for the first exchange of this name, the second one, and so on.
            label: As for a call.
            text: The text of this worker.
            timeout_seconds: The time to wait for the others.
            advice: What the error says to do if a worker does not come in time.

        Returns:
            The texts of all workers, in the order of their ranks.

        Raises:
            WorkerLostError: If a worker does not come in time, has ended or has failed.
        """
        return self._texts(f"{name}/{number}", label, text, timeout_seconds, advice=advice)

    def forget(self, name: str) -> None:
        """Delete what was exchanged under a name of its own. All workers must have read it."""
        self._store.delete(name)

    def agree(self, label: str, text: str, problem: str, *, before_next_step: bool = False) -> None:
        """Check that all workers have the same text.

        Args:
            label: What the exchange is about. It must be the same on all workers.
            text: The text of this worker.
            problem: The beginning of the error message.
            before_next_step: As for a call.

        Raises:
            WorkerMismatchError: If the texts differ. The message has a row for each worker.
        """
        texts = self(label, text, before_next_step=before_next_step)
        if len(set(texts)) > 1:
            raise self._mismatch(problem, texts)

    def tell(self, label: str, text: str, *, before_next_step: bool = False) -> str:
        """Return the chief's text on all workers. `before_next_step` is that of a call."""
        return self(label, "" if self._peers.process_id else text, before_next_step=before_next_step)[0]

    def values(self, label: str) -> Callable[[Any], list[Any]]:
        """A function that exchanges values which JSON can represent."""
        return lambda value: _parsed(self(label, json.dumps(value)))

    def _texts(self, folder: str, label: str, text: str, timeout_seconds: float | None, **options: Any) -> list[str]:
        """Put this worker's text into a folder, and return the texts of all workers. The options are those of `wait`."""
        limit = self.seconds if timeout_seconds is None else timeout_seconds
        deadline = time.monotonic() + limit
        gathering = Gathering(self._peers, self._store, folder)
        mine = json.dumps([label, text])
        short = digest_of(mine)
        with self._fates.explained("could not talk to the others"):
            if short is not None:
                self._store.put(f"{folder}/long/{short}", mine)
            parts = gathering.put(short or mine)
        parts = parts or self.wait(gathering, label, limit, deadline, **options)
        whole = {short: mine}
        with self._fates.explained(f"waited in {label!r}"):
            for part in filter(is_digest, {*parts} - {short}):
                whole[part] = self._store.read(f"{folder}/long/{part}")
        said = _parsed([whole.get(part, part) for part in parts])
        if any(theirs != label for theirs, _ in said):
            problem = "The workers do different things at the same time. They must all run the same program."
            raise self._mismatch(problem, [theirs for theirs, _ in said])
        return [text for _, text in said]

    def wait(
        self,
        gathering: Gathering,
        label: str,
        limit: float,
        deadline: float,
        *,
        before_next_step: bool = False,
        advice: str = _SAME_ORDER,
    ) -> list[str]:
        """Wait for the parts of all workers, until some worker has gathered them.

        Args:
            gathering: The parts.
            label: What the exchange is about.
            limit: The time to wait for the others, for messages.
            deadline: When it ends.
            before_next_step: As for a call.
            advice: As for `collect`.

        Raises:
            WorkerLostError: If a worker does not come in time, has ended or has failed.
            WorkerMismatchError: If another worker has gone on.
        """
        while True:
            left = deadline - time.monotonic()
            with self._fates.explained(f"waited in {label!r}"):
                parts = gathering.wait(self._slice(gathering, left))
            if parts is not None:
                return parts
            told = self._fates.told()
            if self._store.is_lost or self._fates.failures(told) or _supervisor.is_ordered():
                raise self._fates.lost(f"waited in {label!r}")
            gone = {*self._fates.silent, *told["ended"]}
            ahead = self._ahead() if before_next_step else set[int]()
            if gathering.is_uncounted or gone or ahead or left <= 0:
                parts, missing = gathering.gather()
                if parts is not None:
                    return parts
                if gone.intersection(missing):
                    raise self._fates.lost(f"waited in {label!r}")
                if passed := ahead.intersection(missing):
                    raise self._passed(label, sorted(passed))
                if left <= 0:
                    raise self._late(label, limit, missing, advice)

    def _ahead(self) -> set[int]:
        """The ranks that have started more programs over all workers than this worker."""
        beats = self._sealed.list("beat/") or {}
        return {int(rank) for rank, text in beats.items() if int(text.split()[1]) > self.steps}

    def _slice(self, gathering: Gathering, left: float) -> float:
        """The time to wait for the parts before the next look at who has failed."""
        return max(0.001, min(left, _CHECK_SECONDS if gathering.is_uncounted else _SLICE_SECONDS * self._peers.stretch))

    def _mismatch(self, problem: str, texts: Sequence[str]) -> WorkerMismatchError:
        return WorkerMismatchError(table_of(problem, {self._peers.name_of(rank): text for rank, text in enumerate(texts)}))

    def _passed(self, label: str, ranks: Sequence[int]) -> WorkerMismatchError:
        return WorkerMismatchError(
            f"Worker {self._peers.process_id} waits in {label!r}, but {self._peers.names_of(ranks)} went on with the next step "
            "without it. All workers must do the same things in the same order."
        )

    def _late(self, label: str, limit: float, missing: Sequence[int], advice: str) -> WorkerLostError:
        peers = self._peers
        missing = missing or [rank for rank in range(peers.num_processes) if rank != peers.process_id]
        return WorkerLostError(
            f"Worker {peers.process_id} waited {limit:g} s in {label!r} for "
            f"{peers.names_of(missing)}, which did not come. {advice}{self._fates.known()}"
        )


def _parsed(texts: Sequence[str]) -> list[Any]:
    """The values that texts represent. Usually all texts are alike, and are parsed once."""
    known = {text: json.loads(text) for text in {*texts}}
    return [known[text] for text in texts]
