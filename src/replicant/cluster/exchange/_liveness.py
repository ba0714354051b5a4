"""The thread that sends heartbeats, and looks for those of the other workers. It ends a process that cannot go on alone."""

import threading
import time
import traceback
from collections.abc import Callable

from ..wire import _supervisor
from ._exchange import Exchange
from ._fates import GRACE_SECONDS, Fates
from ._leaving import Leaving
from ._lookout import Lookout, News
from ._peers import Peers
from ._sealed_store import SealedStore

_BEAT_SECONDS = 1.0  # between two heartbeats
_URGENT_SECONDS = 0.25  # between two heartbeats while something is wrong
_OBEY_SECONDS = 1.0  # for the main thread to obey an order to form a new group, before its exchange is broken off
_SILENT_GRACE_SECONDS = 1.0  # as GRACE_SECONDS, once another is silent: a cut link brings no error


class Liveness:
    """Whether the workers are alive.

    Args:
        peers: The workers.
        sealed: Where the workers send heartbeats, and one of them tells the others what it has found out.
        exchange: How many steps this worker has started, which its heartbeats tell.
        fates: What became of each worker. It is told who is silent.
        leaving: Who is told that a worker was asked to leave.
    """

    def __init__(self, peers: Peers, sealed: SealedStore, exchange: Exchange, fates: Fates, leaving: Leaving):
        self._peers, self._sealed, self._exchange, self._fates, self._leaving = peers, sealed, exchange, fates, leaving
        self._store, self._silence = sealed.store, sealed.store.patience
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def begin(self, leave: Callable[[str], None], break_off: Callable[[], object] | None = None) -> None:
        """Send heartbeats, and look for those of the others.

        Args:
            leave: Called with the reason if this process must end.
            break_off: Ends an exchange in which the main thread may be stuck.
        """
        self._thread = threading.Thread(target=self._run, args=(leave, break_off), name="replicant-watch", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop sending heartbeats."""
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=2 * _BEAT_SECONDS)

    def _run(self, leave: Callable[[str], None], break_off: Callable[[], object] | None) -> None:
        """Watch. If that fails, for whatever reason, this worker ends: it would not notice any more that another one is lost."""
        try:
            reason = self._watch(break_off)
        except BaseException as error:  # noqa: BLE001 - it is told
            trace = "".join(traceback.format_exception(error)).strip()
            reason = f"its thread that watches the others has failed. This is an error of Replicant's.\n{trace}"
        if reason:
            leave(f"Worker {self._peers.process_id} of {self._peers.num_processes} ends because {reason}")

    def _watch(self, break_off: Callable[[], object] | None) -> str:
        """Send heartbeats, and look for those of the others, until the end. Returns why this worker cannot go on, or ""."""
        lookout = Lookout(self._peers.process_id, self._peers.num_processes, self._silence)
        number, troubled_since, ordered_since = 0, None, None
        beat = min(_BEAT_SECONDS * self._peers.stretch, self._silence)
        while not self._ended.wait(_URGENT_SECONDS if troubled_since or self._store.trouble else beat):
            ordered_since = (ordered_since or time.monotonic()) if _supervisor.is_ordered() else None
            if break_off and ordered_since and time.monotonic() - ordered_since > _OBEY_SECONDS:
                break_off()  # it waits for a worker whose link is cut
            number += 1
            self._sealed.try_put(f"beat/{self._peers.process_id}", f"{number} {self._exchange.steps}")
            news = self._look(lookout)
            if news.leave:
                self._leaving.tell_where()
            self._fates.note_silent(news.silent)
            failed = any(rank != self._peers.process_id for rank in news.failed)
            longest = max(self._store.fails_for(), *self._fates.silent.values(), 0.0)
            if self._is_seen_to() or not (failed or self._fates.silent or longest > self._silence):
                troubled_since = None
                continue
            now = time.monotonic()
            known_for = 0.0 if self._store.is_gone else max(0.0, longest - self._silence)
            troubled_since = troubled_since or now - known_for
            grace = GRACE_SECONDS if failed or self._store.is_gone else _SILENT_GRACE_SECONDS
            if now - troubled_since > grace and not self._ended.is_set():
                return f"it cannot go on alone.{self._fates.known()}"
        return ""

    def _is_seen_to(self) -> bool:
        """Whether a supervisor sees to workers that are lost."""
        return _supervisor.is_watched() or (self._peers.supervised and not self._store.is_gone)

    def _look(self, lookout: Lookout) -> News:
        """What is known about all workers. This worker either finds it out and tells the others, or is told."""
        if self._peers.process_id:
            told = self._sealed.list("news/")
            if told is None:
                return lookout.news
            lookout.hear(told.get("now"))
        if lookout.looks:
            beats, told = self._sealed.list("beat/"), self._fates.told()
            if beats is None or self._store.trouble:
                return lookout.news  # that this worker cannot hear does not mean that the others are silent
            ranks = {int(rank): text for rank, text in beats.items()}
            news = lookout.look(ranks, told["ended"], told["failed"], bool(told["leave"]), time.monotonic())
            self._sealed.try_put("news/now", news.text())
        return lookout.news
