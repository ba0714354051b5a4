"""The workers that train together, once they have met: small exchanges between them, and what became of each.

Everything here goes through the coordination service's key-value store. Nothing waits without a deadline, and an error says which
workers are missing and what is known about them. All workers call `exchange`, `agree` and `tell` in the same order.
"""

import dataclasses
import json
import logging
import math
import os
import re
import socket
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ...errors import WorkerLostError, WorkerMismatchError
from ..meeting._claims import table_of
from ..resolvers._membership import Membership
from ..wire import _seal, _supervisor
from ._liveness import Lookout, News
from ._parts import digest_of, is_digest, pack_parts, unpack_parts

_PAUSE_SECONDS = 0.1  # before asking a store again that has failed
_SLICE_SECONDS = 0.5  # between two looks at who has failed
_BEAT_SECONDS = 1.0  # between two heartbeats
_URGENT_SECONDS = 0.25  # between two heartbeats while something is wrong
_MANY = 512  # workers; with more, each looks and beats less often, so that the load of all of them does not grow
_GRACE_SECONDS = 3.0  # for this worker to fail with its own error, once another has failed
_OBEY_SECONDS = 1.0  # for the main thread to obey an order to form a new group, before its exchange is broken off
_SILENT_GRACE_SECONDS = 1.0  # likewise, once another is silent: a cut link brings no error
_MAX_FAILURE = 4000  # characters
_SHOWN = 200  # characters of what somebody else has written
_FORGED = {"fate/failed": "a failure", "fate/ended": "an end", "fate/left": "an end", "fate/leave": "a request to leave"}
_logger = logging.getLogger("replicant.cluster")
_PEER = re.compile(r"\[([0-9a-fA-F.:]+)\]:[0-9]+")
_SAME_ORDER = (
    "All workers must do the same things in the same order: do not use the strategy inside `if is_chief:`, and run the same number "
    "of steps everywhere."
)


@dataclasses.dataclass(frozen=True)
class Timeouts:
    """The deadlines of everything that waits, in seconds.

    Args:
        start: The time until all workers have come.
        exchange: The time to wait for the others' parts of an exchange.
        heartbeat: The time without a heartbeat after which a worker counts as lost.
        stop: The time to wait at the end of the program for the others to end.
    """

    start: float = 120.0
    exchange: float = 600.0
    heartbeat: float = 60.0
    stop: float = 300.0


class Store(Protocol):
    """A key-value store that all workers share.

    Its methods raise `TimeoutError`, `ConnectionError` if the store cannot be reached, `ConnectionResetError` once it is gone for
    good, and `ConnectionAbortedError` once this process has left it.
    """

    def put(self, key: str, text: str, *, overwrite: bool = False) -> None: ...
    def get(self, key: str, timeout_seconds: float) -> str: ...
    def list(self, prefix: str) -> dict[str, str]: ...
    def delete(self, key: str) -> None: ...  # with everything below it
    def increment(self, key: str) -> int: ...  # by one; returns the new value


