"""`map` on threads: calls run side by side, elements come in order."""

import dataclasses
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from replicant.errors import DatasetError

from ._blocks import Block
from ._graph import After, Cursor, State

_WAITING_PER_THREAD = 2


@dataclasses.dataclass
class _Call:
    """One call, running or done, and where its element is: so many elements after a position of the source."""

    future: Future[Any]
    before: State
    offset: int

    def failed(self) -> bool:
        return self.future.exception() is not None


class ParallelMapCursor(After):
    """Gives ``make`` of each element, leaves and structure, from a window of calls ahead of the consumer.

    The position is that of the oldest element which was not given: those after it are called again by who continues.
    """

    def __init__(
        self, source: Cursor, to_skip: int, make: Callable[[Any], Any], join: Callable[[list[Any]], Block], num_threads: int
    ) -> None:
        super().__init__(source, to_skip)
        self.make, self.join, self.num_threads = make, join, num_threads
        self.window = num_threads * _WAITING_PER_THREAD
        self.calls: deque[_Call] = deque()
        self.failure: Exception | None = None
        self.executor: ThreadPoolExecutor | None = None
        self.process = os.getpid()

    def _refill(self) -> None:
        """Begin calls, some at a time: a position is noted only once for them."""
        if len(self.calls) > self.window // 2 or self.failure is not None:
            return
        if self.executor is None:
            self.executor = ThreadPoolExecutor(self.num_threads, thread_name_prefix="replicant-map")
        before = self.source.state()
        try:
            block = self.source.pull(self.window - len(self.calls))
        except Exception as error:
            if not self.calls:
                raise
            self.failure = error  # after the elements that came before it
            return
        for offset, element in enumerate(block.elements() if block else ()):
            self.calls.append(_Call(self.executor.submit(self.make, element), before, offset))

    def pull(self, limit: int) -> Block | None:
        if os.getpid() != self.process:
            raise DatasetError(
                "This iterator runs `map` on threads of another process, which a fork does not copy. "
                "Make the iterator after the fork."
            )
        self.settle()
        made: list[Any] = []
        while len(made) < limit:
            self._refill()
            if not self.calls or (made and self.calls[0].failed()):
                break
            made.append(self.calls.popleft().future.result())
        if not made and self.failure is not None:
            failure, self.failure = self.failure, None
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame, and so this cursor and its threads
        return self.join(made) if made else None

    def skip(self, count: int) -> int:
        self.settle()
        dropped = min(count, len(self.calls))
        for _ in range(dropped):
            self.calls.popleft().future.cancel()
        return dropped + (self.source.skip(count - dropped) if count > dropped else 0)

    def _forget(self) -> None:
        for each in self.calls:
            each.future.cancel()
        self.calls.clear()
        self.failure = None

    def reset(self) -> None:
        self._forget()
        super().reset()

    def close(self) -> None:
        self._forget()
        if self.executor is not None:
            self.executor.shutdown(wait=False)  # a function of the user cannot be stopped, and nobody wants its result
            self.executor = None
        self.source.close()

    def state(self) -> State:
        if self.calls:
            return {"offset": self.calls[0].offset, "source": self.calls[0].before}
        return super().state()
