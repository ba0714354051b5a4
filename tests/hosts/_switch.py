"""A network switch of our own: a thread that passes Ethernet frames between hosts, and may cut, delay, lose and slow them.

Each pair of hosts has two links, one for each direction. It needs nothing from the kernel but tap devices, so a bench is the same
on every machine.
"""

import contextlib
import dataclasses
import heapq
import itertools
import os
import random
import selectors
import socket
import threading
import time
from collections.abc import Callable

_LARGEST_FRAME = 1 << 16
_AT_ONCE = 64  # frames to read from one host before the others have their turn
_MOST_WAITING = 1000  # frames on one link; more are lost
_TO_ALL = 1  # this bit of an Ethernet address says that a frame is for several hosts


@dataclasses.dataclass
class Link:
    """What happens to the frames that one host sends to another.

    Args:
        is_whole: Whether frames arrive at all.
        delay: The seconds that a frame takes.
        loss: The share of frames that are lost, from 0 to 1.
        rate: The bits per second that the link carries, or None for as many as come.
        firewall: Whether what comes from one TCP port to another may pass. By default everything may.
        watch: Is shown each frame that is sent, whether it arrives or not.
    """

    is_whole: bool = True
    delay: float = 0.0
    loss: float = 0.0
    rate: float | None = None
    firewall: Callable[[int, int], bool] | None = None
    watch: Callable[[bytes], None] | None = None
    busy_until: float = 0.0
    waiting: int = 0
    passed: int = 0  # frames that arrived


class Switch:
    """Connects hosts by the file descriptors of their tap devices.

    Args:
        seed: The seed of the losses.
    """

    def __init__(self, seed: int = 0):
        self.links: dict[tuple[int, int], Link] = {}
        self._rng = random.Random(seed)
        self._taps: list[int] = []
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._late: list[tuple[float, int, int, Link, bytes]] = []  # a heap: when, in which order, to which host, over what
        self._order = itertools.count()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="switch", daemon=True)

    def start(self, taps: list[int]) -> None:
        """Connect the hosts. Their Ethernet addresses end in their numbers: 0, 1, and so on."""
        self._taps = taps
        for number, tap in enumerate(taps):
            os.set_blocking(tap, False)
            self._selector.register(tap, selectors.EVENT_READ, number)
        self.links = {pair: Link() for pair in itertools.permutations(range(len(taps)), 2)}
        self._thread.start()

    def close(self) -> None:
        """End the thread, and give the tap devices back."""
        self._is_over = True
        self._waker.send(b"x")
        if self._thread.ident is not None:
            self._thread.join()
        self._selector.close()
        for end in (self._wake, self._waker):
            end.close()
        for tap in self._taps:
            os.close(tap)

    def _run(self) -> None:
        while not self._is_over:
            wait = max(0.0, self._late[0][0] - time.monotonic()) if self._late else None
            for key, _ in self._selector.select(wait):
                if key.data is not None:
                    self._read(key.data)
            while self._late and self._late[0][0] <= time.monotonic():
                _, _, target, link, frame = heapq.heappop(self._late)
                link.waiting -= 1
                self._write(target, link, frame)

    def _read(self, source: int) -> None:
        for _ in range(_AT_ONCE):
            try:
                frame = os.read(self._taps[source], _LARGEST_FRAME)
            except BlockingIOError:
                return
            except OSError:  # the host is gone
                self._selector.unregister(self._taps[source])
                return
            if frame[0] & _TO_ALL:
                targets = [number for number in range(len(self._taps)) if number != source]
            else:
                targets = [frame[5]] if frame[5] < len(self._taps) and frame[5] != source else []
            for target in targets:
                self._send(target, self.links[source, target], frame)

    def _send(self, target: int, link: Link, frame: bytes) -> None:
        if link.watch is not None:
            link.watch(frame)
        if not link.is_whole or link.waiting >= _MOST_WAITING or (link.loss and self._rng.random() < link.loss):
            return
        if link.firewall is not None and (ports := tcp_ports(frame)) is not None and not link.firewall(*ports):
            return
        if not link.delay and link.rate is None:
            self._write(target, link, frame)
            return
        begin = max(time.monotonic(), link.busy_until)
        link.busy_until = begin if link.rate is None else begin + 8 * len(frame) / link.rate
        link.waiting += 1
        heapq.heappush(self._late, (link.busy_until + link.delay, next(self._order), target, link, frame))

    def _write(self, target: int, link: Link, frame: bytes) -> None:
        if link.is_whole:
            with contextlib.suppress(OSError):  # its queue is full, its device is down or the host is gone: the frame is lost
                os.write(self._taps[target], frame)
                link.passed += 1


def tcp_ports(frame: bytes) -> tuple[int, int] | None:
    """The ports from which and to which a frame goes, or None if it is not one of TCP over IPv4."""
    if frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_TCP:
        return None
    start = 14 + 4 * (frame[14] & 15)
    return int.from_bytes(frame[start : start + 2], "big"), int.from_bytes(frame[start + 2 : start + 4], "big")