class World:
    """This process among the workers.

    Args:
        store: The store where the workers leave messages.
        membership: Which one of the workers this process is.
        who: The host and process number of each worker, for messages.
        generation: How many times the workers have formed a new group.
        timeouts: The deadlines of everything that waits.
        supervised: Whether a supervisor watches the workers. Then this process does not end itself when another one fails.
        secret: What only the workers of this job know. What they say about themselves is sealed with it.
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
        secret: str = _seal.NONE,
    ):
        self.store = store
        self._secret = secret
        self._forged: set[str] = set()  # what was found in the store without a seal of this job
        self.membership = membership
        self.process_id, self.num_processes = membership.process_id, membership.num_processes
        self.who = tuple(who)
        self.addresses: tuple[str, ...] = ()  # where each worker is found, if they are on several hosts
        self.generation = generation
        self.timeouts = timeouts or Timeouts()
        self.supervised = supervised
        self.progress = 0  # number of programs started
        self.steps = 0  # number of programs over all workers started, which all workers start in the same order
        self._lock = threading.RLock()
        self._count = 0
        self._prefix = f"replicant/{generation}"
        self._watch: threading.Thread | None = None
        self._ended = threading.Event()
        self._many = max(1.0, self.num_processes / _MANY)
        self._uncounted: set[str] = set()  # folders where this worker itself checks whether all parts are there
        self._silent: dict[int, float] = {}  # seconds without a heartbeat
        self._trouble = _Trouble()
        self._leaving = _Leaving()
        self.break_off: Callable[[], object] = _do_nothing  # ends an exchange in which the main thread may be stuck

    @property
    def is_chief(self) -> bool:
        """Whether this process writes what must be written only once."""
        return self.process_id == 0

    def name_of(self, rank: int) -> str:
        """The name of a worker, for messages."""
        known = f" ({self.who[rank]})" if rank < len(self.who) else ""
        return f"worker {rank}{known}"

    # Exchanges.

    def exchange(self, label: str, text: str, timeout_seconds: float | None = None, *, before_next_step: bool = False) -> list[str]:
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
            return self._said(f"x/{number}", label, text, timeout_seconds, before_next_step=before_next_step)

    def collect(
        self, name: str, number: int, label: str, text: str, timeout_seconds: float | None = None, *, advice: str = _SAME_ORDER
    ) -> list[str]:
        """Exchange one text of each worker beside the other exchanges, from any thread.

        Args:
            name: A name without slashes that the workers use for these exchanges alone, and then `forget`.
            number: 0, 1, ... for the first exchange of this name, the second one, and so on.
            label: As for `exchange`.
            text: The text of this worker.
            timeout_seconds: The time to wait for the others.
            advice: What the error says to do if a worker does not come in time.

        Returns:
            The texts of all workers, in the order of their ranks.

        Raises:
            WorkerLostError: If a worker does not come in time, has ended or has failed.
        """
        return self._said(f"{name}/{number}", label, text, timeout_seconds, advice=advice)

    def forget(self, name: str) -> None:
        """Delete what was exchanged under a name of its own. All workers must have read it."""
        self._delete(name)

    def _said(
        self,
        folder: str,
        label: str,
        text: str,
        timeout_seconds: float | None,
        *,
        before_next_step: bool = False,
        advice: str = _SAME_ORDER,
    ) -> list[str]:
        """Put this worker's text into a folder, and return the texts of all workers."""
        limit = self.timeouts.exchange if timeout_seconds is None else timeout_seconds
        deadline = time.monotonic() + limit
        mine = json.dumps([label, text])
        short = digest_of(mine)
        if short is not None:
            self._put(f"{folder}/long/{short}", mine)
        self._put(f"{folder}/of/{self.process_id}", short or mine)
        parts = self._count_in(folder)
        if not parts:
            parts = self._wait(folder, deadline, label, limit, before_next_step=before_next_step, advice=advice)
        whole = {short: mine}
        for part in filter(is_digest, parts):
            if part not in whole:
                whole[part] = self._read(f"{folder}/long/{part}", label)
        known = {part: json.loads(whole.get(part, part)) for part in set(parts)}  # usually all say the same
        said = [known[part] for part in parts]
        if any(theirs != label for theirs, _ in said):
            rows = {self.name_of(rank): theirs for rank, (theirs, _) in enumerate(said)}
            raise WorkerMismatchError(
                table_of("The workers do different things at the same time. They must all run the same program.", rows)
            )
        return [text for _, text in said]

    def agree(self, label: str, text: str, problem: str, *, before_next_step: bool = False) -> None:
        """Check that all workers have the same text.

        Args:
            label: What the exchange is about. It must be the same on all workers.
            text: The text of this worker.
            problem: The beginning of the error message.
            before_next_step: As for `exchange`.

        Raises:
            WorkerMismatchError: If the texts differ. The message has a row for each worker.
        """
        texts = self.exchange(label, text, before_next_step=before_next_step)
        if len(set(texts)) > 1:
            rows = {self.name_of(rank): each for rank, each in enumerate(texts)}
            raise WorkerMismatchError(table_of(problem, rows))

    def tell(self, label: str, text: str, *, before_next_step: bool = False) -> str:
        """Return the chief's text on all workers. `before_next_step` is that of `exchange`."""
        return self.exchange(label, text if self.is_chief else "", before_next_step=before_next_step)[0]

    def values(self, label: str) -> "Callable[[Any], list[Any]]":
        """A function that exchanges values which JSON can represent."""

        def exchange(value: Any) -> list[Any]:
            texts = self.exchange(label, json.dumps(value))
            known = {text: json.loads(text) for text in set(texts)}
            return [known[text] for text in texts]

        return exchange

    def _count_in(self, folder: str) -> list[str] | None:
        """Note that this worker's part is in a folder. The last worker to do so gathers all parts, and returns them."""
        try:
            count = self.store.increment(f"{self._prefix}/{folder}/count")
        except (ConnectionError, TimeoutError) as error:
            self._trouble.note(error)
            self._uncounted.add(folder)  # it may have been counted, and must not be counted twice: this worker checks itself
            return None
        self._trouble.end()
        if count < self.num_processes:
            return None
        self._uncounted.add(folder)  # unless it succeeds now
        return self._gather(folder)[0]

    def _gather(self, folder: str) -> tuple[list[str] | None, list[int]]:
        """Look for all parts in a folder, and put them under one key if they are there.

        Several workers may do so at the same time, because all of them put the same.

        Returns:
            The parts, or None if they could not be gathered, and the ranks whose parts are missing.
        """
        found = self._listed(f"{folder}/of/")
        if found is None:
            return None, []
        missing = [rank for rank in range(self.num_processes) if str(rank) not in found]
        if missing:
            return None, missing
        parts = [found[str(rank)] for rank in range(self.num_processes)]
        if not self._succeeds(self.store.put, f"{self._prefix}/{folder}/all", pack_parts(parts), overwrite=True):
            return None, []  # the others must be able to read it, too
        self._uncounted.discard(folder)
        kind, _, number = folder.partition("/")
        if number and int(number):  # all have put their parts, so all have read the previous ones
            self._delete(f"{kind}/{int(number) - 1}")
        return parts, []

    def _wait(
        self,
        folder: str,
        deadline: float,
        label: str,
        limit: float,
        *,
        before_next_step: bool = False,
        advice: str = _SAME_ORDER,
    ) -> list[str]:
        """Wait for the parts of all workers, until some worker has gathered them."""
        while True:
            left = deadline - time.monotonic()
            try:
                return unpack_parts(self.store.get(f"{self._prefix}/{folder}/all", self._slice(left)))
            except TimeoutError:
                pass  # it is not there yet, or the store does not answer: `_fates` below finds out
            except ConnectionError as error:
                self._bear(error, f"waited in {label!r}")
            fates = self._fates()
            if self._trouble.seconds() > self.timeouts.heartbeat or self._others_failed(fates) or _supervisor.is_ordered():
                raise self.lost(f"waited in {label!r}")
            gone = {*self._silent, *fates["ended"]}
            ahead = self._ahead() if before_next_step else set[int]()
            if folder in self._uncounted or gone or ahead or left <= 0:
                parts, missing = self._gather(folder)
                if parts is not None:
                    return parts
                if gone.intersection(missing):
                    raise self.lost(f"waited in {label!r}")
                if passed := ahead.intersection(missing):
                    raise self._passed(label, sorted(passed))
                if left <= 0:
                    raise self._late(label, limit, missing, advice)

    def _ahead(self) -> set[int]:
        """The ranks that have started more programs over all workers than this worker."""
        beats = self._listed_sealed("beat/") or {}
        steps = {int(rank): int(text.split()[2]) for rank, text in beats.items()}
        return {rank for rank, count in steps.items() if count > self.steps}

    def _passed(self, label: str, ranks: Sequence[int]) -> WorkerMismatchError:
        return WorkerMismatchError(
            f"Worker {self.process_id} waits in {label!r}, but {', '.join(map(self.name_of, ranks))} went on with the next step "
            "without it. All workers must do the same things in the same order."
        )

    def _slice(self, left: float) -> float:
        """The time to wait for a key before the next look at who has failed."""
        first = _PAUSE_SECONDS if self._uncounted else _SLICE_SECONDS * self._many
        return max(0.001, min(left, first))

    def _late(self, label: str, limit: float, missing: Sequence[int], advice: str) -> WorkerLostError:
        missing = missing or [rank for rank in range(self.num_processes) if rank != self.process_id]
        return WorkerLostError(
            f"Worker {self.process_id} waited {limit:g} s in {label!r} for "
            f"{', '.join(map(self.name_of, missing))}, which did not come. {advice}{self._known()}"
        )

    def _read(self, key: str, label: str) -> str:
        """Read a text that is known to be there."""
        while True:
            try:
                return self.store.get(f"{self._prefix}/{key}", _SLICE_SECONDS)
            except (ConnectionError, TimeoutError) as error:
                self._bear(error, f"waited in {label!r}")

    def lost(self, what: str, error: BaseException | None = None) -> WorkerLostError:
        """The error to raise when something that the workers do together has failed. It says what is known about the others."""
        deadline = time.monotonic() + (_GRACE_SECONDS if not _supervisor.is_restarted() else _SLICE_SECONDS)
        while not (known := self._known()) and time.monotonic() < deadline and not _supervisor.is_ordered():
            time.sleep(0.1)  # a worker reports its failure before it goes, but not before the others notice
        because = "" if error is None else f" ({str(error).strip().splitlines()[0][:300]})"
        return WorkerLostError(
            f"Worker {self.process_id} of {self.num_processes} {what}, and cannot go on: another worker is gone"
            f"{self._with_names(because)}."
            f"{known or ' No worker has said why: one of them was killed, or its host is lost. See its log.'}"
        )

    def _with_names(self, text: str) -> str:
        """Say after each peer's address in an error of XLA, such as ``peer [10.0.0.2]:3214``, which workers are found there."""

        def name(match: re.Match[str]) -> str:
            there = [self.name_of(rank) for rank, each in enumerate(self.addresses) if each == match[1] and rank != self.process_id]
            return f"{match[0]} ({' or '.join(there)})" if there else match[0]

        return _PEER.sub(name, text)

    def _known(self) -> str:
        """What is known about the other workers, as the rows of a table."""
        fates = self._fates()
        rows = {self.name_of(rank): f"failed: {self._with_names(text)}" for rank, text in self._others_failed(fates).items()}
        for rank in fates["ended"]:
            if rank != self.process_id:
                rows.setdefault(self.name_of(rank), "has ended its program")
        for rank, seconds in self._silent.items():
            rows.setdefault(self.name_of(rank), f"has sent no heartbeat for {seconds:.0f} s")
        if self._trouble.text:
            holder = "the launcher" if self.supervised else self.name_of(0)
            rows.setdefault(holder, f"runs the coordination service, which does not answer: {self._trouble.text}")
        for what in sorted(self._forged):
            rows["somebody else"] = f"has written {what} that was reported by no worker of this job"
        return table_of("", rows) if rows else ""

    # What became of the workers.

    def report_failure(self, text: str) -> None:
        """Tell the others that this worker fails, and why."""
        self._try(self._put_sealed, f"fate/failed/{self.process_id}", text[:_MAX_FAILURE])

    def report_end(self, *, well: bool = True) -> None:
        """Tell the others that this worker's program ends, either without an error or because of another worker."""
        kind = "ended" if well else "left"
        self._try(self._put_sealed, f"fate/{kind}/{self.process_id}", "")

    def failures(self) -> dict[int, str]:
        """What failed workers have said, by rank, without this worker."""
        return self._others_failed(self._fates())

    def _others_failed(self, fates: dict[str, dict[int, str]]) -> dict[int, str]:
        return {rank: text for rank, text in fates["failed"].items() if rank != self.process_id}

    def _fates(self) -> dict[str, dict[int, str]]:
        """What workers have said about themselves, by kind and rank.

        A worker has "failed", has "ended" without an error, has "left" because of another worker, or was asked to "leave".
        """
        fates: dict[str, dict[int, str]] = {"failed": {}, "ended": {}, "left": {}, "leave": {}}
        for key, text in (self._listed_sealed("fate/") or {}).items():
            kind, _, rank = key.partition("/")
            if kind in fates and rank.isdigit():
                fates[kind][int(rank)] = text
        return fates

    def _put_sealed(self, key: str, text: str) -> None:
        self.store.put(f"{self._prefix}/{key}", _seal.close(self._secret, f"{self._prefix}/{key}", text), overwrite=True)

    def _listed_sealed(self, folder: str) -> dict[str, str] | None:
        """As `_listed`, without what no worker of this job has put there. That is told once."""
        found = self._listed(folder)
        if found is None:
            return None
        texts = {key: _seal.open_(self._secret, f"{self._prefix}/{folder}{key}", sealed) for key, sealed in found.items()}
        for key, text in texts.items():
            if text is None:
                self._note_forged(f"{folder}{key}", found[key])
        return {key: text for key, text in texts.items() if text is not None}

    def _note_forged(self, key: str, text: str) -> None:
        what = _FORGED.get("/".join(key.split("/")[:2]), "a message")
        if what in self._forged:
            return
        self._forged.add(what)
        shown = "".join(each if each.isprintable() else " " for each in text[:_SHOWN])
        told = (
            f"{what} was reported by no worker of this job, and is ignored: somebody else can write to its coordination service. "
            f"The key {key!r} holds {shown!r}."
        )
        _logger.warning("Worker %d of %d: %s", self.process_id, self.num_processes, told)
        _supervisor.tell_forged(told)

    def _put(self, key: str, text: str) -> None:
        """Store a text. This may take as long as a worker may be silent.

        Raises:
            WorkerLostError: If it takes longer.
        """
        while True:
            try:
                self.store.put(f"{self._prefix}/{key}", text, overwrite=True)  # it may be there already: answers can get lost
            except (ConnectionError, TimeoutError) as error:
                self._bear(error, "could not talk to the others")
            else:
                self._trouble.end()
                return

    def _bear(self, error: Exception, what: str) -> None:
        """Wait a little before the next try.

        Raises:
            WorkerLostError: If the store has been in trouble for too long, or if this process has left it.
        """
        self._trouble.note(error)
        if isinstance(error, ConnectionAbortedError) or self._trouble.seconds() > self.timeouts.heartbeat:
            raise self.lost(what, error) from error
        time.sleep(_PAUSE_SECONDS)

    def _delete(self, key: str) -> None:
        self._try(self.store.delete, f"{self._prefix}/{key}")

    def _listed(self, folder: str) -> dict[str, str] | None:
        """The texts in a folder, or None if the store does not answer."""
        start = f"{self._prefix}/{folder}"
        found = self._try(self.store.list, start)
        return None if found is None else {key.removeprefix(start): text for key, text in found.items()}

    def _try(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the result of a call to the store, or None if it fails, which is noted."""
        began = time.monotonic()
        try:
            result = call(*args, **kwargs)
        except (ConnectionError, TimeoutError) as error:
            self._trouble.note(error, began)
            return None
        self._trouble.end()
        return result

    def _succeeds(self, call: Callable[..., None], *args: Any, **kwargs: Any) -> bool:
        """Whether a call to the store that returns nothing succeeds."""

        def called() -> bool:
            call(*args, **kwargs)
            return True

        return bool(self._try(called))

    # Leaving together, when one of the workers was asked to leave.

    def leaves_now(self, asked: bool) -> bool:
        """Find out whether to leave now. All workers call this between two steps, the same number of times.

        A worker may be a few steps behind another one, and within a step it waits for the others. So when one of them is asked to
        leave, the watching threads say how many calls each worker has made. The next call of each worker waits for these numbers,
        and all workers leave one step after the greatest of them.

        Args:
            asked: Whether this worker was asked to leave.

        Returns:
            True after the same step on all workers, once one of them was asked to leave.

        Raises:
            WorkerLostError: If a worker does not say how many calls it has made.
        """
        leaving = self._leaving
        with leaving.lock:
            leaving.num_calls += 1
            count, known = leaving.num_calls, leaving.known
        if asked and not leaving.told:
            leaving.told = True
            key = f"fate/leave/{self.process_id}"
            self._put(key, _seal.close(self._secret, f"{self._prefix}/{key}", ""))
        if known and leaving.last is None:
            limit = self.timeouts.exchange
            calls = self._wait("at", time.monotonic() + limit, "leaving", limit)
            leaving.last = 1 + max(map(int, calls))
        return leaving.last is not None and count >= leaving.last

    def _tell_where(self) -> None:
        """Say how many calls this worker has made, once any worker was asked to leave.

        The watching thread calls this again until it succeeds.
        """
        leaving = self._leaving
        if not leaving.known:
            with leaving.lock:
                leaving.known, leaving.at = True, leaving.num_calls
        if leaving.at is not None:
            if self._succeeds(self.store.put, f"{self._prefix}/at/of/{self.process_id}", str(leaving.at), overwrite=True):
                leaving.at = None
                self._count_in("at")
        elif "at" in self._uncounted:
            self._gather("at")

    # Heartbeats.

    def begin_watch(self, leave: Callable[[str], None]) -> None:
        """Send heartbeats, and look for those of the others. If this process must end, `leave` is called with the reason."""
        self._watch = threading.Thread(target=self._run_watch, args=(leave,), name="replicant-watch", daemon=True)
        self._watch.start()

    def end_watch(self) -> None:
        """Stop sending heartbeats."""
        self._ended.set()
        if self._watch is not None and self._watch is not threading.current_thread():
            self._watch.join(timeout=2 * _BEAT_SECONDS)

    def _run_watch(self, leave: Callable[[str], None]) -> None:
        """Watch. If that fails, for whatever reason, this worker ends: it would not notice any more that another one is lost."""
        try:
            self._watch_all(leave)
        except BaseException as error:  # noqa: BLE001 - it is told
            leave(
                f"Worker {self.process_id} of {self.num_processes} ends because its thread that watches the others has failed. "
                f"This is an error of Replicant's.\n{''.join(traceback.format_exception(error)).strip()}"
            )

    def _watch_all(self, leave: Callable[[str], None]) -> None:
        lookout = Lookout(self.process_id, self.num_processes, self.timeouts.heartbeat)
        number, troubled_since, ordered_since = 0, None, None
        beat = min(_BEAT_SECONDS * self._many, self.timeouts.heartbeat)
        while not self._ended.wait(_URGENT_SECONDS if troubled_since or self._trouble.text else beat):
            number += 1
            ordered_since = (ordered_since or time.monotonic()) if _supervisor.is_ordered() else None
            if ordered_since and time.monotonic() - ordered_since > _OBEY_SECONDS:  # it waits for a worker whose link is cut
                self.break_off()
            self._try(self._put_sealed, f"beat/{self.process_id}", f"{number} {self.progress} {self.steps}")
            news = self._look_after(lookout)
            if news.leave:
                self._tell_where()
            self._silent = {rank: seconds for rank, seconds in news.silent.items() if rank != self.process_id}
            failed = any(rank != self.process_id for rank in news.failed)
            longest = max(self._trouble.seconds(), *self._silent.values(), 0.0)
            trouble = failed or bool(self._silent) or longest > self.timeouts.heartbeat
            is_seen_to = _supervisor.is_watched() or (self.supervised and not self._trouble.is_final)  # by the supervisor
            if not trouble or is_seen_to:
                troubled_since = None
                continue
            now = time.monotonic()
            known_for = 0.0 if self._trouble.is_final else max(0.0, longest - self.timeouts.heartbeat)
            troubled_since = troubled_since or now - known_for
            grace = _GRACE_SECONDS if failed or self._trouble.is_final else _SILENT_GRACE_SECONDS
            if now - troubled_since > grace and not self._ended.is_set():
                leave(f"Worker {self.process_id} of {self.num_processes} ends because it cannot go on alone.{self._known()}")
                return

    def _look_after(self, lookout: Lookout) -> News:
        """What is known about all workers. This worker either finds it out and tells the others, or is told."""
        if self.process_id:
            told = self._listed_sealed("news/")
            if told is None:
                return lookout.news
            lookout.hear(told.get("now"))
        if lookout.looks:
            beats, fates = self._listed_sealed("beat/"), self._fates()
            if beats is None or self._trouble.text:
                return lookout.news  # that this worker cannot hear does not mean that the others are silent
            ranks = {int(rank): text for rank, text in beats.items()}
            news = lookout.look(ranks, fates["ended"], fates["failed"], bool(fates["leave"]), time.monotonic())
            self._try(self._put_sealed, "news/now", news.text())
        return lookout.news

    def wait_for_others(self, timeout_seconds: float) -> None:
        """Wait until all others have ended, failed or fallen silent, because process 0 runs the service through which they talk."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline and self._trouble.seconds() <= self.timeouts.heartbeat:
            fates = self._fates()
            gone = {*fates["ended"], *fates["left"], *fates["failed"], *self._silent, self.process_id}
            if len(gone) >= self.num_processes:
                return
            time.sleep(0.05)


def _do_nothing() -> None:
    """How exchanges are broken off where nobody needs it."""


class _Leaving:
    """What is known about a request to leave."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.num_calls = 0  # number of calls of `leaves_now`
        self.told = False  # whether this worker has told the others that it was asked
        self.known = False  # whether it is known that any worker was asked
        self.at: int | None = None  # `num_calls` when this became known, until the others can read it
        self.last: int | None = None  # the call after which all leave


class _Trouble:
    """What keeps this worker from its store, and since when without a break."""

    def __init__(self) -> None:
        self.text = ""  # empty if the last call was answered
        self.is_final = False  # whether no call will be answered any more
        self._since = 0.0

    def note(self, error: Exception, began: float | None = None) -> None:
        """Note that a call has failed, and when it began."""
        if not self.text:
            self._since = time.monotonic() if began is None else began
        self.text = str(error)
        self.is_final = self.is_final or isinstance(error, ConnectionResetError)

    def end(self) -> None:
        """Note that a call was answered."""
        self.text = "" if not self.is_final else self.text

    def seconds(self) -> float:
        """The seconds since the first of the calls that have failed in a row, infinite if all calls will fail, or 0 if none has."""
        if self.is_final:
            return math.inf
        return time.monotonic() - self._since if self.text else 0.0


def this_process() -> str:
    """The host and process number of this process."""
    return f"{socket.gethostname()} pid {os.getpid()}"


def describe_error(error: BaseException) -> str:
    """Describe an error in one line, for the other workers. One that speaks of lost workers is told in full: it names them."""
    lines: list[Any] = str(error).strip().splitlines() or [""]
    if isinstance(error, WorkerLostError):
        return f"{type(error).__name__}: {' '.join(line.strip() for line in lines)}"
    return f"{type(error).__name__}: {lines[0][:500]}" if lines[0] else type(error).__name__
