"""`map` on threads: calls run in parallel, and elements arrive in order."""

import dataclasses
import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ....errors import DatasetError
from ...graph._blocks import Block
from ...graph._graph import After, Cursor, State

_WAITING_PER_THREAD = 2
_SECONDS = 2e-3  # of work for a thread at a time; handing it over and back takes about 50 microseconds
_MOST = 64  # calls for a thread at a time
_FADING = 0.75

Make = Callable[[Any], Any]


class _Consumer:
    """Exists as long as somebody wants the results."""

    __slots__ = ("__weakref__",)


@dataclasses.dataclass
class _Failed:
    """What a call raised, in place of its result."""

    error: BaseException


@dataclasses.dataclass
class _Made:
    """The results of some calls, and how long one of them took."""

    results: list[Any]
    seconds: float


@dataclasses.dataclass
class _Run:
    """Consecutive calls of one thread, and the place of their elements: an offset from a position of the source."""

    future: Future[_Made]
    before: State
    offset: int  # of the first element that is neither returned nor dropped
    size: int

    def sound(self, limit: int) -> list[Any]:
        """Wait for the calls, and return the results of the next ones, at most `limit`, up to one that failed."""
        results = self.future.result().results
        begin = len(results) - self.size
        made = results[begin : begin + limit]
        failed = next((i for i, each in enumerate(made) if type(each) is _Failed), len(made))
        self.drop(failed)
        return made[:failed]

    def failure(self) -> BaseException:
        """Remove and return what the next call raised."""
        results = self.future.result().results
        failed, results[-self.size] = results[-self.size], None
        self.drop(1)
        return failed.error

    def drop(self, count: int) -> None:
        """Drop the next elements."""
        self.offset += count
        self.size -= count


class ParallelMapCursor(After):
    """Returns what ``make`` makes of each element, from a window of calls ahead of the consumer.

    A thread gets several quick calls at a time, but slow calls one by one. The position is that of the oldest element that
    was not returned; whoever continues from it repeats the calls for those after it.
    """

    def __init__(self, source: Cursor, to_skip: int, make: Make, join: Callable[[list[Any]], Block], num_threads: int) -> None:
        super().__init__(source, to_skip)
        self.make, self.join, self.num_threads = make, join, num_threads
        self.window = num_threads * _WAITING_PER_THREAD
        self.runs: deque[_Run] = deque()
        self.run_size = 1
        self.seconds = 0.0  # of a call; slow calls are forgotten slowly
        self.consumer = _Consumer()
        self.failure: Exception | None = None
        self.executor: ThreadPoolExecutor | None = None
        self.process = os.getpid()

    def _refill(self) -> None:
        """Start calls for several runs at a time, so that their position is noted only once."""
        if len(self.runs) > self.window // 2 or self.failure is not None:
            return
        if self.executor is None:
            self.executor = ThreadPoolExecutor(self.num_threads, thread_name_prefix="replicant-map")
        before, size, consumer = self.source.state(), self.run_size, weakref.ref(self.consumer)
        try:
            block = self.source.pull((self.window - len(self.runs)) * size)
            elements = list(block.elements()) if block else []
        except Exception as error:
            if not self.runs:
                raise
            self.failure = error  # raised after the elements that came before it
            return
        for offset in range(0, len(elements), size):
            some = elements[offset : offset + size]
            self.runs.append(_Run(self.executor.submit(_calls, self.make, some, consumer), before, offset, len(some)))

    def _leave(self, run: _Run) -> None:
        """Go to the next run if all of this one is returned, and adjust the number of calls in a run."""
        if not run.size:
            self.runs.popleft()
            self.seconds = max(run.future.result().seconds, self.seconds * _FADING)
            self.run_size = min(2 * self.run_size, max(1, int(_SECONDS / (self.seconds + 1e-9))), _MOST)

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
            if not self.runs or not (sound := self.runs[0].sound(limit - len(made))):
                break
            made += sound
            self._leave(self.runs[0])
        if made:
            return self.join(made)
        failure = self._next_failure()
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # its traceback holds this frame, and so this cursor and its threads
        return None

    def _next_failure(self) -> BaseException | None:
        """The error to raise instead of the next element."""
        if self.runs:
            run = self.runs[0]
            failure = run.failure()
            self._leave(run)
            return failure
        failure, self.failure = self.failure, None
        return failure

    def skip(self, count: int) -> int:
        self.settle()
        left = count
        while left and self.runs:
            run = self.runs[0]
            dropped = min(left, run.size)
            run.drop(dropped)
            left -= dropped
            if not run.size:
                self.runs.popleft().future.cancel()
        return count - left + (self.source.skip(left) if left else 0)

    def _forget(self) -> None:
        for run in self.runs:
            run.future.cancel()
        self.runs.clear()
        self.consumer = _Consumer()
        self.failure = None

    def reset(self) -> None:
        self._forget()
        super().reset()

    def close(self) -> None:
        self._forget()
        if self.executor is not None:
            self.executor.shutdown(wait=False)  # a user's function cannot be stopped, and nobody wants its result
            self.executor = None
        self.source.close()

    def state(self) -> State:
        if self.runs:
            return {"offset": self.runs[0].offset, "source": self.runs[0].before}
        return super().state()


def _calls(make: Make, elements: list[Any], consumer: weakref.ref[_Consumer]) -> _Made:
    """Run on a thread: call `make` for every element, even after one that failed, as long as there is a consumer."""
    start = time.perf_counter()
    results = [_call(make, element) for element in elements if consumer() is not None]
    return _Made(results, (time.perf_counter() - start) / len(elements))


def _call(make: Make, element: Any) -> Any:
    try:
        return make(element)
    except BaseException as error:  # noqa: BLE001 - not handled here: the consumer raises it at this element
        return _Failed(error)
