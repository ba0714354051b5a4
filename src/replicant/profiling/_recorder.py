"""Records steps: their times on the host, and with JAX's profiler what the devices do meanwhile.

Each thread has steps of its own. One begins where the one before it was started, so it has the time in which the program prepares
it, reads its input and compiles it. The last one ends when its results are ready.
"""

import dataclasses
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax

from ..cluster.jax import _bootstrap
from ..errors import ContextError, ProfileError
from ..runtime import _steps
from ._trace import STEP

NoteKind = _steps.Kind | str  # or "own": the time that recording itself takes


@dataclasses.dataclass
class StartedStep:
    """A step that was started, on the clock `time.perf_counter`.

    Args:
        number: Its number in the trace.
        program: The name of its program.
        thread: The thread that has started it.
        begin: When the one before was started.
        mark: When its mark in the trace began.
        end: When it was started. For the last one of a thread, when its results were ready.
    """

    number: int
    program: str
    thread: int
    begin: float
    mark: float
    end: float


class _Here(threading.local):
    """What a thread does."""

    def __init__(self) -> None:
        self.is_inside = False
        self.begin: float | None = None


class StepRecorder:
    """Records up to `num_steps` steps of all threads, and with JAX's profiler what the devices do.

    Args:
        num_steps: How many; None for all until `stop`.
        folder: Where JAX's profiler writes. With several workers, each writes into a folder of its own there.
        when_full: Called once the last step is recorded.
    """

    def __init__(self, num_steps: int | None, folder: Path, when_full: Any = None):
        self._num_steps, self._folder, self._when_full = num_steps, folder, when_full
        self.steps: list[StartedStep] = []
        self.notes: list[tuple[int, NoteKind, float, float]] = []
        self._here = _Here()
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._num_reserved = 0
        self._results: dict[int, Any] = {}  # of the last step of each thread
        self._traces = False
        self.file: Path | None = None  # which JAX's profiler has written
        self.error: ProfileError | None = None  # why there is none
        self.who = ""  # the worker, if there are several

    def note(self, kind: NoteKind, begin: float, end: float) -> None:
        """Note what this thread did, as `Recorder` says."""
        self.notes.append((threading.get_ident(), kind, begin, end))

    def note_begin(self) -> None:
        """Note that this thread prepares a step."""
        if self._here.begin is None:
            self._here.begin = time.perf_counter()

    @contextmanager
    def step(self, name: str) -> Iterator[_steps.Started]:
        """Record a step, unless it is a part of another one or there are enough."""
        here, started = self._here, _steps.Started()
        if here.is_inside or not self._reserve():
            yield started
            return
        is_counted = False
        self.note_begin()
        try:
            here.is_inside = True
            self._start_trace()
            number = next(self._numbers)
            mark = time.perf_counter()
            with jax.profiler.StepTraceAnnotation(STEP, step_num=number):
                yield started
            is_counted = True
        finally:
            here.is_inside = False
            if not is_counted:
                self._give_back()
        self._count(StartedStep(number, name, threading.get_ident(), here.begin or mark, mark, time.perf_counter()), started.result)

    def _reserve(self) -> bool:
        with self._lock:
            if _steps.recorder is not self or (self._num_steps is not None and self._num_reserved >= self._num_steps):
                return False
            self._num_reserved += 1
            return True

    def _give_back(self) -> None:
        with self._lock:
            self._num_reserved -= 1

    def _count(self, step: StartedStep, result: Any) -> None:
        self._here.begin = step.end
        with self._lock:
            self.steps.append(step)
            self._results[step.thread] = result
            is_full = len(self.steps) == self._num_steps
        if is_full:
            self.stop()
            if self._when_full is not None:
                self._when_full()

    def _start_trace(self) -> None:
        """Start JAX's profiler before the first step. By then, JAX runs with the devices and workers that the program wants.

        Raises:
            ContextError: If it runs already.
        """
        with self._lock:
            if self._traces:
                return
            begin = time.perf_counter()
            world = _bootstrap.world()
            folder = self._folder
            if world is not None:
                folder = folder / f"worker-{world.process_id}"
                self.who = f" of worker {world.process_id} of {world.num_processes}"
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # it would make steps slower
            options.host_tracer_level = 1  # operations and marks, but less of what JAX does around them
            self._traces = True
            try:
                jax.profiler.start_trace(folder, profiler_options=options)
            except RuntimeError as error:
                self._traces = False
                raise ContextError(
                    f"replicant.profile: JAX's profiler did not start: {error} If the program has started it "
                    "(jax.profiler.start_trace, or profile_batch of the TensorBoard callback), let only one of them record."
                ) from error
            self._folder = folder
            self.note("own", begin, time.perf_counter())

    def stop(self) -> None:
        """Record no more steps. Wait until those that were started have ended, and let JAX's profiler write."""
        with self._lock:
            if _steps.recorder is self:
                _steps.recorder = None
            results, self._results = self._results, {}
            traces, self._traces = self._traces, False
            try:
                self._wait(results)
            finally:
                if traces:
                    self._stop_trace()

    def _wait(self, results: dict[int, Any]) -> None:
        """Wait for the last step of each thread."""
        for thread, result in results.items():
            with suppress(RuntimeError, ValueError):  # whoever needs the results gets the error
                jax.block_until_ready(result)
            last = next(step for step in reversed(self.steps) if step.thread == thread)
            last.end = time.perf_counter()

    def _stop_trace(self) -> None:
        """Let JAX's profiler write. If it cannot, whoever reads the profile is told, but the training goes on."""
        try:
            jax.profiler.stop_trace()
        except (OSError, RuntimeError) as error:
            self.error = ProfileError(f"replicant.profile: JAX's profiler could not write into {self._folder}: {error}")
            return
        files = list(self._folder.rglob("*.xplane.pb"))
        if files:
            self.file = max(files, key=lambda path: path.stat().st_mtime_ns)
        else:
            self.error = ProfileError(f"replicant.profile: JAX's profiler has written nothing into {self._folder}.")


def listen() -> None:
    """Let JAX tell the profile that is recorded how long it traces and compiles."""
    global _listens  # noqa: PLW0603 - once for each process
    with _lock:
        if not _listens:
            jax.monitoring.register_event_duration_secs_listener(_note_duration)
            _listens = True


def _note_duration(event: str, duration_secs: float, **_: Any) -> None:
    own = _steps.recorder
    if own is not None and event.startswith("/jax/core/compile/"):
        end = time.perf_counter()
        own.note("compile", end - duration_secs, end)


_lock = threading.Lock()
_listens = False
