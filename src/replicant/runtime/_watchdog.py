"""``Watchdog`` reports where a step hangs that takes too long, and can end it.

Noting a step only assigns attributes, so it costs nothing and waits for nothing. A thread looks at the clock when the next deadline
can have passed. Nothing that hangs may stop this thread: it reads the stacks but not the source files, and leaves writing to
another thread, for which it waits only a short time.
"""

import contextlib
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal, Self

from ..errors import ArgumentError, ClusterError, ContextError, StepTimeoutError
from ..storage._urls import local_path

_FIRST_STEP_FACTOR = 10.0
_LEAST_FIRST_STEP = 600.0
_CHECKS = 4  # per deadline, while there is no step or the step takes too long
_SECONDS_TO_WRITE = 5.0  # to wait for a report to be written, because a file system or a pipe may hang, too
_SECONDS_TO_STOP = 10.0
_COMPILER = os.path.join("jax", "_src", "compiler.py")  # noqa: PTH118 - the end of a path, with the system's separators
_SIGNAL = getattr(signal, "SIGURG", None)  # by default it is ignored; with a handler, it interrupts waits of the main thread

EXIT_CODE = 75  # EX_TEMPFAIL: the program failed, and may succeed if it is run again


class Watchdog:
    """Reports what every thread does when a step takes too long, and can end the program or the step.

    There are two ways to use it in a ``with`` block. If you call ``beat()`` at the end of each step, the clock runs from beat to
    beat. If you write ``with watchdog.step():``, the clock runs only inside this block, and from the start to the first step. In
    ``fit``, use ``replicant.keras.callbacks.StepWatchdog``.

    Args:
        step_seconds: A step that takes longer is reported once: the worker, the step, and the stack of every thread.
        first_step_seconds: The same for the first step, and for any step in which JAX is compiling. By default ten times
            `step_seconds`, but at least 600.
        abort_seconds: A step that takes longer is ended. It must be more than `step_seconds`. Steps with the longer deadline get
            the same additional time before they are ended. By default steps are never ended.
        on_abort: ``"exit"`` ends the process immediately with `exit_code`, wherever it hangs, so a launcher can start it again.
            ``"raise"`` raises StepTimeoutError in the main thread. This works wherever Python waits (input, locks, sleep), but not
            while a device computes.
        exit_code: The exit code of ``"exit"``. The default, 75, means a temporary failure (EX_TEMPFAIL).
        file: The file to which reports are appended. By default standard error.

    Raises:
        ArgumentError: If times are not positive or contradict each other, or if `on_abort` is not known.
        ContextError: When it starts, if it is already watching, or with ``on_abort="raise"`` outside the main thread.

    >>> import replicant
    >>> with replicant.Watchdog(step_seconds=60, abort_seconds=600) as watchdog:
    ...     for batch in range(3):
    ...         _ = batch * batch  # a step
    ...         watchdog.beat()
    >>> watchdog.num_steps, watchdog.num_reports
    (3, 0)
    """

    def __init__(
        self,
        step_seconds: float,
        *,
        first_step_seconds: float | None = None,
        abort_seconds: float | None = None,
        on_abort: Literal["exit", "raise"] = "exit",
        exit_code: int = EXIT_CODE,
        file: str | os.PathLike[str] | None = None,
    ):
        if first_step_seconds is None:
            first_step_seconds = max(_FIRST_STEP_FACTOR * step_seconds, _LEAST_FIRST_STEP)
        _check(step_seconds, first_step_seconds, abort_seconds, on_abort)
        self._seconds = step_seconds
        self._first_seconds = first_step_seconds
        self._abort_seconds = abort_seconds
        self._on_abort = on_abort
        self._exit_code = exit_code
        self._file = None if file is None else local_path("Watchdog: file", file)
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._clock: tuple[int, float, bool, str] | None = None  # step, when it began, whether it is a first one, its name
        self._num_steps = 0
        self._num_reports = 0
        self._slow_step: int | None = None  # the step in which JAX was seen compiling
        self._ended_step: int | None = None  # the step in which the main thread was told to raise
        self._before: Any = None
        self._who = ""

    @property
    def num_steps(self) -> int:
        """The number of steps that have ended."""
        return self._num_steps

    @property
    def num_reports(self) -> int:
        """The number of steps that were reported."""
        return self._num_reports

    def beat(self, name: str = "", *, first: bool = False) -> None:
        """Note that a step has ended and the next one begins.

        Args:
            name: The name of the next step in reports.
            first: Whether the next step has the deadline of a first step.
        """
        self._num_steps += 1
        self._clock = (self._num_steps, time.monotonic(), first, name)

    @contextmanager
    def step(self, name: str = "", *, first: bool = False) -> Iterator[None]:
        """Watch one step. There is no deadline between this step and the next one.

        Args:
            name: The name of the step in reports.
            first: Whether the step has the deadline of a first step.
        """
        self._clock = (self._num_steps, time.monotonic(), first or self._num_steps == 0, name)
        try:
            yield
        finally:
            self._clock = None
            self._num_steps += 1

    def pause(self) -> None:
        """Suspend the deadline until the next beat or step."""
        self._clock = None

    def start(self) -> None:
        """Begin to watch, as entering a ``with`` block does. The first step begins.

        Raises:
            ContextError: If it is already watching, or with ``on_abort="raise"`` outside the main thread.
        """
        if self._thread is not None:
            raise ContextError("Watchdog: it is already watching. Make one Watchdog per loop.")
        if self._on_abort == "raise" and self._abort_seconds is not None:
            self._take_signal()
        self._who = _worker()
        self._stopped.clear()
        self._num_steps = self._num_reports = 0
        self._slow_step = self._ended_step = None
        self._clock = (0, time.monotonic(), True, "")
        self._thread = threading.Thread(target=self._watch, name="replicant-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching. Nothing happens if it is not watching."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._clock = None
        self._stopped.set()
        if thread is not threading.current_thread():
            thread.join(_SECONDS_TO_STOP)
        if self._before is not None:
            signal.signal(_required(_SIGNAL), self._before)
            self._before = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    # -- the thread

    def _watch(self) -> None:
        reported, wait = None, self._seconds
        while not self._stopped.wait(wait):
            clock = self._clock
            wait = self._seconds / _CHECKS
            if clock is None:
                continue  # a step may begin at any time
            took, deadline = time.monotonic() - clock[1], self._deadline(clock)
            if took < deadline:
                wait = min(deadline - took, self._seconds)
                continue
            if reported != clock[0]:
                reported = clock[0]
                self._report(clock, took, deadline)
            if self._abort_seconds is not None and took >= deadline - self._seconds + self._abort_seconds:
                self._abort(clock, took)

    def _deadline(self, clock: tuple[int, float, bool, str]) -> float:
        """The seconds that the step may take."""
        if not clock[2] and time.monotonic() - clock[1] >= self._seconds and self._slow_step != clock[0] and _is_compiling():
            self._slow_step = clock[0]
        return max(self._first_seconds, self._seconds) if clock[2] or self._slow_step == clock[0] else self._seconds

    def _report(self, clock: tuple[int, float, bool, str], took: float, deadline: float) -> None:
        self._num_reports += 1
        self._write(
            f"replicant: {self._who}: {_called(clock)} has taken {took:.1f} s so far, more than {deadline:g} s. "
            f"What every thread does:\n{stacks()}"
        )

    def _abort(self, clock: tuple[int, float, bool, str], took: float) -> None:
        if self._on_abort == "exit":
            self._write(
                f"replicant: {self._who}: {_called(clock)} has taken {took:.1f} s, too long (abort_seconds="
                f"{self._abort_seconds:g}): leaving with exit code {self._exit_code}.\n"
            )
            os._exit(self._exit_code)
        if self._ended_step != clock[0]:  # otherwise the signal is on its way
            self._ended_step = clock[0]
            signal.pthread_kill(_required(threading.main_thread().ident), _required(_SIGNAL))

    def _write(self, text: str) -> None:
        writer = threading.Thread(target=self._write_now, args=(text,), name="replicant-watchdog-report", daemon=True)
        writer.start()
        writer.join(_SECONDS_TO_WRITE)

    def _write_now(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a report that cannot be written must not end the training
            data = text.encode(errors="replace")
            if self._file is None:
                os.write(2, data)  # not sys.stderr, because the thread that hangs may hold its lock
                return
            with self._file.open("ab") as stream:
                stream.write(data)

    # -- the main thread

    def _take_signal(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise ContextError(
                "Watchdog(on_abort='raise') must be entered in the main thread, where it raises. This thread is "
                f"{threading.current_thread().name!r}. Train in the main thread, or use on_abort='exit'."
            )
        if _SIGNAL is None:
            raise ContextError("Watchdog(on_abort='raise') needs a signal that this system does not have: use on_abort='exit'.")
        before = signal.signal(_SIGNAL, self._on_signal)
        self._before = signal.SIG_DFL if before is None else before

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        clock, ended = self._clock, self._ended_step
        if ended is None or clock is None or clock[0] != ended:
            if callable(self._before):
                self._before(number, frame)
            return  # the step has ended in the meantime
        self._clock = None  # there is no step any more
        raise StepTimeoutError(
            f"{self._who}: {_called(clock)} took more than {time.monotonic() - clock[1]:.1f} s (abort_seconds="
            f"{self._abort_seconds:g}). The report shows what every thread did. Look there for what the step waited for, or allow "
            "more seconds."
        )


def stacks() -> str:
    """Describe what every thread does, with the main thread first and the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, own = threading.main_thread().ident, threading.get_ident()
    found = sorted(sys._current_frames().items(), key=lambda item: (item[0] != main, item[0]))  # noqa: SLF001 - Python has no other name for it
    return "\n".join(
        f'Thread "{names.get(ident, "not of Python")}", most recent call last:\n{_calls(frame)}'
        for ident, frame in found
        if ident != own or ident == main
    )


def _calls(frame: FrameType | None) -> str:
    lines = []
    while frame is not None:
        lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_qualname}\n')
        frame = frame.f_back
    return "".join(reversed(lines))


def _is_compiling() -> bool:
    """Whether a thread is in JAX's compiler."""
    for frame in sys._current_frames().values():  # noqa: SLF001 - Python has no other name for it
        current: FrameType | None = frame
        while current is not None:
            if current.f_code.co_filename.endswith(_COMPILER):
                return True
            current = current.f_back
    return False


def _called(clock: tuple[int, float, bool, str]) -> str:
    return f"step {clock[0] + 1}{f' ({clock[3]})' if clock[3] else ''}"


def _worker() -> str:
    """The name of this worker, as far as the environment says."""
    here = f"process {os.getpid()} on {platform.node()}"
    from ..cluster import detect

    try:
        found = detect()
    except ClusterError:
        return here
    return here if found.num_processes < 2 else f"worker {found.process_id} of {found.num_processes} ({here})"


def _check(step_seconds: float, first_step_seconds: float, abort_seconds: float | None, on_abort: str) -> None:
    for name, value in (("step_seconds", step_seconds), ("first_step_seconds", first_step_seconds)):
        if not value > 0:
            raise ArgumentError(f"Watchdog: {name} must be a positive number of seconds. Received: {value}.")
    if abort_seconds is not None and not abort_seconds > step_seconds:
        raise ArgumentError(
            f"Watchdog: abort_seconds must be more than step_seconds={step_seconds:g}, so that the report comes first. Received: "
            f"{abort_seconds}."
        )
    if on_abort not in ("exit", "raise"):
        raise ArgumentError(f"Watchdog: on_abort must be 'exit' or 'raise'. Received: {on_abort!r}.")


def _required(value: Any) -> Any:
    assert value is not None
    return value
