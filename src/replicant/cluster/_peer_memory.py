"""Lets two workers of one host read each other's arrays from memory, instead of sending them through a socket.

Linux copies from one process to another (``process_vm_readv``) if both belong to the same user. The workers tell each other over a
Unix socket where their arrays are and when they have read them. Nothing waits here: who asks for an exchange is called when it is
over. An exchange is over once both have read. If a worker closes its end, or dies, everything that is under way fails: an array may
be freed only after that, so whoever has read looks at the socket again before it believes what it has read. Like all sums over
workers, an exchange has no deadline of its own: the other worker may be busy, and if it is lost, its heartbeats are missing.
"""

import contextlib
import ctypes
import dataclasses
import functools
import json
import os
import secrets
import select
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ._environ import number

SWITCH = "REPLICANT_PEER_MEMORY"  # 0 turns it off
_MEET_SECONDS = 10.0  # for the two to find each other, once both have said where
_FULL_SECONDS = 1.0  # between two looks whether there is room for what could not be sent
_MESSAGE = struct.Struct("<cQQQQ")  # kind, channel, number, address, bytes
_OFFER, _READ = b"o", b"r"
_CREDENTIALS = struct.Struct("iII")  # process, user and group of the other end
_PR_SET_PTRACER = 0x59616D61
_TOKEN_BYTES = 16
_GONE = "has closed its connection: it has ended, or has left the group"

Finish = Callable[[str | None], object]


class _Piece(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("num_bytes", ctypes.c_size_t))


@dataclasses.dataclass
class _Swap:
    """One exchange, as this worker knows it: `finish` is called without an error, or with one."""

    number: int
    source: int
    target: int
    num_bytes: int
    finish: Finish
    reading: bool = False  # until then, `target` must not be freed
    has_read: bool = False
    is_read: bool = False


