"""A listening socket that anybody can reach, and who has come through it without having said yet who it is."""

import contextlib
import errno
import selectors
import socket
import time
from collections.abc import Callable

MAX_STRANGERS = 256
HANDSHAKE_SECONDS = 30.0  # that a stranger may stay one
_AT_ONCE = 64  # connections that are taken before those that are there are heard again
_REST_SECONDS = 0.2  # without taking connections, when there are no descriptors left for them
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Door:
    """Lets strangers in, few of them and not for long, so that none of them can keep others out.

    Whoever has been a stranger for longest is shown out when there are too many, and when descriptors run out: somebody who says
    nothing makes way for somebody who does.

    Args:
        listener: bound, listening.
        selector: where the listener waits; those who come are the caller's to register.
        show_out: closes the connection of somebody who was let in, and forgets it.
    """

    def __init__(self, listener: socket.socket, selector: selectors.BaseSelector, show_out: Callable[[socket.socket], None]):
        listener.setblocking(False)
        self._listener, self._selector, self._show_out = listener, selector, show_out
        self._strangers: dict[socket.socket, float] = {}  # since when; the first one came first
        self._rests_until: float | None = None
        self.has_been_exhausted = False  # whether descriptors have ever run out
        selector.register(listener, selectors.EVENT_READ)

    def is_at(self, fileobj: object) -> bool:
        """Whether that is the listener."""
        return fileobj is self._listener

    def let_in(self) -> list[socket.socket]:
        """Those who have come; they are strangers until `admit` or `forget` says otherwise."""
        came = []
        for _ in range(_AT_ONCE):
            try:
                own, _ = self._listener.accept()
            except OSError as error:  # nobody is left; or somebody has gone again already; or there is no descriptor
                if error.errno in _EXHAUSTED:
                    self.has_been_exhausted = True
                    if not self._show_out_oldest():
                        self._rest()
                break
            if len(self._strangers) >= MAX_STRANGERS:
                self._show_out_oldest()
            self._strangers[own] = time.monotonic()
            came.append(own)
        return [own for own in came if own in self._strangers]

    def admit(self, own: socket.socket) -> None:
        """It has said who it is, and may stay."""
        self._strangers.pop(own, None)

    forget = admit  # it has been closed

    def tidy(self) -> None:
        """Show out who has been a stranger for too long. To be called now and then."""
        now = time.monotonic()
        while self._strangers and now - next(iter(self._strangers.values())) > HANDSHAKE_SECONDS:
            self._show_out_oldest()
        if self._rests_until is not None and now > self._rests_until:
            self._rests_until = None
            self._selector.register(self._listener, selectors.EVENT_READ)

    def close(self) -> None:
        """Nobody else comes."""
        with contextlib.suppress(KeyError, ValueError):  # it rests, or the selector has been closed
            self._selector.unregister(self._listener)
        self._listener.close()

    def _show_out_oldest(self) -> bool:
        oldest = next(iter(self._strangers), None)
        if oldest is not None:
            del self._strangers[oldest]
            self._show_out(oldest)
        return oldest is not None

    def _rest(self) -> None:
        """The listener stays ready as long as somebody waits there: asking again and again would take a whole processor."""
        self._rests_until = time.monotonic() + _REST_SECONDS
        self._selector.unregister(self._listener)
