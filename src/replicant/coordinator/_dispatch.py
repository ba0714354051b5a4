"""Hands scheduled functions to workers, takes their answers, and remembers what became of each."""

import collections
import contextlib
import pickle
import threading
from collections.abc import Callable
from typing import Any

import jax

from .._identity import function_key
from ..errors import CancelledError, LostProcessError
from . import _travel
from ._cluster import Cluster, Member
from ._queue import ClosureQueue
from ._remote_value import RemoteValue
from ._stats import Stats
from ._told import pack_error
from ._wire import Closed

_MAX_QUEUED = 512  # then `schedule` waits until there are half as many
_MAX_FUNCTIONS = 128  # that workers keep; the least recently scheduled are forgotten
_MAX_ATTEMPTS = 5


class _Closure:
    def __init__(self, function: int, args: Any, remote: RemoteValue):
        self.function = function
        self.args = args  # as they were given, where they hold RemoteValues; else as bytes
        self.remote = remote


class _Functions:
    """Functions that have been scheduled, as bytes, each with a number."""

    def __init__(self) -> None:
        self._numbers: collections.OrderedDict[Any, int] = collections.OrderedDict()
        self.blobs: dict[int, bytes] = {}
        self._count = 0

    def number_of(self, fn: Callable[..., Any]) -> tuple[int, int | None]:
        """The function's number, and that of one to forget."""
        key = function_key(fn)
        forgotten = None
        if key not in self._numbers:
            blob = _travel.dumps(fn, f"The function {getattr(fn, '__qualname__', fn)!r}")
            self._numbers[key], self._count = self._count, self._count + 1
            self.blobs[self._numbers[key]] = blob
            if len(self._numbers) > _MAX_FUNCTIONS:
                _, forgotten = self._numbers.popitem(last=False)
        self._numbers.move_to_end(key)
        return self._numbers[key], forgotten


