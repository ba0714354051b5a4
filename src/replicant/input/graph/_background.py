"""A thread that reads ahead into a bounded queue, and ends when nobody reads from it any more."""

import atexit
import os
import threading
import time
import types
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from ...errors import DatasetError
from ._watch import Waiting, here

_CHECK_SECONDS = 1.0  # how often a waiting consumer makes sure that the thread is alive
_JOIN_SECONDS = 5.0  # a thread inside a user's function cannot be stopped, only waited for

END = object()

# Threads with their queues, not the `Background`s: the thread of a dropped `Background` may still be about to end. A thread stays
# here until it is known to have ended, because it drops what it has read, JAX's arrays, after its last line.
_running: "dict[threading.Thread, _Channel]" = {}


class Background:
    """Calls ``produce`` on a thread until it returns `END`, keeps up to ``ahead`` results ready, and calls ``release`` last.

    The thread starts with the first `next`. It ends at the end of the data, when ``produce`` raises, at `close`, when
    this object is garbage collected, or when the interpreter exits.
    """

    def __init__(self, produce: Callable[[], Any], release: Callable[[], None], ahead: int, name: str) -> None:
        self._channel = _Channel(ahead)
        # The thread must not refer to this object, or it would never be collected.
        self._thread = threading.Thread(target=_run, args=(produce, release, self._channel), name=name, daemon=True)
        self._process = os.getpid()
        weakref.finalize(self, self._channel.close).atexit = False  # at exit, `_close_all` also waits

    def next(self) -> Any:
        """Return the next result, or `END`.

        Raises:
            Exception: What ``produce`` raised, with its own traceback, on this call and every later one.
            DatasetError: If the thread is gone, as in a forked process.
        """
        check_process(self._process)
        with self._channel.changed:
            if self._thread.ident is None and not self._channel.closed:
                self._start()
        return self._channel.get(self._thread)

    def _start(self) -> None:
        for thread in [thread for thread in tuple(_running) if thread.ident is not None and not thread.is_alive()]:
            _running.pop(thread, None)
        _running[self._thread] = self._channel
        try:
            self._thread.start()
        except RuntimeError:  # the system has no thread left
            del _running[self._thread]
            raise

    @property
    def num_ready(self) -> int:
        """The number of results that wait for the consumer."""
        return len(self._channel.items)

    @property
    def is_ready(self) -> bool:
        """Whether `next` would not wait."""
        return self._channel.is_ready

    def keep(self, ahead: int) -> None:
        """Keep `ahead` results ready from now on."""
        with self._channel.changed:
            self._channel.ahead = ahead
            self._channel.changed.notify_all()

    def close(self, seconds: float | None = _JOIN_SECONDS) -> None:
        """End the thread and wait for it; None waits until a user's function that it runs returns. Later calls do nothing."""
        self._channel.close()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)


def check_process(process: int) -> None:
    """Check that this is still the process in which an iterator was made.

    Raises:
        DatasetError: If it is a fork of it.
    """
    if os.getpid() != process:
        raise DatasetError(
            "This iterator reads on a thread of another process, which a fork does not copy. Make the iterator after the fork."
        )


class _Channel:
    """The queue. One condition guards everything. Its lock is re-entrant, because a finalizer may run at any point."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.items: deque[Any] = deque()
        self.error: BaseException | None = None
        self.traceback: types.TracebackType | None = None  # of the error when it came
        self.ended = False
        self.closed = False
        self.changed = threading.Condition(threading.RLock())
        self.waiting = Waiting()  # since when the consumer waits

    def put(self, item: Any) -> bool:
        """Add a result once there is room. Returns False if nobody wants it any more."""
        with self.changed:
            while len(self.items) >= self.ahead and not self.closed:
                self.changed.wait()
            if not self.closed:
                self.items.append(item)
                self.changed.notify_all()
            return not self.closed

    def end(self, error: BaseException | None) -> None:
        """Note that there are no more results."""
        with self.changed:
            self.error, self.ended = error, True
            self.traceback = error.__traceback__ if error else None
            self.changed.notify_all()

    def get(self, thread: threading.Thread) -> Any:
        """Return the next result, or END at the end and after `close`."""
        with self.changed:
            if not self.is_ready:
                with self.waiting.in_this_thread():
                    self._wait(thread)
            if self.closed:
                return END
            if self.items:
                item = self.items.popleft()
                self.changed.notify_all()
                return item
            if self.error is not None:
                raise self.error.with_traceback(self.traceback)
            return END

    @property
    def is_ready(self) -> bool:
        """Whether there is something to return at once."""
        return bool(self.items) or self.ended or self.closed

    def _wait(self, thread: threading.Thread) -> None:
        while not self.is_ready:
            self.changed.wait(_CHECK_SECONDS)
            if not (thread.is_alive() or self.items or self.ended):
                raise DatasetError("The thread that reads the dataset is gone. Make a new iterator.")

    def close(self) -> None:
        """Drop what is waiting, and release both sides."""
        with self.changed:
            self.closed = True
            self.items.clear()
            self.changed.notify_all()


def _run(produce: Callable[[], Any], release: Callable[[], None], channel: _Channel) -> None:
    """Run the thread. Every exception is passed to the consumer."""
    error = None
    here.clock.waiting = channel.waiting
    try:
        while not channel.closed and (item := produce()) is not END:
            if not channel.put(item):
                break
            item = None  # do not keep a batch alive that was handed over
    except BaseException as raised:  # noqa: BLE001 - nothing is handled here: the consumer raises it
        error = raised
    channel.end(error)
    release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)  # a fork does not copy threads, and their queues may be locked


@atexit.register
def _close_all() -> None:
    """End all threads: one that is inside JAX while the interpreter exits would end the process with a signal."""
    running = dict(_running)
    for channel in running.values():
        channel.close()
    deadline = time.monotonic() + _JOIN_SECONDS
    for thread in running:
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
