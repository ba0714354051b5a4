"""A relay inside of a worker, between JAX's client and the coordination service of another process.

JAX's client aborts its process, with a stack dump, as soon as its connection is closed: also where the service's process has been
killed, and the worker could say so. It gets a connection to a thread of the same process instead, which passes everything on. When
the service's end is closed, the client's end stays open and silent, and `Relay.gone` says what has happened.
"""

import contextlib
import os
import secrets
import selectors
import shutil
import socket
import struct
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path

from .._addresses import split_address

_AT_ONCE = 1 << 16  # bytes
_MOST_WAITING = 1 << 20  # bytes for one end, before the other end is read no further
_CONNECT_SECONDS = 1.0  # for one try
_PAUSE_SECONDS = 0.1  # before the next one
_HOLD_SECONDS = 2.0  # for `hold`, after the service has gone: the client may just have connected
_END_SECONDS = 3.0  # for the thread to end


class Relay:
    """Connects one client in this process with a service.

    Args:
        service: its ``host:port``. Only when the client connects does the relay, too; it tries until somebody listens there.
    """

    def __init__(self, service: str):
        self._service = service
        self.gone = ""  # what became of the service's end; empty: it is there
        self._listener, self.address, self._folder = _listen()  # the address: for the client, as gRPC reads it
        self._wake, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for waiting in (self._listener, self._wake):
            self._selector.register(waiting, selectors.EVENT_READ)
        self._other: dict[socket.socket, socket.socket] = {}  # the other end of each line
        self._clients: set[socket.socket] = set()  # the ends that are the client's
        self._waiting: dict[socket.socket, bytearray] = {}  # what an end has yet to be sent
        self._answered: set[socket.socket] = set()  # ends of the client to which the service has said anything
        self._silent: list[socket.socket] = []  # ends of the client whose service has gone
        self._is_held = threading.Event()
        self._is_over = self._keeps = False
        _relays.add(self)
        self._thread = threading.Thread(target=self._run, name="replicant-relay", daemon=True)
        self._thread.start()

    def hold(self) -> None:
        """The client has connected: from now on its end stays open. Before, it ends with the service's, and may be tried again."""
        self._is_held.set()

    def close(self, *, keep_silent: bool = False) -> None:
        """End the connections.

        Args:
            keep_silent: leave the client's end open for ever: it has not taken its leave, and would abort the process.
        """
        self._keeps, self._is_over = keep_silent, True
        with contextlib.suppress(OSError):  # closed
            self._waker.send(b"x")
        if self._thread is not threading.current_thread():
            self._thread.join(_END_SECONDS)

    def forget(self) -> None:
        """In a forked child, where the connections are its parent's."""
        for each in (self._listener, self._wake, self._waker, *self._other, *self._silent):
            each.close()

    def _run(self) -> None:
        try:
            while not self._is_over:
                for key, events in self._selector.select():
                    end = key.fileobj
                    if end is self._listener:
                        self._accept()
                    elif isinstance(end, socket.socket) and end in self._other:  # else it was closed meanwhile
                        self._serve(end, events)
        except BaseException as error:
            self.gone = self.gone or f"the relay to {self._service} has failed: {error!r}"
            self._keeps = True
            raise
        finally:
            self._end()

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:  # it has left again; or there is no descriptor, and it waits
            time.sleep(_PAUSE_SECONDS)
            return
        service = self._connect() if _is_own(client) else None
        if service is None:
            client.close()
            return
        self._clients.add(client)
        self._other |= {client: service, service: client}
        for end in (client, service):
            end.setblocking(False)
            self._waiting[end] = bytearray()
            self._selector.register(end, selectors.EVENT_READ)

    def _connect(self) -> socket.socket | None:
        """A connection to the service; None once the relay is over."""
        while not self._is_over:
            end = None
            try:
                end = socket.create_connection(split_address(self._service, "coordinator address"), timeout=_CONNECT_SECONDS)
                if end.getsockname() != end.getpeername():  # on loopback a socket can meet itself
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return end
            except OSError:  # nobody is there so far, or whoever was has gone at once
                pass
            if end is not None:
                end.close()
            time.sleep(_PAUSE_SECONDS)
        return None

    def _serve(self, end: socket.socket, events: int) -> None:
        other = self._other[end]
        try:
            if events & selectors.EVENT_READ:
                data = end.recv(_AT_ONCE)
                if not data:
                    raise ConnectionResetError("the other end has closed it")
                self._waiting[other] += data
                if other in self._clients:
                    self._answered.add(other)
                self._send(other)
            if events & selectors.EVENT_WRITE:
                self._send(end)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._part(end, other, error)
            return
        for each, its_other in ((end, other), (other, end)):
            reads = selectors.EVENT_READ if len(self._waiting[its_other]) < _MOST_WAITING else 0
            self._listen_for(each, reads | (selectors.EVENT_WRITE if self._waiting[each] else 0))

    def _send(self, end: socket.socket) -> None:
        """Send what waits, as much as goes."""
        waiting = self._waiting[end]
        if waiting:
            try:
                del waiting[: end.send(waiting)]
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                waiting.clear()  # reading from that end says the same, and once

    def _listen_for(self, end: socket.socket, events: int) -> None:
        if end not in self._selector.get_map():
            if events:
                self._selector.register(end, events)
        elif not events:
            self._selector.unregister(end)
        elif self._selector.get_key(end).events != events:
            self._selector.modify(end, events)

    def _part(self, end: socket.socket, other: socket.socket, error: OSError) -> None:
        """One end has been closed."""
        for each in (end, other):
            self._listen_for(each, 0)
            del self._other[each], self._waiting[each]
        client, service = (end, other) if end in self._clients else (other, end)
        is_answered = client in self._answered
        self._clients.discard(client)
        self._answered.discard(client)
        service.close()
        if end is service and is_answered and self._is_held.wait(_HOLD_SECONDS):
            self._silent.append(client)
            self.gone = f"the connection to {self._service} was closed: {error.strerror or error}"
        else:
            client.close()

    def _end(self) -> None:
        for each in (*self._clients, *self._silent):
            if self._keeps:
                each.detach()
            else:
                each.close()
        for each in (*self._other, self._listener, self._wake, self._waker):
            each.close()
        self._selector.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _listen() -> tuple[socket.socket, str, Path | None]:
    """A listener that no network leads to, its address, and the folder that it needs: on Linux its name is not that of a file."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    name, folder = f"replicant-{secrets.token_hex(16)}", None
    if sys.platform == "linux":
        listener.bind(f"\0{name}")
        address = f"unix-abstract:{name}"
    else:
        folder = Path(tempfile.mkdtemp(prefix="replicant-"))  # which only this user may enter
        listener.bind(str(folder / "relay"))
        address = f"unix:{folder / 'relay'}"
    listener.listen(16)
    listener.setblocking(False)
    return listener, address, folder


def _is_own(client: socket.socket) -> bool:
    """Whether this process has connected there; elsewhere than on Linux only this user can."""
    if sys.platform != "linux":
        return True
    pid, _, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return pid == os.getpid()


_relays: "weakref.WeakSet[Relay]" = weakref.WeakSet()


def _forget_all() -> None:
    for relay in list(_relays):
        relay.forget()


os.register_at_fork(after_in_child=_forget_all)
