"""What a profile is told: which steps there are, and what they wait for. Without a profile, a step pays for one comparison."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, Protocol

Kind = Literal["input", "compile"]


class Started:
    """A step while it is started. Its last statement notes what tells that the step has ended."""

    def __init__(self) -> None:
        self.result: Any = None  # arrays that are ready once the step has ended


class Recorder(Protocol):
    """What records the steps of all threads."""

    def step(self, name: str) -> AbstractContextManager[Started]:
        """Return a context to enter around starting a step."""
        ...

    def note(self, kind: Kind, begin: float, end: float) -> None:
        """Note that this thread has waited for input or compiled, on the clock `time.perf_counter`."""
        ...

    def note_begin(self) -> None:
        """Note that this thread prepares a step, if it has prepared none yet."""
        ...


recorder: Recorder | None = None  # of the profile that is recorded now


def compiling() -> AbstractContextManager[None]:
    """Return a context to enter around tracing and compiling a program."""
    return nullcontext() if recorder is None else _compiling(recorder)


@contextmanager
def _compiling(own: Recorder) -> Iterator[None]:
    own.note_begin()
    begin = time.perf_counter()
    try:
        yield
    finally:
        own.note("compile", begin, time.perf_counter())


@contextmanager
def waiting_for_input(own: Recorder) -> Iterator[None]:
    """Note that this thread waits for input."""
    own.note_begin()
    begin = time.perf_counter()
    try:
        yield
    finally:
        own.note("input", begin, time.perf_counter())
