"""Starting compiled programs without ever deadlocking, and without losing their results.

On CPU, programs that exchange between virtual devices hold threads of one pool while they wait for each other: too many in flight
and none can finish (XLA aborts after a minute). So at most ``_MAX_IN_FLIGHT`` are started before the oldest must have ended; it
costs nothing, since a device computes one program at a time anyway. One lock keeps all devices' queues in the same order when
several threads start programs, and makes each program's reading and writing of variables one act.
"""

import collections
import threading
from collections.abc import Callable, Sequence
from typing import Any

_MAX_IN_FLIGHT = 4

lock = threading.RLock()
_in_flight: collections.deque[Any] = collections.deque()


def start(program: Callable[..., Any], args: Sequence[Any], box: list[Any], *, bounded: bool) -> None:
    """Call ``program(*args)``, which returns (token, ...), and put what it returns into `box`. Call it under `lock`.

    The result is in the box even if Ctrl-C arrives while the program starts: `extend` stores it before Python looks at signals
    again. It must not be lost, because the program has consumed its donated inputs.
    """
    if bounded:
        while len(_in_flight) >= _MAX_IN_FLIGHT:
            _in_flight[0].block_until_ready()
            _in_flight.popleft()
    box.extend(map(program, *[(arg,) for arg in args]))
    if bounded:
        _in_flight.append(box[0][0])
