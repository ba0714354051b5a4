"""Memory order between processes that share memory without a lock.

Readers find out afterwards whether a value changed while they copied it (``servers._store``). This works only if readers see the
server's stores in the order in which it made them, and make their own loads in order. x86 guarantees both. Other processors need a
memory fence, which Python does not offer. Releasing a lock and taking it again has the same effect: no load or store before the
release moves behind it, and none after the acquire moves before it, on processors that keep these two in order.
"""

import platform
import threading
from collections.abc import Callable

from ...errors import ConfigurationError

_ORDERED = ("x86_64", "amd64", "i386", "i686", "x86")
_FENCED = ("aarch64", "arm64")  # where a load-acquire never overtakes a store-release before it


class _Here(threading.local):
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()


_here = _Here()


def _no_fence() -> None:
    """Do nothing: the processor keeps the order by itself."""


def _lock_fence() -> None:
    lock = _here.lock
    lock.release()
    lock.acquire()


def fence_for(machine: str) -> Callable[[], None] | None:
    """A function that keeps the loads and stores before it apart from those after it; None for unknown processors.

    >>> fence_for("riscv64") is None
    True
    """
    name = machine.lower()
    return _no_fence if name in _ORDERED else _lock_fence if name in _FENCED else None


_FENCE = fence_for(platform.machine())
fence: Callable[[], None] = _FENCE or _lock_fence


def check_ordered(machine: str) -> None:
    """Raise ConfigurationError on a machine where processes that share memory could read torn values."""
    if fence_for(machine) is None:
        raise ConfigurationError(
            f"This machine's processor is {machine!r}. The parameter servers of transport='local' share memory in a way that is "
            f"known to be safe on {', '.join((_ORDERED[0], *_FENCED))} only: elsewhere, a worker could read a value of which one "
            "half is older than the other. Use transport='ray', which sends copies."
        )
