"""Where the time of a pipeline goes: each stage is watched while some elements are read, and the one that binds is named.

The stages of a copy of the graph are watched. What it draws and caches is its own, so a profile changes no later order.
"""

import dataclasses
import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from ..errors import DatasetError
from .files._files import ReadFiles
from .graph._graph import Cursor, Node, rewrite
from .graph._watch import Stage, Stages
from .sources._foreign import Foreign
from .transforms.elements._map import Filter, Map
from .transforms.memory._cache import Cache, MemoryStore
from .transforms.mixtures._interleave import Interleave
from .transforms.order._shuffle import Iterations

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
    stages = Stages()
    cursor = _opened(rewrite(node, _own), stages)
    began = time.perf_counter()
    number = 0
    try:
        while number < count and cursor.pull_one() is not None:
            number += 1
        seconds = time.perf_counter() - began
    finally:
        cursor.close()
    return InputProfile(number, seconds, tuple(_profile(each, stage) for each, stage in stages))


def _opened(node: Node, stages: Stages) -> Cursor:
    with stages.watching():
        return node.open()


def _own(node: Node) -> Node:
    """The node with counters and memory of its own, and with a function whose calls are watched if threads make them."""
    if isinstance(node, Foreign):
        raise DatasetError(
            f"explain(profile=True) reads elements, and those of a {node.kind} might be used up. Use the tools of that library."
        )
    changes: dict[str, Any] = {}
    if any(field.name == "iterations" for field in dataclasses.fields(node)):
        changes["iterations"] = Iterations()
    if isinstance(node, Cache) and node.store.find() is None:
        changes["store"] = MemoryStore()
    if not (isinstance(node, Map) and node.num_threads):
        return dataclasses.replace(node, **changes) if changes else node
    calls = _Calls(node.fn)
    return dataclasses.replace(node, **changes, fn=functools.update_wrapper(calls, node.fn, updated=()))


class _Calls:
    """A function that threads call, and how long its calls take together."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.seconds = 0.0
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        began = time.perf_counter()
        try:
            return self.fn(*args)
        finally:
            taken = time.perf_counter() - began
            with self._lock:
                self.seconds += taken


def _profile(node: Node, stage: Stage) -> StageProfile:
    """What was seen. Whoever asks a stage with threads for elements only waits for these, which are watched where they work."""
    if isinstance(node, Map) and isinstance(node.fn, _Calls):
        num_threads = node.num_threads if node.num_threads > 0 else os.cpu_count() or 1
        return StageProfile(node.label, node.fn.seconds, num_threads, _advice(node))
    return StageProfile(node.label, stage.worked, 1, _advice(node))


def _advice(node: Node) -> str:
    """What would make this stage faster."""
    if isinstance(node, Map) and not node.num_threads:
        return "Give it threads: num_parallel_calls=replicant.data.AUTOTUNE. Or put it after `batch`, and compute whole batches."
    if isinstance(node, Map):
        return "It has threads: make its function cheaper, or put `cache()` after it if it draws nothing at random."
    if type(node) is ReadFiles:
        return "Read several files at a time: num_parallel_reads=4, or `interleave` with num_parallel_calls. Or read fewer columns."
    if isinstance(node, Interleave):
        return "Open more files at a time, in threads: a larger cycle_length, and num_parallel_calls=replicant.data.AUTOTUNE."
    if isinstance(node, Filter):
        return "Put it before the stages whose results it leaves out, or behind `batch`, where one call looks at many elements."
    return "Put `prefetch` after it, so that it works while others do, or give it less to do."
