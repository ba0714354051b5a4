"""Order between processes that share memory without a lock.

Readers find out afterwards whether a value changed while they copied it (``servers._store``). For that the stores of the server
must be seen in the order in which they were made, and a reader's loads must be made in theirs. x86 promises both. Others do so
where a program asks for it, which Python cannot do in so many words; but to release a lock and to take it again does: no load or
store before the one is made after it, and none after the other before it, on processors on which these two stay in order.
"""

import platform
import threading
from collections.abc import Callable

from ...errors import ConfigurationError

_ORDERED = ("x86_64", "amd64", "i386", "i686", "x86")
_FENCED = ("aarch64", "arm64")  # where a store-release is never overtaken by a load-acquire that follows it


class _Here(threading.local):
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()


_here = _Here()


def _no_fence() -> None:
    """The processor keeps the order by itself."""


def _lock_fence() -> None:
    lock = _here.lock
    lock.release()
    lock.acquire()


def fence_for(machine: str) -> Callable[[], None] | None:
    """What keeps loads and stores before it apart from those after it on a machine; None if nothing that we know does.

    >>> fence_for("riscv64") is None
    True
    """
    name = machine.lower()
    return _no_fence if name in _ORDERED else _lock_fence if name in _FENCED else None


_FENCE = fence_for(platform.machine())
fence: Callable[[], None] = _FENCE or _lock_fence


def check_ordered(machine: str) -> None:
    """Raise ConfigurationError on a machine on which processes that share memory could read torn values."""
    if fence_for(machine) is None:
        raise ConfigurationError(
            f"This machine's processor is {machine!r}, and the parameter servers of transport='local' share memory in a way that "
            f"is known to be safe on {', '.join((_ORDERED[0], *_FENCED))} only: a worker could read a value of which one half is "
            "older than the other. Use transport='ray', which sends copies."
        )