class Dispatcher:
    """All of a coordinator's closures. Called by the user's threads and by the cluster's watching thread."""

    def __init__(self, cluster: Cluster, prepare: Callable[[int, list[int]], None], max_staleness: int | None):
        self._cluster = cluster
        self._prepare = prepare
        self._changed = threading.Condition()
        self._queue = ClosureQueue(max_staleness=max_staleness, max_attempts=_MAX_ATTEMPTS)
        self._closures: dict[int, _Closure] = {}
        self._functions = _Functions()
        self._known: dict[int, set[int]] = {}  # by client number: functions that the worker has
        self._workers: collections.deque[Member] = collections.deque()
        self._error: Exception | None = None
        self.stats = Stats()
        cluster.on_ready, cluster.on_message, cluster.on_lost = self._ready, self._answered, self._lost
        cluster.on_wake = self._dispatch
        with self._changed:
            for worker in cluster.workers:
                self._ready(worker)

    # The user's side

    def schedule(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> RemoteValue:
        """Queue a call."""
        leaves = jax.tree.leaves((args, kwargs), is_leaf=lambda x: isinstance(x, RemoteValue))
        needs = [leaf._number for leaf in leaves if isinstance(leaf, RemoteValue)]
        packed: Any = (args, kwargs) if needs else _pack_args(args, kwargs)
        with self._changed:
            self._raise_error()
            self._changed.wait_for(lambda: len(self._queue) < _MAX_QUEUED or self._broken())
            self._raise_error()
            function, _ = self._functions.number_of(fn)
            number = self._queue.add(needs)
            remote = RemoteValue(number)
            self._closures[number] = _Closure(function, packed, remote)
            starved = self._queue.has_room(len(self._workers))
        if starved:
            self._cluster.wake()
        return remote

    def join(self, timeout: float | None) -> None:
        """Wait until everything has ended."""
        with self._changed:
            ended = self._changed.wait_for(lambda: not len(self._queue) or self._broken(), timeout)
            self._raise_error()
            if not ended:
                busy = [str(worker) for worker in self._workers if self._queue.held_by(worker.client)]
                raise LostProcessError(
                    f"{len(self._queue)} scheduled functions have not ended within {timeout:g} s. Busy: "
                    f"{', '.join(busy) or 'nobody'}. They go on; `kill -USR1` makes a worker print where it is."
                )

    def done(self) -> bool:
        """Whether everything has ended."""
        with self._changed:
            self._raise_error()
            return not len(self._queue)

    def _broken(self) -> bool:
        return self._cluster.failure is not None or self._cluster.closed

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            self._changed.wait_for(lambda: not len(self._queue) or self._broken())  # what runs already
            raise error
        self._cluster.check()

    # The cluster's side

    def _ready(self, worker: Member) -> None:
        with self._changed:
            if worker.ready and worker.client not in self._known:
                self._known[worker.client] = set()
                self._workers.append(worker)
        self._dispatch()

    def _dispatch(self) -> None:
        with self._changed:
            if self._broken():
                self._give_up()
                return
            waiting = len(self._workers)
            while waiting and self._queue.num_ready:
                worker = self._workers[0]
                self._workers.rotate(-1)
                task = self._queue.take(worker.client)
                waiting = waiting - 1 if task is None else len(self._workers)
                if task is not None:
                    self._send(worker, task)

    def _send(self, worker: Member, task: Any) -> None:
        closure = self._closures[task.closure]
        known = self._known[worker.client]
        try:
            args = closure.args if isinstance(closure.args, bytes) else _pack_args(*_filled(closure.args))
            if closure.function not in known:
                worker.control.send(("function", closure.function, self._functions.blobs[closure.function]))
                known.add(closure.function)
            worker.control.send(("run", task, closure.function, args))
        except Closed:
            pass  # noticed by the cluster, which calls _lost
        except Exception as error:  # noqa: BLE001 - an argument's own value or pickling failed: that is this closure's result
            self._end(task.closure, None, error)

    def _answered(self, worker: Member, message: tuple[Any, ...]) -> None:
        what, number, *rest = message
        if what == "prepare":
            threading.Thread(target=self._prepare_for, args=(worker, number, rest[0]), name="replicant-prepare").start()
            return
        attempt, blob, cost = rest
        with self._changed:
            if self._queue.is_current(number, attempt):
                self.stats.note(worker.index, *cost)
                value = pickle.loads(blob)  # noqa: S301 - from a worker, which this program started
                self._end(number, *((value, None) if what == "done" else (None, value)))
        self._dispatch()

    def _prepare_for(self, worker: Member, optimizer: int, variables: list[int]) -> None:
        error = None
        try:
            self._prepare(optimizer, variables)
        except Exception as raised:  # noqa: BLE001 - told to the function that asked
            error = pack_error(raised, "the coordinator")
        with self._changed, contextlib.suppress(Closed):
            worker.control.send(("prepared", optimizer, error))

    def _end(self, number: int, value: Any, error: Exception | None) -> None:
        closure = self._closures.pop(number)
        self._queue.end(number)
        closure.remote._end(value, error)
        if error is not None and self._error is None:
            self._error = error
            for cancelled in self._queue.cancel_queued():
                self._closures.pop(cancelled).remote._end(None, _cancelled(error))
        if error is not None or len(self._queue) in (0, _MAX_QUEUED // 2):
            self._changed.notify_all()

    def _lost(self, worker: Member, how: str) -> None:
        with self._changed:
            self._known.pop(worker.client, None)
            if worker in self._workers:
                self._workers.remove(worker)
            for number in self._queue.lose(worker.client):
                text = f"A scheduled function lost {_MAX_ATTEMPTS} workers one after the other; the last, {worker}, {how}."
                self._end(number, None, LostProcessError(text))

    def _give_up(self) -> None:
        """Nothing runs any more: end everything."""
        error = self._cluster.failure or LostProcessError("The strategy was closed before this function ran.")
        for closure in self._closures.values():
            closure.remote._end(None, error)
        self._closures.clear()
        self._changed.notify_all()


def _pack_args(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    return _travel.dumps((args, kwargs), "An argument of a scheduled function")


def _filled(args: Any) -> Any:
    """Arguments with the values of the RemoteValues among them."""
    is_remote = lambda x: isinstance(x, RemoteValue)  # noqa: E731
    return jax.tree.map(lambda x: x.fetch(0) if is_remote(x) else x, args, is_leaf=is_remote)


def _cancelled(error: Exception) -> CancelledError:
    return CancelledError(f"This scheduled function did not run, because another one had failed: {type(error).__name__}: {error}")
