"""Signals as a list that the loop looks at, and a descriptor that wakes it."""

import contextlib
import signal
import socket
from types import FrameType
from typing import Any, Self

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """While it is entered, Ctrl-C, SIGTERM and SIGHUP are noted, and the end of a child wakes the loop.

    A signal that is ignored stays so, as nohup and shells want it. Must be entered in the main thread.
    """

    def __init__(self) -> None:
        self._arrived: list[int] = []
        self._before: dict[int, Any] = {}
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)

    def __enter__(self) -> Self:
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (*_ASKING, signal.SIGCHLD):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._wakeup)
        self._reader.close()
        self._writer.close()

    def fileno(self) -> int:
        """Can be read when something has arrived."""
        return self._reader.fileno()

    def take(self) -> list[int]:
        """Which signals to end have arrived since the last time."""
        with contextlib.suppress(BlockingIOError):
            while len(self._reader.recv(4096)) == 4096:
                pass
        taken, self._arrived = self._arrived, []
        return taken

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number in _ASKING:
            self._arrived.append(number)


def name_of(number: int) -> str:
    """What the user did.

    >>> name_of(2), name_of(15)
    ('Ctrl-C', 'SIGTERM')
    """
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
