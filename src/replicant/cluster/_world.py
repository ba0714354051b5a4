"""The workers that train together, once they have met: small exchanges, and what became of each.

Everything here goes over the coordination service's key-value store; nothing waits without a deadline, and an error says which
workers are missing and what is known of them. All workers call `exchange`, `agree` and `tell` in the same order.
"""

import contextlib
import dataclasses
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from ..errors import WorkerLostError, WorkerMismatchError
from . import _heartbeat
from ._claims import table_of
from ._membership import Membership

_PAUSE_SECONDS = 0.1  # before a store that has failed is asked again
_SLICE_SECONDS = 0.5  # between two looks at who has failed
_BEAT_SECONDS = 1.0
_GRACE_SECONDS = 3.0  # for this worker's own error, once another has failed
_MAX_FAILURE = 4000  # characters


@dataclasses.dataclass(frozen=True)
class Timeouts:
    """How long is waited, in seconds.

    start: until all workers have come. exchange: for the others' part of an exchange. heartbeat: without a sign of life from a
    worker's process. stop: at the end of the program, for the others to end theirs.
    """

    start: float = 120.0
    exchange: float = 600.0
    heartbeat: float = 60.0
    stop: float = 300.0


class Store(Protocol):
    """A key-value store that all workers share.

    Errors are `TimeoutError`, `ConnectionError` where it cannot be reached, `ConnectionAbortedError` once this process has left it.
    """

    def put(self, key: str, text: str, *, overwrite: bool = False) -> None: ...
    def get(self, key: str, timeout_seconds: float) -> str: ...
    def list(self, prefix: str) -> dict[str, str]: ...
    def delete(self, key: str) -> None: ...


