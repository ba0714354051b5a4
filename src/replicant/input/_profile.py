"""Where the time of a pipeline goes: each stage is watched while some elements are read, and the one that binds is named.

The stages are wrapped in a copy of the graph. What it draws and caches is its own, so a profile changes no later order.
"""

import dataclasses
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..errors import DatasetError
from .files._files import ReadFiles
from .graph._blocks import Block
from .graph._graph import Cursor, Node, OneInput, Reader, State, Through, rewrite
from .sources._foreign import Foreign
from .transforms._cache import Cache, MemoryStore
from .transforms._interleave import Interleave
from .transforms._map import Filter, Map
from .transforms._prefetch import Prefetch
from .transforms._shuffle import Iterations

_BAR = 20  # characters of the longest bar


@dataclasses.dataclass(frozen=True)
class StageProfile:
    """What one stage of a pipeline took.

    Args:
        label: The stage, as in the pipeline.
        seconds: The seconds that it worked, in all of its threads together, without the stages before it.
        num_threads: The threads that share this work.
        advice: What would make it faster.
    """

    label: str
    seconds: float
    num_threads: int
    advice: str

    @property
    def binding_seconds(self) -> float:
        """The least time that it needs with its threads."""
        return self.seconds / self.num_threads


@dataclasses.dataclass(frozen=True)
class InputProfile:
    """How long the stages of a pipeline worked while elements were read in one process.

    Args:
        num_elements: The number of elements, which are global batches.
        seconds: The seconds in which they were read.
        stages: The stages, in the order of the data.
    """

    num_elements: int
    seconds: float
    stages: tuple[StageProfile, ...]

    @property
    def binding(self) -> StageProfile | None:
        """The stage that takes longest, or None if there is none."""
        return max(self.stages, key=lambda each: each.binding_seconds, default=None)

    def __str__(self) -> str:
        if not self.num_elements or self.binding is None:
            return "Input profile: there was nothing to read"
        longest = max(self.binding.binding_seconds, 1e-9)
        width = max(len(each.label) for each in self.stages)
        each_ms = 1000 * self.seconds / self.num_elements
        lines = [
            f"Input profile: {self.num_elements} batches in {self.seconds:.3g} s, {each_ms:.3g} ms for each",
            *(self._line(each, width, longest) for each in self.stages),
            f"  {self.binding.label} binds. Steps that take longer than {each_ms:.3g} ms do not wait for it. {self.binding.advice}",
        ]
        return "\n".join(lines)

    def _line(self, stage: StageProfile, width: int, longest: float) -> str:
        bar = "#" * round(_BAR * stage.binding_seconds / longest)
        threads = f" in {stage.num_threads} threads" if stage.num_threads > 1 else ""
        return f"  {stage.label:{width}}  {1000 * stage.seconds / self.num_elements:9.3f} ms per batch  {bar}{threads}"


def profiled(node: Node, count: int) -> InputProfile:
    """Read up to ``count`` elements, and return what each stage took.

    Raises:
        DatasetError: If another library makes the elements, because reading them would use them up.
    """
    stages: list[_Stage] = []

    def watched(each: Node) -> Node:
        if isinstance(each, Foreign):
            raise DatasetError(
                f"explain(profile=True) reads elements, and those of a {each.kind} might be used up. Use the tools of that library."
            )
        if not each.inputs and each.cardinality != 0 and each.reader() is not None:
            return each  # arrays: their stage is that which reads them
        stage = _Stage(each)
        stages.append(stage)
        return Timed(inputs=(_own(each, stage),), stage=stage)

    cursor = rewrite(node, watched).open()
    began = time.perf_counter()
    number = 0
    try:
        while number < count and cursor.pull_one() is not None:
            number += 1
        seconds = time.perf_counter() - began
    finally:
        cursor.close()
    return InputProfile(number, seconds, tuple(stage.profile() for stage in stages))