class PeerMemory:
    """The memory of the other worker of this host.

    Args:
        connection: A socket of messages to the other worker.
        process: The number of its process.
        name: Its name, for errors.
    """

    def __init__(self, connection: socket.socket, process: int, name: str):
        self._connection, self._process, self._name = connection, process, name
        self._lock = threading.Lock()
        self._count = 0
        self._mine: dict[int, deque[_Swap]] = {}  # by channel: not yet offered by the other one
        self._offers: dict[int, deque[tuple[int, int, int]]] = {}  # by channel: not yet asked for by this one
        self._unread: dict[int, _Swap] = {}  # by number: not yet read by the other one
        self._swaps: dict[int, _Swap] = {}  # by number: all that are under way
        self._reason: str | None = None
        self._unsent: deque[bytes] = deque()
        connection.setblocking(False)
        threading.Thread(target=self._listen, name="replicant-peer-memory", daemon=True).start()

    @property
    def is_open(self) -> bool:
        """Whether exchanges can still be made."""
        return self._reason is None

    def swap(self, channel: int, source: int, target: int, num_bytes: int, finish: Finish) -> None:
        """Begin an exchange: the other worker reads from `source`, and what it offers is copied to `target`.

        Exchanges of one channel meet those of the other worker in the order in which they begin. Both arrays must stay until
        `finish` is called, from any thread: with None if both have read, or with what went wrong.
        """
        with self._lock:
            reason, offer = self._reason, None
            swap = _Swap(self._count, source, target, num_bytes, finish)
            if reason is None:
                self._count += 1
                reason = self._send(_OFFER, channel, swap.number, source, num_bytes)
            if reason is None:
                self._swaps[swap.number] = self._unread[swap.number] = swap
                if offers := self._offers.get(channel):
                    offer, swap.reading = offers.popleft(), True
                else:
                    self._mine.setdefault(channel, deque()).append(swap)
        if reason is not None:
            self.close(reason)
            finish(reason)
        elif offer is not None:
            self._read(swap, *offer)

    def close(self, reason: str) -> None:
        """End all exchanges with an error, which says `reason`. The other worker's end, too."""
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)  # before anything is freed: see the top of the file
            _let_read(0)
            ended = [swap for swap in self._swaps.values() if not swap.reading]
            for swap in ended:
                del self._swaps[swap.number]
        for swap in ended:
            swap.finish(reason)

    def _send(self, kind: bytes, channel: int, which: int, address: int = 0, num_bytes: int = 0) -> str | None:
        """Send a message, now or when there is room for it. Return what went wrong, or None."""
        self._unsent.append(_MESSAGE.pack(kind, channel, which, address, num_bytes))
        return self._send_all()

    def _send_all(self) -> str | None:
        """Send what there is room for. Whoever waited here would hold the lock, and so might the other worker."""
        try:
            while self._unsent:
                self._connection.send(self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            pass
        except OSError:
            return f"{self._name} {_GONE}"
        return None

    def _listen(self) -> None:
        """Take the other worker's messages until it is gone."""
        looked = select.poll()
        try:
            while self._reason is None:
                looked.register(self._connection, select.POLLIN | (select.POLLOUT if self._unsent else 0))
                found = looked.poll(1000 * _FULL_SECONDS)
                if self._unsent:
                    with self._lock:
                        problem = self._send_all()
                    if problem is not None:
                        self.close(problem)
                if any(kind & ~select.POLLOUT for _, kind in found):
                    self._hear()
        finally:
            self.close("this worker does not listen any more")  # after an error that nobody expected
            with self._lock:
                self._connection.close()

    def _hear(self) -> None:
        """Take a message."""
        try:
            data = self._connection.recv(2 * _MESSAGE.size)
        except OSError:
            data = b""
        if len(data) != _MESSAGE.size:
            self.close(f"{self._name} {_GONE}")
            return
        kind, channel, *rest = _MESSAGE.unpack(data)
        if kind == _OFFER:
            self._take(channel, (rest[0], rest[1], rest[2]))
        else:
            self._note_read(rest[0])

    def _take(self, channel: int, offer: tuple[int, int, int]) -> None:
        """Read what the other worker offers, if this one has asked for it."""
        with self._lock:
            mine = self._mine.get(channel)
            if not mine:
                self._offers.setdefault(channel, deque()).append(offer)
                return
            swap = mine.popleft()
            swap.reading = True
        self._read(swap, *offer)

    def _read(self, swap: _Swap, offered: int, address: int, num_bytes: int) -> None:
        """Copy the other worker's array, and tell it so."""
        if num_bytes != swap.num_bytes:
            error = f"{self._name} offers {num_bytes} bytes where this worker has {swap.num_bytes}"
        else:
            error = _copied(self._process, address, swap.target, num_bytes)
        with self._lock:
            error = self._reason or error or self._gone() or self._send(_READ, 0, offered)
            swap.reading, swap.has_read = False, True
            over = (swap.is_read or error is not None) and self._swaps.pop(swap.number, None) is not None
        if error is not None:
            self.close(error)
        if over:
            swap.finish(error)

    def _note_read(self, which: int) -> None:
        """Note that the other worker has read an array of this one."""
        with self._lock:
            swap = self._unread.pop(which, None)
            if swap is not None:
                swap.is_read = True
            over = swap is not None and swap.has_read and self._swaps.pop(which, None) is not None
        if swap is None:
            self.close(f"{self._name} says that it has read array {which}, which it was not offered")
        elif over:
            swap.finish(None)

    def _gone(self) -> str | None:
        """Say so if the other worker has closed its end."""
        looked = select.poll()
        looked.register(self._connection, select.POLLRDHUP)
        is_gone = any(found & (select.POLLRDHUP | select.POLLHUP | select.POLLERR) for _, found in looked.poll(0))
        return f"{self._name} {_GONE}" if is_gone else None


def _copied(process: int, source: int, target: int, num_bytes: int) -> str | None:
    """Copy from the memory of another process. Return what went wrong, or None."""
    done = 0
    while done < num_bytes:
        mine, theirs = _Piece(target + done, num_bytes - done), _Piece(source + done, num_bytes - done)
        count = _libc().process_vm_readv(process, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
        if count <= 0:
            reason = os.strerror(ctypes.get_errno()) if count else "nothing is there"
            return f"the memory of process {process} cannot be read: {reason}"
        done += count
    return None


@functools.cache
def _libc() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    readv = library.process_vm_readv
    readv.restype = ctypes.c_ssize_t
    readv.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
    return library


# How the two find each other.


def meet(exchange: Callable[[str, str], list[str]], rank: int, names: tuple[str, str]) -> PeerMemory | str:
    """Connect this worker with the other one, if both are on one host and may read each other's memory. Both call this.

    Args:
        exchange: Exchanges a text of each of the two under a label.
        rank: Which one of the two this is.
        names: Their names, for errors.

    Returns:
        The connection, or why there is none. Either both have one or neither has.

    Raises:
        ClusterError: If REPLICANT_PEER_MEMORY is not a number.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) if sys.platform == "linux" else None
    with contextlib.ExitStack() as stack:
        place = "not Linux"
        address = f"replicant-{secrets.token_hex(16)}"
        if listener is not None:
            stack.enter_context(listener)
            listener.bind(f"\0{address}")
            listener.listen(1)
            place = _place()
        told = [json.loads(text) for text in exchange("memory", json.dumps([place, address, os.getpid()]))]
        (here, _, _), (there, at, process) = told[rank], told[1 - rank]
        if here != there or not here.startswith("host "):
            return f"{names[0]}: {told[0][0]}; {names[1]}: {told[1][0]}"
        assert listener is not None, "this is Linux"
        connection, problem = None, None
        try:
            connection = _connected(listener, rank, at, process)
            _check(connection, process)
        except (OSError, ValueError) as error:
            problem = str(error) or type(error).__name__
        problems = exchange("memory is read", problem or "")
        if any(problems) or connection is None:
            if connection is not None:
                connection.close()
            return "; ".join(f"{name}: {each}" for name, each in zip(names, problems, strict=True) if each)
        return PeerMemory(connection, process, names[1 - rank])


def _place() -> str:
    """What two processes must have in common to find each other and to know each other's numbers."""
    if number(os.environ, SWITCH) == 0:
        return f"{SWITCH}=0"
    if not hasattr(ctypes.CDLL(None), "process_vm_readv"):
        return "the system cannot copy from process to process"
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = [str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("net", "pid", "user")]
    except OSError as error:
        return f"the system does not tell where this process is: {error}"
    return f"host {boot} {' '.join(spaces)} user {os.getuid()}"


def _connected(listener: socket.socket, rank: int, at: str, process: int) -> socket.socket:
    """Connect the two. Raises an OSError or a ValueError if that fails."""
    deadline = time.monotonic() + _MEET_SECONDS
    while True:  # the first of the two leaves strangers outside
        if rank == 0:
            listener.settimeout(max(0.001, deadline - time.monotonic()))
            connection, _ = listener.accept()
        else:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as stack:
            stack.enter_context(connection)
            connection.settimeout(_MEET_SECONDS)
            if rank:
                connection.connect(f"\0{at}")
            found, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
            if (found, user) == (process, os.getuid()):
                stack.pop_all()
                return connection
        if rank:
            raise ValueError(f"process {found} of user {user} has answered, and not process {process}")


def _let_read(process: int) -> None:
    """Let a process of this user read the memory of this one, on systems where only its parents may; 0 for none."""
    _libc().prctl(_PR_SET_PTRACER, ctypes.c_ulong(process), 0, 0, 0)


def _check(connection: socket.socket, process: int) -> None:
    """Read a token from the memory of the other process, which also tells it over the connection."""
    _let_read(process)
    token = ctypes.create_string_buffer(secrets.token_bytes(_TOKEN_BYTES), _TOKEN_BYTES)
    connection.send(struct.pack("<Q", ctypes.addressof(token)) + token.raw)
    said = connection.recv(8 + _TOKEN_BYTES)
    if len(said) != 8 + _TOKEN_BYTES:
        raise ValueError("the other worker has closed the connection")
    (address,), theirs, found = struct.unpack("<Q", said[:8]), said[8:], ctypes.create_string_buffer(_TOKEN_BYTES)
    problem = _copied(process, address, ctypes.addressof(found), _TOKEN_BYTES)
    connection.send(b"done")  # the token stays until the other one has read it
    connection.recv(8)
    if problem:
        raise ValueError(problem)
    if found.raw != theirs:
        raise ValueError(f"the memory of process {process} does not hold what it says")
