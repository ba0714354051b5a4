"""Starts compiled programs without deadlocks, and without losing their results.

On CPUs, programs that exchange data between virtual devices occupy threads of a shared pool while they wait for each other. If
there are too many, none of them can finish, and XLA aborts after a minute. So at most ``_MAX_IN_FLIGHT`` programs are started
before the oldest must have ended. This costs nothing, because a device computes one program at a time anyway. One lock keeps the
queues of all devices in the same order if several threads start programs, and makes reading and writing a program's variables one
atomic step.
"""

import collections
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Protocol

from ..cluster.jax import _bootstrap, _gloo_chatter
from ..cluster.wire import _supervisor
from ..kernels.xla import _heap

_MAX_IN_FLIGHT = 4
_GIVES_WAY = 20e-6  # seconds in which a thread that waits for the lock wakes up
_PATIENCE = 5.0  # seconds to wait for the lock before variables are read without it

lock = threading.RLock()
_in_flight: collections.deque[Any] = collections.deque()
_starter: int | None = None  # the thread that has started the last program


@contextmanager
def between_starts() -> Iterator[bool]:
    """Let no program start in the block, which reads or replaces what variables hold. Yields whether that is so.

    A step may hold the lock until a callback of the host has ended that wants to read a variable. After some seconds, the block
    runs all the same, because such steps overwrite nothing. A thread that does nothing but read gives way to the one that starts
    programs: Python's locks are not fair, and it would take the lock again before the other one wakes up.
    """
    is_mine = lock.acquire(timeout=_PATIENCE)
    try:
        yield is_mine
    finally:
        if is_mine:
            lock.release()
            if _starter not in (None, threading.get_ident()):
                time.sleep(_GIVES_WAY)


class State(Protocol):
    """The place that keeps a program's state, whose old values the program has overwritten."""

    def store(self, values: Sequence[Any], /) -> None:
        """Store the new values."""
        ...

    def put_back(self, before: Any, after: Any, /) -> None:
        """Store the values from before a program again, whose new values are none because it failed."""
        ...

    def take_back(self) -> None:
        """Undo what an interrupted `store` has left incomplete, so that it can be done again."""
        ...


def call(program: Callable[..., Any], *args: Any, bounded: bool, state: State | None = None, in_parts: bool = False) -> Any:
    """Start ``program(*args)`` and return its results, which may still be computed.

    Args:
        program: The program. It returns an array, or a tuple that begins with one, which is ready once the program has ended. If
            the program is bounded, nobody else may get this array.
        *args: The inputs of the program. Inputs that it consumes must be read under `lock`.
        bounded: Whether to limit the number of such programs in flight, because too many of them would wait for each other forever.
        state: Stores the last of the program's results, even if Ctrl-C arrives while the program starts. They must not be lost,
            because the program has consumed its donated inputs.
        in_parts: Whether the program starts in several parts, between which Ctrl-C must not arrive.

    Returns:
        What the program returns.

    Raises:
        WorkerLostError: If a program failed because another worker is gone.
    """
    global _starter  # noqa: PLW0603 - of the process, as the lock is
    box: list[Any] = []
    with lock:
        _starter = threading.get_ident()
        try:
            if in_parts:
                with _without_ctrl_c():
                    _start(program, args, box, bounded=bounded)
            else:
                _start(program, args, box, bounded=bounded)
        finally:
            if box and state is not None:
                try:
                    state.store(box[0][-1])
                except KeyboardInterrupt:  # store everything, and each change only once
                    state.take_back()
                    state.store(box[0][-1])
                    raise
    return box[0]


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C wait until the end of the block. Only the main thread receives it."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or handler is None:
        yield
        return
    noted: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if noted:
            signal.raise_signal(signal.SIGINT)


def _start(program: Callable[..., Any], args: Sequence[Any], box: list[Any], *, bounded: bool) -> None:
    """Put what the program returns into `box`. `extend` stores it before Python handles signals again."""
    _supervisor.beat()
    _heap.note()
    if not bounded:
        box.extend(map(program, *[(arg,) for arg in args]))
        return
    with nullcontext() if _bootstrap.world() is None else _workers_explained():
        while len(_in_flight) >= _MAX_IN_FLIGHT:
            began = time.monotonic()
            _in_flight[0].block_until_ready()
            _supervisor.waited(time.monotonic() - began)
            _in_flight.popleft()
        with _quiet(box):
            began = time.monotonic()
            box.extend(map(program, *[(arg,) for arg in args]))
            _supervisor.waited(time.monotonic() - began)  # CPUs may compute it here, which includes waiting for other workers
    _in_flight.append(_first(box))


def _first(box: list[Any]) -> Any:
    return box[0][0] if isinstance(box[0], tuple) else box[0]


def _quiet(box: list[Any]) -> AbstractContextManager[None]:
    """Keep away what workers would print while they connect for the first program in which certain devices meet."""
    if _bootstrap.world() is None:
        return nullcontext()

    def wait() -> None:
        began = time.monotonic()
        _first(box).block_until_ready()
        _supervisor.waited(time.monotonic() - began)

    return _gloo_chatter.connecting().quiet(wait)


def wait_for_all() -> None:
    """Wait until all programs have ended, well or not."""
    while _in_flight:
        with suppress(RuntimeError, ValueError):  # nobody will read its results
            _in_flight.popleft().block_until_ready()


def forget_failed() -> None:
    """Forget the programs that have ended, after one of them has failed and its error was raised."""
    with lock:
        still = [x for x in _in_flight if not _has_ended(x)]
        _in_flight.clear()
        _in_flight.extend(still)


def _has_ended(token: Any) -> bool:
    try:
        return token.is_ready()
    except (RuntimeError, ValueError):
        return True


def forget() -> None:
    """Forget all programs in flight, because their devices are gone."""
    _in_flight.clear()


@contextmanager
def _workers_explained() -> Iterator[None]:
    """Turn the error of a program of several workers into one that says what is known about the worker that caused it."""
    world = _bootstrap.world()
    assert world is not None, "only used where there are several workers"
    world.progress += 1
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if not _bootstrap.is_broken_exchange(error):
            raise
        raise world.lost("computed together with the others", error) from error
