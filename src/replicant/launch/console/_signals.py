"""Turns signals into a list that the supervisor's loop reads, and a file descriptor that wakes it."""

import contextlib
import signal
import socket
from types import FrameType
from typing import Any, Self

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """A context manager that notes Ctrl-C, SIGTERM and SIGHUP. The end of a child process wakes the loop, too.

    An ignored signal stays ignored, as nohup and shells expect. You must enter this in the main thread.
    """

    def __init__(self) -> None:
        self._arrived: list[int] = []
        self._before: dict[int, Any] = {}
        self._wakeup = -1  # the descriptor that Python wrote to before
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
        """The file descriptor, which has something to read when a signal has arrived."""
        return self._reader.fileno()

    def take(self) -> list[int]:
        """The signals to end the job that have arrived since the last call."""
        with contextlib.suppress(BlockingIOError):
            while len(self._reader.recv(4096)) == 4096:
                pass
        taken, self._arrived = self._arrived, []
        return taken

    def note(self, number: int) -> None:
        """Note that a signal has arrived, here or on another host."""
        if number in _ASKING:
            self._arrived.append(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.note(number)


def name_of(number: int) -> str:
    """The name of a signal for the user.

    >>> name_of(2), name_of(15)
    ('Ctrl-C', 'SIGTERM')
    """
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
