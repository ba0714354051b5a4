"""Starting compiled programs without ever deadlocking.

On CPU, programs that exchange between virtual devices hold threads of one pool while they wait for each other: too many in flight
and none can finish (XLA aborts after a minute). So at most ``_MAX_IN_FLIGHT`` are started before the oldest must have ended; it
costs nothing, since a device computes one program at a time anyway. One lock keeps all devices' queues in the same order when
several threads start programs.
"""

import collections
import threading
from collections.abc import Callable, Sequence
from typing import Any

_MAX_IN_FLIGHT = 4

_lock = threading.RLock()
_in_flight: collections.deque[Any] = collections.deque()


def start(program: Callable[..., Any], args: Sequence[Any], *, bounded: bool) -> list[Any]:
    """Call ``program(*args)``, which returns (token, *results); gives [[token, ...]].

    The result is in the returned list even if Ctrl-C arrives while the program starts: `map` stores it before Python looks at
    signals again. The caller must keep that list reachable, because the program may have consumed its donated inputs.
    """
    box: list[Any] = []
    with _lock:
        try:
            box.extend(map(program, *[(arg,) for arg in args]))
        finally:
            if box and bounded:
                _in_flight.append(box[0][0])
        return box


def wait_for_room() -> None:
    """Wait until another program may start."""
    while len(_in_flight) >= _MAX_IN_FLIGHT:
        with _lock:
            oldest = _in_flight.popleft() if len(_in_flight) >= _MAX_IN_FLIGHT else None
        if oldest is not None:
            oldest.block_until_ready()
