"""Which stage of a pipeline works, and which one the consumer waits for.

Every thread notes when it goes from one stage to another. Whoever takes a thread's results from a queue notes since when it waits
for them. So the time in which a stage worked is also known as far as somebody waited for it.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ._blocks import Block
from ._graph import Cursor, Node, Reader, State, Through, watcher

_Result = TypeVar("_Result")


class Waiting:
    """Since when somebody waits for the results of a thread, on the clock `time.perf_counter`.

    A thread that waits may itself make something for which nobody waits yet, so it counts from when both do.
    """

    __slots__ = ("begin", "outer")

    def __init__(self, begin: float = math.inf) -> None:
        self.begin = begin
        self.outer: Waiting | None = None

    def since(self) -> float:
        """Return the time; infinity if nobody waits."""
        outer = self.outer
        return self.begin if outer is None else max(self.begin, outer.since())

    @contextlib.contextmanager
    def in_this_thread(self) -> Iterator[None]:
        """Wait in this thread, on behalf of those who wait for it."""
        self.outer = here.clock.waiting
        self.begin = time.perf_counter()
        try:
            yield
        finally:
            self.begin = math.inf


class Clock:
    """The stage that works in a thread, since when, and who waits for the thread."""

    __slots__ = ("last", "stage", "waiting")

    def __init__(self) -> None:
        self.stage: Stage | None = None
        self.last = 0.0
        self.waiting = Waiting(-math.inf)  # what the consumer makes itself, it waits for

    def enter(self, stage: "Stage | None") -> "Stage | None":
        """Go to another stage, and return the one that worked."""
        before, now = self.stage, time.perf_counter()
        if before is not None and before.works:
            before.worked += now - self.last
            since = self.waiting.since()
            if since < now:
                before.waited += now - (max(since, self.last))
        self.stage, self.last = stage, now
        return before


class _Here(threading.local):
    def __init__(self) -> None:
        self.clock = Clock()


here = _Here()  # whose `clock` is that of this thread


class Stage:
    """A stage, and how long it has worked without the stages before it.

    Args:
        label: The name of the stage.
        works: Whether it works at all. Others only wait for the stages of another thread.
    """

    def __init__(self, label: str, works: bool = True) -> None:
        self.label, self.works = label, works
        self.worked = self.waited = 0.0  # seconds: in all, and those in which the consumer waited

    def call(self, fn: Callable[..., _Result], *args: Any) -> _Result:
        """Return what a function returns, which works for this stage."""
        clock = here.clock
        before = clock.enter(self)
        try:
            return fn(*args)
        finally:
            clock.enter(before)


class Stages:
    """The stages of the pipelines that are opened under `watching`, in the order of the data."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[Node, Stage]] = {}

    def __iter__(self) -> Iterator[tuple[Node, Stage]]:
        return iter(tuple(self._of.values()))

    def of(self, node: Node) -> Stage:
        """Return the stage of a node."""
        if id(node) not in self._of:
            self._of[id(node)] = (node, Stage(node.label, not node.is_made_on_its_own_thread))
        return self._of[id(node)][1]

    def cursor(self, node: Node, cursor: Cursor) -> Cursor:
        """Return a cursor that watches this one."""
        if _is_array(node) or isinstance(cursor, WatchedCursor):
            return cursor
        return WatchedCursor(cursor, self.of(node))

    def reader(self, node: Node, read: Reader) -> Reader:
        """Return a reader that watches this one."""
        if _is_array(node):
            return read
        stage = self.of(node)
        return lambda numbers: stage.call(read, numbers)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the pipelines that are opened here, whenever and on whichever thread they are read."""
        token = watcher.set(self)
        try:
            yield
        finally:
            watcher.reset(token)


def _is_array(node: Node) -> bool:
    """Whether a node is an array in memory. Its rows are taken by the stage that reads it."""
    return not node.inputs and node.cardinality != 0 and type(node).reader is not Node.reader


class WatchedCursor(Through):
    """Passes on everything, and notes how long it takes."""

    def __init__(self, source: Cursor, stage: Stage) -> None:
        super().__init__(source)
        self.stage = stage

    def pull(self, limit: int) -> Block | None:
        clock = here.clock  # as `Stage.call`, in less time
        before = clock.enter(self.stage)
        try:
            return self.source.pull(limit)
        finally:
            clock.enter(before)

    def pull_one(self) -> tuple[Any] | None:
        return self.stage.call(self.source.pull_one)

    def skip(self, count: int) -> int:
        return self.stage.call(self.source.skip, count)

    def reset(self) -> None:
        self.stage.call(self.source.reset)

    def fix(self) -> None:
        self.source.fix()

    def state(self) -> State:
        return self.source.state()
