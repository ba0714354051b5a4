"""A listening socket that anybody can reach, and the connections that have not yet said who they are."""

import contextlib
import errno
import selectors
import socket
import time
from collections.abc import Callable

MAX_STRANGERS = 256
HANDSHAKE_SECONDS = 30.0  # for a stranger to say who it is
_AT_ONCE = 64  # connections to accept before the open ones are read again
_REST_SECONDS = 0.2  # without accepting connections when no file descriptors are left for them
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Door:
    """Accepts connections from strangers: only a few at a time and not for long, so that none of them can keep others out.

    If there are too many strangers, or no file descriptors are left, the oldest stranger is closed. So a connection that says
    nothing makes room for one that does.

    Args:
        listener: A socket that is bound and listens.
        selector: The selector that watches the listener. The caller registers the accepted connections.
        show_out: Closes an accepted connection and forgets it.
    """

    def __init__(self, listener: socket.socket, selector: selectors.BaseSelector, show_out: Callable[[socket.socket], None]):
        listener.setblocking(False)
        self._listener, self._selector, self._show_out = listener, selector, show_out
        self._strangers: dict[socket.socket, float] = {}  # when each of them came, oldest first
        self._rests_until: float | None = None
        self.has_been_exhausted = False  # whether descriptors have ever run out
        selector.register(listener, selectors.EVENT_READ)

    def is_at(self, fileobj: object) -> bool:
        """Whether an object is the listener."""
        return fileobj is self._listener

    def let_in(self) -> list[socket.socket]:
        """Accept and return new connections. They are strangers until `admit` or `forget` is called."""
        came = []
        for _ in range(_AT_ONCE):
            try:
                own, _ = self._listener.accept()
            except OSError as error:  # nobody waits any more, somebody has already left, or no descriptor is left
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
        """Keep a connection, because it has said who it is."""
        self._strangers.pop(own, None)

    forget = admit  # it has been closed

    def tidy(self) -> None:
        """Close connections that have been strangers for too long. Call this now and then."""
        now = time.monotonic()
        while self._strangers and now - next(iter(self._strangers.values())) > HANDSHAKE_SECONDS:
            self._show_out_oldest()
        if self._rests_until is not None and now > self._rests_until:
            self._rests_until = None
            self._selector.register(self._listener, selectors.EVENT_READ)

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(KeyError, ValueError):  # the listener rests, or the selector has been closed
            self._selector.unregister(self._listener)
        self._listener.close()

    def _show_out_oldest(self) -> bool:
        oldest = next(iter(self._strangers), None)
        if oldest is not None:
            del self._strangers[oldest]
            self._show_out(oldest)
        return oldest is not None

    def _rest(self) -> None:
        """Ignore the listener for a while. It stays ready as long as somebody waits there, so polling would take a whole core."""
        self._rests_until = time.monotonic() + _REST_SECONDS
        self._selector.unregister(self._listener)
