"""The dispatcher: sends closures to workers, receives their answers, and ends each closure with its result."""

import collections
import contextlib
import dataclasses
import logging
import pickle
import threading
from collections.abc import Callable
from typing import Any

from ...errors import LostProcessError, ParameterServerError
from .._remote_value import RemoteValue
from ..processes._cluster import Cluster
from ..processes._events import Relay
from ..processes._member import Member
from ..wire._channel import Closed
from ..wire._errors import pack_error, unpack_error
from ..wire._pulse import Vigil
from ..wire._task import Task
from ..workers._arguments import pack
from ._closures import Closure, Functions, name_of
from ._delivered import Delivered
from ._merge import merge
from ._pace import Pace
from ._queue import ClosureQueue
from ._rounds import Rounds
from ._stats import Stats

_MAX_QUEUED = 512  # closures; `schedule` then waits until half as many are left
_MAX_QUEUED_EACH = 8  # the same per worker, if that is more: half of these last for two rounds of all workers
_MAX_ATTEMPTS = 5
_MAX_IDLE_DEATHS = 20  # workers lost in a row that had been sent closures and had started none
_DISAGREE_SECONDS = 60.0  # how long a worker may be doing something other than what it was sent
_STALL_SECONDS = 60.0  # after this long without the end of any closure, a warning says who has what; the time then doubles
_logger = logging.getLogger("replicant.coordinator")


