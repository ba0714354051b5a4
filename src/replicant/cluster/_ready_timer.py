"""``ReadyTimer``: a timer for the end of a program."""

import queue
import threading
from collections.abc import Callable


class ReadyTimer:
    """Calls a function after some time, unless it is cancelled. It is used once.

    Its thread is there from the beginning, unlike that of ``threading.Timer``: Python 3.12.1 starts no thread at exit.

    Args:
        name: The name of the thread.

    >>> timer = ReadyTimer("example")
    >>> timer.start(60, lambda: print("late"))
    >>> timer.cancel()
    """

    def __init__(self, name: str):
        self._orders: queue.SimpleQueue[tuple[float, Callable[[], None]] | None] = queue.SimpleQueue()
        self._is_over = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def start(self, seconds: float, call: Callable[[], None]) -> None:
        """Call `call` on the thread after so many seconds."""
        self._orders.put((seconds, call))

    def cancel(self) -> None:
        """Call nothing any more, and end the thread."""
        self._is_over.set()
        self._orders.put(None)

    def _run(self) -> None:
        order = self._orders.get()
        if order is not None and not self._is_over.wait(order[0]):
            order[1]()
