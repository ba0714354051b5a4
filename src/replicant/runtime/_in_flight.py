"""Starting compiled programs without ever deadlocking, and without losing their results.

On CPU, programs that exchange between virtual devices hold threads of one pool while they wait for each other: too many in flight
and none can finish (XLA aborts after a minute). So at most ``_MAX_IN_FLIGHT`` are started before the oldest must have ended; it
costs nothing, since a device computes one program at a time anyway. One lock keeps all devices' queues in the same order when
several threads start programs, and makes each program's reading and writing of variables one act.
"""

import collections
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from ..cluster import _bootstrap, _heartbeat
from ..kernels import _memory

_MAX_IN_FLIGHT = 4

lock = threading.RLock()
_in_flight: collections.deque[Any] = collections.deque()


class State(Protocol):
    """Where a program's state is kept, of which it has overwritten the old values."""

    def store(self, values: Sequence[Any], /) -> None:
        """Keep the new values."""
        ...

    def take_back(self) -> None:
        """Undo what an interrupted `store` has left half done, so that it may be done again."""
        ...


def call(program: Callable[..., Any], *args: Any, bounded: bool, state: State | None = None) -> Any:
    """Start ``program(*args)`` and return its results, which need not be there yet.

    Args:
        program: returns an array, or a tuple that begins with one: it is there once the program has ended.
        args: its inputs. Those that it is given for good must be read under `lock`.
        bounded: whether too many such programs at a time wait for each other for ever.
        state: keeps the last of the program's results. It does so even if Ctrl-C arrives while the program starts: the program has
            consumed its donated inputs, so what it makes of them is nowhere else.

    Raises WorkerLostError if a program failed because another worker is gone.
    """
    box: list[Any] = []
    with lock:
        try:
            _start(program, args, box, bounded=bounded)
        finally:
            if box and state is not None:
                try:
                    state.store(box[0][-1])
                except KeyboardInterrupt:  # store all, and each change once
                    state.take_back()
                    state.store(box[0][-1])
                    raise
    return box[0]


def _start(program: Callable[..., Any], args: Sequence[Any], box: list[Any], *, bounded: bool) -> None:
    """Put what the program returns into `box`: `extend` stores it before Python looks at signals again."""
    _heartbeat.beat()
    _memory.note()
    if not bounded:
        box.extend(map(program, *[(arg,) for arg in args]))
        return
    with _workers_explained():
        while len(_in_flight) >= _MAX_IN_FLIGHT:
            began = time.monotonic()
            _in_flight[0].block_until_ready()
            _heartbeat.waited(time.monotonic() - began)
            _in_flight.popleft()
        box.extend(map(program, *[(arg,) for arg in args]))
    _in_flight.append(box[0][0] if isinstance(box[0], tuple) else box[0])


def forget() -> None:
    """Wait for nothing that was started: its devices are gone."""
    _in_flight.clear()


@contextmanager
def _workers_explained() -> Iterator[None]:
    """What fails where several workers compute together, fails because of one of them: ask what is known."""
    world = _bootstrap.world()
    if world is None:
        yield
        return
    world.progress += 1
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if not _bootstrap.is_broken_exchange(error):
            raise
        raise world.lost("computed together with the others", error) from error