def _own(node: Node, stage: "_Stage") -> Node:
    """The node with counters and memory of its own, and with a function whose calls are watched if threads make them."""
    changes: dict[str, Any] = {}
    if any(field.name == "iterations" for field in dataclasses.fields(node)):
        changes["iterations"] = Iterations()
    if isinstance(node, Cache) and node.store.find() is None:
        changes["store"] = MemoryStore()
    if isinstance(node, Map) and node.num_threads:
        changes["fn"] = stage.watching(node.fn)
    return dataclasses.replace(node, **changes) if changes else node


class _Running(threading.local):
    """The stage that works in this thread, and how long those before it have worked within its call."""

    def __init__(self) -> None:
        self.inner: list[float] = []


_running = _Running()


class _Stage:
    """Adds up what a stage works, without what the stages before it work in the same thread."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.seconds = 0.0
        self._lock = threading.Lock()

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Watch a call in this thread. Where it only waits for other threads, these are watched instead."""
        _running.inner.append(0.0)
        began = time.perf_counter()
        try:
            yield
        finally:
            taken = time.perf_counter() - began
            own = taken - _running.inner.pop()
            if _running.inner:
                _running.inner[-1] += taken
            if not self.only_waits:
                self.add(own)

    def add(self, seconds: float) -> None:
        """Add seconds of work."""
        with self._lock:
            self.seconds += seconds

    def watching(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of the same name whose calls count as work of this stage."""

        @functools.wraps(fn, updated=())
        def watched(*args: Any) -> Any:
            began = time.perf_counter()
            try:
                return fn(*args)
            finally:
                self.add(time.perf_counter() - began)

        return watched

    @property
    def only_waits(self) -> bool:
        """Whether those who ask it for elements wait for its threads, which are watched where they work."""
        return isinstance(self.node, Prefetch) or (isinstance(self.node, Map) and self.node.num_threads != 0)

    def profile(self) -> StageProfile:
        """Return what was seen."""
        num_threads = 1
        if isinstance(self.node, Map) and self.node.num_threads:
            num_threads = self.node.num_threads if self.node.num_threads > 0 else os.cpu_count() or 1
        return StageProfile(self.node.label, self.seconds, num_threads, _advice(self.node))


def _advice(node: Node) -> str:
    """What would make this stage faster."""
    if isinstance(node, Map) and not node.num_threads:
        return "Give it threads: num_parallel_calls=replicant.data.AUTOTUNE. Or put it behind `batch`, and compute batches at once."
    if isinstance(node, Map):
        return "It has threads: make its function cheaper, or put `cache()` behind it if it draws nothing at random."
    if isinstance(node, ReadFiles):
        return "Read several files at a time: num_parallel_reads=4, or `interleave` with num_parallel_calls. Or read fewer columns."
    if isinstance(node, Interleave):
        return "Open more files at a time, in threads: a larger cycle_length, and num_parallel_calls=replicant.data.AUTOTUNE."
    if isinstance(node, Filter):
        return "Put it before the stages whose results it leaves out, or behind `batch`, where one call looks at many elements."
    return "Put `prefetch` behind it, so that it works while others do, or give it less to do."


@dataclasses.dataclass(frozen=True, eq=False)
class Timed(OneInput):
    """Yields what its input yields, and watches it."""

    stage: Any = None

    @property
    def label(self) -> str:
        return self.input.label

    @property
    def sampled(self) -> Node:
        return self.input

    def reader(self) -> Reader | None:
        read = self.input.reader()
        if read is None:
            return None

        def timed(numbers: np.ndarray) -> Block:
            with self.stage.asked():
                return read(numbers)

        return timed

    def open(self, state: State | None = None) -> Cursor:
        return TimedCursor(self.input.open(state), self.stage)


class TimedCursor(Through):
    """Passes on everything, and counts how long it took."""

    def __init__(self, source: Cursor, stage: _Stage) -> None:
        super().__init__(source)
        self.stage = stage

    def pull(self, limit: int) -> Block | None:
        with self.stage.asked():
            return self.source.pull(limit)

    def skip(self, count: int) -> int:
        with self.stage.asked():
            return self.source.skip(count)

    def fix(self) -> None:
        self.source.fix()

    def state(self) -> State:
        return self.source.state()