class Dispatcher:
    """Owns all closures of a coordinator. Called by the user's threads and, as `Events`, by the cluster's watching thread.

    Args:
        relay: passes on the cluster's events.
        prepare: makes sure that the servers know an optimizer, given its number and those of its variables.
        rounds: which changes are applied together. None: each closure pushes its own.
    """

    def __init__(
        self,
        cluster: Cluster,
        relay: Relay,
        prepare: Callable[[int, list[int]], None],
        max_staleness: int | None,
        rounds: Rounds | None = None,
    ):
        self._cluster = cluster
        self._prepare = prepare
        self._changed = threading.Condition()
        self._rounds = rounds
        self._num_joining = 0
        self._num_scheduling = 0  # threads that wait for room
        depth = {} if rounds is None and cluster.keeps_answers else {"depth": 1}  # otherwise a waiting closure may start too early
        self._queue = ClosureQueue(max_staleness=max_staleness, max_attempts=_MAX_ATTEMPTS, **depth)
        self._closures: dict[int, Closure] = {}
        self._functions = Functions()
        self._delivered = Delivered()
        self._workers: collections.deque[Member] = collections.deque()
        self._pace = Pace()
        self._prepared: collections.deque[tuple[Member, Any]] = collections.deque()  # answers to send
        self._error: Exception | None = None
        self._num_idle_deaths = 0
        self._stall, self._next_report = Vigil(), _STALL_SECONDS
        self.stats = Stats(rounds)
        with cluster.lock:  # so that a worker being replaced is reported as lost, or is already its successor here
            relay.pass_on_to(self)
            for worker in cluster.workers:
                self.ready(worker)

    # The user's side

    def schedule(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, alone: bool = False
    ) -> RemoteValue:
        """Queue a call. With `alone`, it pushes its changes itself while it runs, even in a synchronous coordinator."""
        packed = pack((args, kwargs))
        with self._changed:
            self._raise_error()
            self._wait_for_room()
            self._raise_error()
        function, sent = self._functions.pack(fn)
        with self._changed:
            self._raise_error()
            number = self._queue.add(packed.needs)
            remote = RemoteValue(number)
            holds = self._rounds is not None and not alone
            self._closures[number] = Closure(name_of(fn), function, sent, packed, remote, holds=holds)
            starved = self._queue.has_room(len(self._workers))
        if starved:
            self._cluster.wake()
        return remote

    def _wait_for_room(self) -> None:
        if len(self._queue) < self._max_queued():
            return
        self._num_scheduling += 1
        try:
            self._changed.wait_for(lambda: len(self._queue) <= self._max_queued() // 2 or self._broken() or self._error is not None)
        finally:
            self._num_scheduling -= 1

    def _max_queued(self) -> int:
        return max(_MAX_QUEUED, _MAX_QUEUED_EACH * len(self._workers))

    def join(self, timeout: float | None) -> None:
        """Wait until all closures have ended and their changes have been applied."""
        with self._changed:
            self._num_joining += 1
        self._cluster.wake()  # changes that wait for others to be applied with stop waiting
        with self._changed:
            try:
                ended = self._changed.wait_for(lambda: self._all_applied() or self._broken(), timeout)
            finally:
                self._num_joining -= 1
            self._raise_error(patient=ended)
            if not ended:
                text = f"{len(self._queue)} closures have not ended within {timeout:g} s. {self._who_has_what()}"
                raise LostProcessError(f"{text} They keep running; `kill -USR1` makes a worker print where it is.")

    def done(self) -> bool:
        """Whether all closures have ended."""
        with self._changed:
            self._raise_error()
            return not len(self._queue)

    def _all_applied(self) -> bool:
        return not len(self._queue) and (self._rounds is None or self._rounds.is_idle)

    def _broken(self) -> bool:
        return self._cluster.failure is not None or self._cluster.closed

    def _raise_error(self, *, patient: bool = True) -> None:
        error, self._error = self._error, None
        if error is not None:
            if patient:
                self._changed.wait_for(lambda: not len(self._queue) or self._broken())  # for what is already running
            raise error
        self._cluster.check()

    # The cluster's side

    def ready(self, worker: Member) -> None:
        """See `Events`."""
        with self._changed:
            if worker.ready and worker not in self._delivered:
                self._delivered.join(worker)
                self._workers.append(worker)
        self.woken()

    def woken(self) -> None:
        """See `Events`: send workers what they can run now."""
        with self._changed:
            if self._broken():
                self._give_up()
                return
            while self._prepared:
                worker, answer = self._prepared.popleft()
                with contextlib.suppress(Closed):  # the cluster notices
                    worker.control.post(answer)
            self._delivered.drop_gone(self._workers, self._functions.forgotten)
            waiting = len(self._workers)
            while waiting and self._queue.num_ready and (self._rounds is None or self._rounds.may_begin()):
                worker = self._workers[0]
                self._workers.rotate(-1)
                tasks = self._take(worker.client)
                waiting = len(self._workers) if tasks else waiting - 1
                if tasks:
                    self._send(worker, tasks)
            self._close_round()

    def _take(self, worker: int) -> list[Task]:
        """Take the closures that a worker gets now, at most its share of those that are ready."""
        queue, tasks = self._queue, []
        share = -(-queue.num_ready // len(self._workers))
        while queue.num_ready and len(tasks) < share and (tasks or queue.is_short_of(worker)):
            function = self._closures[queue.first_ready()].function
            task = queue.take(worker, self._pace.seconds(worker, function))
            if task is None:
                break
            tasks.append(task)
        return tasks

    def _send(self, worker: Member, tasks: list[Task]) -> None:
        """Send closures together, so that their worker is woken once."""
        with contextlib.suppress(Closed):  # the cluster notices, and calls `lost`
            worker.control.post_all([message for task in tasks if (message := self._message(worker, task)) is not None])

    def _message(self, worker: Member, task: Task) -> Any:
        """A closure as it is sent. What the worker needs before it is sent here. Raises Closed."""
        closure = self._closures[task.closure]
        if closure.holds and self._rounds is not None:
            task = dataclasses.replace(task, holds=True)
            self._rounds.begin(task.closure, worker.client)
        try:
            args = closure.args.packed()
            self._delivered.send_function(worker, closure.function, closure.packed)
            self._delivered.send_parcels(worker, args.parcels)
        except Closed:
            raise
        except Exception as error:  # noqa: BLE001 - an argument failed, or its pickling: that is this closure's result
            self._end(task.closure, None, error)
            return None
        return "run", task, closure.function, args.data, closure.unfinished

    def said(self, worker: Member, message: tuple[Any, ...]) -> None:
        """See `Events`: a closure's answer, or a request to prepare an optimizer."""
        what, number, *rest = message
        if what == "prepare":
            self._cluster.help_out("replicant-prepare", self._prepare_for, worker, number, rest[0])
            return
        attempt, blob, cost, held = rest
        with self._changed:
            if self._queue.is_current(number, attempt):
                self._num_idle_deaths = 0
                self.stats.note(worker.index, *cost)
                self._pace.note(worker.client, self._closures[number].function, cost[0])
                if self._rounds is not None and held is not None and any(held):
                    self._rounds.offer(number, held)
                self._end(number, *_result(what, blob, worker))
        self.woken()

    def _prepare_for(self, worker: Member, optimizer: int, variables: list[int]) -> None:
        error = None
        try:
            self._prepare(optimizer, variables)
        except Exception as raised:  # noqa: BLE001 - the closure that asked gets it
            error = pack_error(raised, "the coordinator")
        with self._changed:
            self._prepared.append((worker, ("prepared", optimizer, error)))
        self._cluster.wake()  # only the watching thread may send to workers

    def _end(self, number: int, value: Any, error: Exception | None) -> None:
        closure = self._closures.pop(number)
        self._queue.end(number)
        if self._rounds is not None:
            self._rounds.leave(number)
        closure.end(value, error)
        if error is not None:
            self._cancel(error)
        has_room = self._num_scheduling and len(self._queue) <= self._max_queued() // 2
        if error is not None or has_room or not len(self._queue):
            self._changed.notify_all()

    def _cancel(self, error: Exception) -> None:
        """After a failure: cancel the closures that have not started."""
        if self._error is None:
            self._error = error
            for cancelled in self._queue.cancel_queued():
                self._closures.pop(cancelled).cancel(error)

    def _close_round(self) -> None:
        """Apply a complete round. Not in this thread, which must stay free to replace lost servers."""
        last = self._num_joining > 0 and not self._queue.num_ready
        offers = None if self._rounds is None else self._rounds.close(last=last)
        if offers is not None:
            self._cluster.help_out("replicant-update", self._apply, self._rounds, offers)

    def _apply(self, rounds: Rounds, offers: list[Any]) -> None:
        error = None
        try:
            self._cluster.client.push(merge(offers))
        except Exception as raised:  # noqa: BLE001 - the next join raises whatever an optimizer raised
            error = raised
        with self._changed:
            rounds.applied()
            if error is not None:
                self._cancel(error)
            self._changed.notify_all()
        if not self._broken():
            self._cluster.wake()  # only the watching thread may send to workers

    def lost(self, worker: Member, how: str) -> None:
        """See `Events`."""
        with self._changed:
            self._delivered.leave(worker)
            self._pace.forget(worker.client)
            if self._rounds is not None:
                self._rounds.lose(worker.client)
            if worker in self._workers:
                self._workers.remove(worker)
            held = self._queue.first_held(worker.client)
            executing = worker.executing if worker.has_pulse else held
            if held is not None and (unfinished := worker.unfinished(held[0])) is not None:
                self._closures[held[0]].unfinished = unfinished
            for number in self._queue.lose(worker.client, executing[0] if executing else None):
                name = self._closures[number].name
                text = f"{_MAX_ATTEMPTS} workers were lost while they ran closure {number} ({name!r}). The last, {worker}, {how}."
                self._end(number, None, LostProcessError(text))
            self._num_idle_deaths += held is not None and executing is None
            if self._num_idle_deaths >= _MAX_IDLE_DEATHS:
                self._cluster.failure = LostProcessError(
                    f"{_MAX_IDLE_DEATHS} workers in a row were lost before they started any of the closures they had been sent. "
                    f"The last, {worker}, {how}."
                )

    # Once a second

    def look(self, passed: float) -> None:
        """See `Events`."""
        with self._changed:
            workers = () if self._broken() else self._workers
            doubtful = [(worker, text) for worker in workers if (text := self._doubt(worker, passed))]
            seconds = self._stall.look(self._queue.num_ended if len(self._queue) else None, passed)
            if seconds < _STALL_SECONDS:
                self._next_report = _STALL_SECONDS
            elif seconds >= self._next_report and len(self._queue):
                self._next_report *= 2
                _logger.warning("No closure has ended for %.0f s. %s", seconds, self._who_has_what())
        for worker, text in doubtful:
            self._cluster.end(worker, text)

    def _doubt(self, worker: Member, passed: float) -> str | None:
        """Why a worker must be ended that has long been doing something other than what it was sent; None if it need not be."""
        believed = self._queue.first_held(worker.client)
        seconds = worker.health.disagrees(worker.running, believed, worker.control.outgoing_bytes, passed)
        if seconds < _DISAGREE_SECONDS:
            return None
        sent, real = (f"closure {x[0]} (attempt {x[1]})" if x else "nothing" for x in (believed, worker.executing))
        return f"should have been running {sent} for {seconds:.0f} s, and is running {real}: a message was lost"

    def _who_has_what(self) -> str:
        parts = []
        for worker in self._cluster.workers:
            held = self._queue.first_held(worker.client)
            if not worker.ready:
                parts.append(f"{worker} is starting")
            elif held is None:
                parts.append(f"{worker} has nothing to do")
            else:
                number, attempt = held
                rest = self._queue.held_by(worker.client) - 1
                parts.append(f"{worker} has {self._closures[number].name!r} (closure {number}, attempt {attempt}) and {rest} more")
        starting = [f"{server} is starting" for server in self._cluster.servers if not server.ready]
        return f"{'; '.join([*parts, *starting])}. Not sent to any worker: {self._queue.num_queued}."

    def _give_up(self) -> None:
        """End all closures: nothing runs any more."""
        error = self._cluster.failure or LostProcessError("The strategy was closed before this closure ended.")
        for closure in self._closures.values():
            closure.end(None, error)
        self._closures.clear()
        self._changed.notify_all()


def _result(what: str, blob: bytes | None, worker: Member) -> tuple[Any, Exception | None]:
    """The value or error in a worker's answer."""
    if blob is None:
        return None, None
    try:
        if what == "failed":
            return None, unpack_error(blob)
        return pickle.loads(blob), None  # noqa: S301 - from a worker, which this program started
    except Exception as error:  # noqa: BLE001 - its class may exist on the worker only
        return None, ParameterServerError(f"The answer of {worker} cannot be unpickled here: {type(error).__name__}: {error}.")