class World:
    """This process among the workers.

    Args:
        store: where they leave messages.
        membership: this process.
        who: host and process number of each, for messages.
        generation: how often the workers have formed anew.
        timeouts: of everything that waits.
        supervised: whether a supervisor watches the workers: then this process does not end itself when another fails.
    """

    def __init__(
        self,
        store: Store,
        membership: Membership,
        who: Sequence[str],
        *,
        generation: int = 0,
        timeouts: Timeouts | None = None,
        supervised: bool = False,
    ):
        self.store = store
        self.membership = membership
        self.process_id, self.num_processes = membership.process_id, membership.num_processes
        self.who = tuple(who)
        self.generation = generation
        self.timeouts = timeouts or Timeouts()
        self.supervised = supervised
        self.progress = 0  # programs started
        self._lock = threading.RLock()
        self._count = 0
        self._prefix = f"replicant/{generation}"
        self._watch: threading.Thread | None = None
        self._ended = threading.Event()
        self._silent: dict[int, float] = {}  # seconds without a sign of life
        self._trouble = _Trouble()
        self._leaving = _Leaving()

    @property
    def is_chief(self) -> bool:
        """Whether this process writes what is written once."""
        return self.process_id == 0

    def name_of(self, rank: int) -> str:
        """A worker, for messages."""
        known = f" ({self.who[rank]})" if rank < len(self.who) else ""
        return f"worker {rank}{known}"

    # Exchanges.

    def exchange(self, label: str, text: str, timeout_seconds: float | None = None) -> list[str]:
        """Give every worker this worker's text; returns those of all, in the order of their ranks.

        Args:
            label: what it is about; the same on all workers.
            text: of this worker.
            timeout_seconds: to wait for the others.

        Raises:
            WorkerLostError: somebody did not come in time, has ended or failed.
            WorkerMismatchError: another worker is about something else.
        """
        limit = self.timeouts.exchange if timeout_seconds is None else timeout_seconds
        with self._lock:
            number, self._count = self._count, self._count + 1
            deadline = time.monotonic() + limit
            self._put(f"x/{number}/{self.process_id}", json.dumps([label, text]))
            answers = [self._wait(f"x/{number}/{{}}", rank, deadline, label, limit) for rank in range(self.num_processes)]
            if number:  # all have set theirs, so all have read those before
                self._delete(f"x/{number - 1}/{self.process_id}")
        said = [json.loads(answer) for answer in answers]
        if any(theirs != label for theirs, _ in said):
            rows = {self.name_of(rank): theirs for rank, (theirs, _) in enumerate(said)}
            raise WorkerMismatchError(
                table_of("The workers do not do the same: each is about something else. They must all run the same program.", rows)
            )
        return [text for _, text in said]

    def agree(self, label: str, text: str, problem: str) -> None:
        """Raise WorkerMismatchError, with `problem` and a row for each worker, unless all have the same text."""
        texts = self.exchange(label, text)
        if len(set(texts)) > 1:
            rows = {self.name_of(rank): each for rank, each in enumerate(texts)}
            raise WorkerMismatchError(table_of(problem, rows))

    def tell(self, label: str, text: str) -> str:
        """The chief's text, on all workers."""
        return self.exchange(label, text if self.is_chief else "")[0]

    def values(self, label: str) -> "Callable[[Any], list[Any]]":
        """An exchange of values that JSON can hold."""
        return lambda value: [json.loads(text) for text in self.exchange(label, json.dumps(value))]

    def _wait(self, key: str, rank: int, deadline: float, label: str, limit: float) -> str:
        while True:
            left = deadline - time.monotonic()
            try:
                return self.store.get(f"{self._prefix}/{key.format(rank)}", max(0.001, min(left, _SLICE_SECONDS)))
            except TimeoutError:
                pass  # it is not there so far, or the store does not answer: `_list` below knows
            except ConnectionError as error:
                self._bear(error, f"waited in {label!r}")
            if self._trouble.seconds() > self.timeouts.heartbeat:
                raise self.lost(f"waited in {label!r}")
            if self.failures() or rank in self._silent or rank in self._ranks("ended") or _heartbeat.is_ordered():
                raise self.lost(f"waited in {label!r}")
            if left <= 0:
                have = self._list(key.format(""))
                missing = [r for r in range(self.num_processes) if str(r) not in have]
                raise WorkerLostError(
                    f"Worker {self.process_id} waited {limit:g} s in {label!r} for "
                    f"{', '.join(map(self.name_of, missing or [rank]))}, which did not come. "
                    "All workers must do the same, in the same order: no `if is_chief:` around what the "
                    f"strategy does, and as many steps everywhere.{self._known()}"
                )

    def lost(self, what: str, error: BaseException | None = None) -> WorkerLostError:
        """The error to raise when something that workers do together has failed: it says what is known of the others."""
        deadline = time.monotonic() + (_GRACE_SECONDS if not _heartbeat.is_restarted() else _SLICE_SECONDS)
        while not (known := self._known()) and time.monotonic() < deadline and not _heartbeat.is_ordered():
            time.sleep(0.1)  # a worker reports its failure before it goes, but not before the others notice
        because = "" if error is None else f" ({str(error).strip().splitlines()[0][:300]})"
        return WorkerLostError(
            f"Worker {self.process_id} of {self.num_processes} {what}, and cannot go on: another worker is gone{because}."
            f"{known or ' No worker has said why: one was killed, or its host is lost; see its log.'}"
        )

    def _known(self) -> str:
        """What is known of the other workers, as rows."""
        rows = {self.name_of(rank): f"failed: {text}" for rank, text in self.failures().items()}
        for rank in self._ranks("ended"):
            if rank != self.process_id:
                rows.setdefault(self.name_of(rank), "has ended its program")
        for rank, seconds in self._silent.items():
            rows.setdefault(self.name_of(rank), f"has given no sign of life for {seconds:.0f} s")
        if self._trouble.text:
            rows.setdefault(self.name_of(0), f"holds the coordination service, which does not answer: {self._trouble.text}")
        return table_of("", rows) if rows else ""

    # What became of the workers.

    def report_failure(self, text: str) -> None:
        """Tell the others that this worker fails, and why."""
        self._try(self.store.put, f"{self._prefix}/failed/{self.process_id}", text[:_MAX_FAILURE], overwrite=True)

    def report_end(self, *, well: bool = True) -> None:
        """Tell the others that this worker's program ends: well, or because of another worker."""
        kind = "ended" if well else "left"
        self._try(self.store.put, f"{self._prefix}/{kind}/{self.process_id}", "", overwrite=True)

    def failures(self) -> dict[int, str]:
        """What failed workers have said, by rank; without this one."""
        return {int(rank): text for rank, text in self._list("failed/").items() if int(rank) != self.process_id}

    def _ranks(self, kind: str) -> list[int]:
        return [int(rank) for rank in self._list(f"{kind}/")]

    def _put(self, key: str, text: str) -> None:
        """Store a text, which may take as long as this worker may be silent.

        Raises WorkerLostError if it takes longer.
        """
        while True:
            try:
                self.store.put(f"{self._prefix}/{key}", text, overwrite=True)  # it may be there: an answer can be lost
            except (ConnectionError, TimeoutError) as error:
                self._bear(error, "could not speak to the others")
            else:
                self._trouble.end()
                return

    def _bear(self, error: Exception, what: str) -> None:
        """Wait a little, unless the store has been in trouble for too long. Raises WorkerLostError."""
        self._trouble.note(error)
        if isinstance(error, ConnectionAbortedError) or self._trouble.seconds() > self.timeouts.heartbeat:
            raise self.lost(what, error) from error
        time.sleep(_PAUSE_SECONDS)

    def _delete(self, key: str) -> None:
        self._try(self.store.delete, f"{self._prefix}/{key}")

    def _list(self, folder: str) -> dict[str, str]:
        start = f"{self._prefix}/{folder}"
        found = self._try(self.store.list, start) or {}
        return {key.removeprefix(start): text for key, text in found.items()}

    def _try(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What a call of the store gives; None, and a note of it, if it fails."""
        try:
            result = call(*args, **kwargs)
        except (ConnectionError, TimeoutError) as error:
            self._trouble.note(error)
            return None
        self._trouble.end()
        return result

    # Leaving together, when one of the workers was asked to.

    def leaves_now(self, asked: bool) -> bool:
        """Called between two steps, equally often by all workers; True after the same step on all, once one was `asked` to leave.

        A worker may be a few steps behind another, and inside of a step it waits for the others. So when one was asked, the
        watching threads tell how many calls each worker has made; the next call of each waits for these numbers, and all leave
        one step after the greatest.

        Raises WorkerLostError if a worker does not tell.
        """
        leaving = self._leaving
        with leaving.lock:
            leaving.num_calls += 1
            count, known = leaving.num_calls, leaving.known
        if asked and not leaving.told:
            leaving.told = True
            self._put(f"leave/{self.process_id}", "")
        if known and leaving.last is None:
            limit = self.timeouts.exchange
            deadline = time.monotonic() + limit
            calls = [self._wait("at/{}", rank, deadline, "leaving", limit) for rank in range(self.num_processes)]
            leaving.last = 1 + max(map(int, calls))
        return leaving.last is not None and count >= leaving.last

    def _look_for_leavers(self) -> None:
        """On the watching thread."""
        leaving = self._leaving
        if not leaving.known and self._ranks("leave"):
            with leaving.lock:
                leaving.known, leaving.at = True, leaving.num_calls
        if leaving.at is not None:
            self._try(self.store.put, f"{self._prefix}/at/{self.process_id}", str(leaving.at), overwrite=True)
            if not self._trouble.text:
                leaving.at = None

    # Signs of life.

    def begin_watch(self, leave: Callable[[str], None]) -> None:
        """Give signs of life, look for those of the others; `leave` is called with what was found if this process must end."""
        self._watch = threading.Thread(target=self._run_watch, args=(leave,), name="replicant-watch", daemon=True)
        self._watch.start()

    def end_watch(self) -> None:
        """The opposite."""
        self._ended.set()
        if self._watch is not None and self._watch is not threading.current_thread():
            self._watch.join(timeout=2 * _BEAT_SECONDS)

    def _run_watch(self, leave: Callable[[str], None]) -> None:
        seen = {rank: ("", time.monotonic()) for rank in range(self.num_processes)}
        number, troubled_since = 0, None
        while not self._ended.wait(_BEAT_SECONDS):
            number += 1
            self._try(self.store.put, f"{self._prefix}/beat/{self.process_id}", f"{number} {self.progress}", overwrite=True)
            self._look_for_leavers()
            now = time.monotonic()
            beats = {int(rank): text for rank, text in self._list("beat/").items()}
            ended = set(self._ranks("ended"))
            for rank, text in beats.items():
                if seen[rank][0] != text:
                    seen[rank] = (text, now)
            self._silent = {
                rank: now - since
                for rank, (_, since) in seen.items()
                if now - since > self.timeouts.heartbeat and rank not in ended and rank != self.process_id
            }
            is_cut_off = self._trouble.seconds() > self.timeouts.heartbeat
            trouble = not self.supervised and bool(self._silent or self.failures() or is_cut_off)
            trouble = trouble and not _heartbeat.is_watched()  # else the supervisor sees to it
            troubled_since = (troubled_since or now) if trouble else None
            if troubled_since is not None and now - troubled_since > _GRACE_SECONDS and not self._ended.is_set():
                leave(f"Worker {self.process_id} of {self.num_processes} ends, because it cannot go on alone.{self._known()}")
                return

    @contextlib.contextmanager
    def explained(self, what: str, errors: "tuple[type[BaseException], ...]") -> Iterator[None]:
        """Around work of all workers: its `errors` become WorkerLostError if another worker is the cause."""
        try:
            yield
        except errors as error:
            raise self.lost(what, error) from error

    def wait_for_others(self, timeout_seconds: float) -> None:
        """Until all others have ended or failed, or give no sign of life: process 0 holds what they speak over."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline and self._trouble.seconds() <= self.timeouts.heartbeat:
            gone = {*self._ranks("ended"), *self._ranks("left"), *self.failures(), *self._silent, self.process_id}
            if len(gone) >= self.num_processes:
                return
            time.sleep(0.05)


class _Leaving:
    """What is known of a request to leave."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.num_calls = 0  # of `leaves_now`
        self.told = False  # that this worker was asked
        self.known = False  # that any was asked
        self.at: int | None = None  # `num_calls` when it became known, until the others can read it
        self.last: int | None = None  # the call after which all leave


class _Trouble:
    """What keeps this worker from its store, and for how long it has done so without a break."""

    def __init__(self) -> None:
        self.text = ""  # empty: the last call was answered
        self._since = 0.0

    def note(self, error: Exception) -> None:
        """A call has failed."""
        if not self.text:
            self._since = time.monotonic()
        self.text = str(error)

    def end(self) -> None:
        """A call was answered."""
        self.text = ""

    def seconds(self) -> float:
        """Since the first of the calls that have failed in a row."""
        return time.monotonic() - self._since if self.text else 0.0


def this_process() -> str:
    """Host and process number."""
    return f"{socket.gethostname()} pid {os.getpid()}"


def describe_error(error: BaseException) -> str:
    """One line for the other workers."""
    lines: list[Any] = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:500]}" if lines[0] else type(error).__name__
