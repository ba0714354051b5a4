"""One thread that waits for messages on channels, for answers of actors, and for timers."""

import contextlib
import heapq
import itertools
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ..wire._channel import Channel, Closed

Take = Callable[[Any, list[int]], None]


class Loop:
    """Runs all of its callbacks in one thread.

    Args:
        name: the thread's name.
        failed: is called with an exception that a callback raised. The loop ends then.
    """

    def __init__(self, name: str, failed: Callable[[BaseException], None]):
        self._failed = failed
        self._channels: dict[int, tuple[Channel, Take, Callable[[], None]]] = {}
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._ended = False
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_out, False)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, fn: Callable[[], None]) -> None:
        """Call `fn` soon. Any thread may call this."""
        self._calls.append(fn)
        with contextlib.suppress(BlockingIOError, OSError):  # the loop is awake, or has ended
            os.write(self._wake_out, b"x")

    def when(self, future: Any, fn: Callable[[Any, BaseException | None], None]) -> None:
        """Call ``fn(result, error)`` once a future is done."""

        def done(future: Any) -> None:
            error = future.exception()
            self.call(lambda: fn(None if error else future.result(), error))

        future.add_done_callback(done)

    def later(self, seconds: float, fn: Callable[[], None]) -> None:
        """Call `fn` after `seconds`."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), fn))

    def add(self, channel: Channel, take: Take, closed: Callable[[], None]) -> None:
        """Pass a channel's messages to `take`. When the other end closes, close the channel and call `closed`."""
        self._channels[channel.fileno()] = channel, take, closed

    def remove(self, channel: Channel) -> None:
        """Close a channel. The other end notices."""
        if channel.fileno() >= 0:
            self._channels.pop(channel.fileno(), None)
            channel.close()

    def end(self) -> None:
        """End the loop and close all channels. Any thread may call this."""
        self._ended = True
        self.call(lambda: None)

    def join(self, seconds: float) -> None:
        """Wait at most `seconds` for the loop to end."""
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            while not self._ended:
                self._round()
        except BaseException as error:  # noqa: BLE001 - reported to whoever relies on this thread
            self._failed(error)
        finally:
            self._ended = True
            for channel, _, _ in list(self._channels.values()):
                channel.close()
            os.close(self._wake_out)
            os.close(self._wake_in)

    def _round(self) -> None:
        poller = select.poll()
        for fd in (self._wake_in, *self._channels):
            poller.register(fd, select.POLLIN)
        wait = None if not self._timers else max(0.0, self._timers[0][0] - time.monotonic()) * 1000
        if (self._wake_in, select.POLLIN) in poller.poll(wait):
            os.read(self._wake_in, 4096)
        while self._calls:
            self._calls.popleft()()
        while sum(self._hear(fd) for fd in list(self._channels)):  # including what arrived while something was sent
            pass
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def _hear(self, fd: int) -> bool:
        """Handle the messages on a channel. Returns whether there were any."""
        if fd not in self._channels:
            return False
        channel, take, closed = self._channels[fd]
        found = channel.poll()
        try:
            while (message := channel.next()) is not None:
                take(*message)
        except Closed:
            if self._channels.get(fd, (None,))[0] is channel:  # otherwise `take` has closed it
                del self._channels[fd]
                channel.close()
                closed()
        return found
