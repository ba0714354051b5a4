"""``SummaryWriter``, and which writer, step and condition summaries on this thread have."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
from jax.core import Tracer

from ..cluster.jax import _bootstrap
from ..errors import ArgumentError, ContextError
from ..replicas._own_mesh import in_a_trace
from ..storage._urls import folder_at
from ..tracing.gradients import _eager
from ..variables._known import value_of
from ..variables._recorder import current_recorder
from ._event_file import EventFile, import_writer


class _Current(threading.local):
    """What holds for summaries on one thread."""

    writer: "SummaryWriter | None" = None
    step: Any = None
    condition: Any = True


_current = _Current()


def current() -> _Current:
    """Return what holds for summaries on this thread."""
    return _current


class SummaryWriter:
    """Writes the summaries of a ``with writer.as_default():`` block into one event file.

    Semantics: tf.summary.SummaryWriter. Summaries reach the disk within seconds, and at the end of the block. With several workers,
    only the chief's writer has a file.
    """

    def __init__(self, folder: Path | str | None, suffix: str = ""):
        self._folder = folder
        self._suffix = suffix
        self._file: EventFile | None = None
        self._closed = False
        self._lock = threading.RLock()

    @property
    def records(self) -> bool:
        """Whether this process writes anything."""
        world = _bootstrap.world()
        return self._folder is not None and (world is None or world.is_chief)

    @contextmanager
    def as_default(self, step: Any = None) -> Iterator[Self]:
        """Write the summaries of this ``with`` block with this writer.

        Args:
            step: The step of summaries that are given none, within the block.

        Raises:
            ContextError: If the writer is closed.
        """
        self._check_open()
        before = _current.writer, _current.step
        _current.writer = self
        _current.step = before[1] if step is None else step
        try:
            yield self
        finally:
            _current.writer = before[0]
            _current.step = before[1] if step is not None else _current.step
            self.flush()

    def set_as_default(self, step: Any = None) -> None:
        """Write all summaries of this thread with this writer from now on."""
        self._check_open()
        _current.writer = self
        if step is not None:
            _current.step = step

    def init(self) -> None:
        """Make the event file now, and not with the first summary."""
        self.write(lambda _: None)

    def write(self, add: Callable[[EventFile], None]) -> None:
        """Call `add` with the event file, if this process has one."""
        with self._lock:
            self._check_open()
            if not self.records:
                return
            if self._file is None:
                assert self._folder is not None
                self._file = EventFile(self._folder, self._suffix)
            add(self._file)

    def flush(self) -> None:
        """Write everything so far to the disk."""
        with self._lock:
            if self._file is not None and not self._closed:
                self._file.flush()

    def close(self) -> None:
        """Write everything to the disk, and close the file. Nothing can be written afterwards."""
        with self._lock:
            if self._file is not None and not self._closed:
                self._file.close()
            self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ContextError(
                f"The summary writer for {str(self._folder)!r} is closed. Make another one with create_file_writer, or close it "
                "after the last summary."
            )


def create_file_writer(  # noqa: PLR0917  (as TensorFlow's)
    logdir: str | os.PathLike[str],
    max_queue: int | None = None,
    flush_millis: int | None = None,
    filename_suffix: str | None = None,
    name: str | None = None,
    experimental_trackable: bool = False,
) -> SummaryWriter:
    """Make a writer of summaries for TensorBoard.

    Semantics: tf.summary.create_file_writer. The event file is made with the first summary.

    Args:
        logdir: The folder with which TensorBoard is started, or one below it: a path, or a URL, at which a copy of the event file
            is renewed twice a minute.
        max_queue: Has no effect: there is no queue. It is accepted for ported code, like the arguments below.
        flush_millis: Has no effect: summaries reach the disk within two seconds of the next one, at the end of the block, and with
            `flush`.
        filename_suffix: The end of the file's name.
        name: Has no effect.
        experimental_trackable: Has no effect.

    Raises:
        ArgumentError: If the URL is not that of a folder.
        ConfigurationError: If tensorboardX is not installed, or what a URL needs.

    >>> import pathlib, replicant, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = replicant.summary.create_file_writer(folder)
    ...     with writer.as_default(step=1):
    ...         _ = replicant.summary.scalar("loss", 0.5)
    ...     writer.close()
    ...     len(list(pathlib.Path(folder).glob("events.out.tfevents.*")))
    1
    """
    del max_queue, flush_millis, name, experimental_trackable
    import_writer("event_file_writer")
    return SummaryWriter(folder_at("create_file_writer: logdir", logdir, ArgumentError), filename_suffix or "")


def create_noop_writer() -> SummaryWriter:
    """Make a writer that writes nothing."""
    return SummaryWriter(None)


def flush(writer: SummaryWriter | None = None) -> None:
    """Write everything so far to the disk.

    Args:
        writer: The writer; by default that of this thread, if there is one.
    """
    writer = _current.writer if writer is None else writer
    if writer is not None:
        writer.flush()


@contextmanager
def record_if(condition: Any) -> Iterator[None]:
    """Write the summaries of this ``with`` block only if `condition` holds.

    Args:
        condition: A bool, an array or variable of one, or a function without arguments that returns one.
    """
    before, _current.condition = _current.condition, condition
    try:
        yield
    finally:
        _current.condition = before


def should_record_summaries() -> bool:
    """Return whether a summary would be written now: there is a writer, and the condition of `record_if` holds.

    Raises:
        ContextError: In compiled code.
    """
    check_not_traced("should_record_summaries")
    if _current.writer is None:
        return False
    condition = _current.condition
    return bool(np.asarray(value_of(condition() if callable(condition) else condition)))


def check_not_traced(name: str, value: Any = None) -> None:
    """Raise ContextError in compiled code, which computes its summary anew only when it is traced."""
    compiled = current_recorder() is not None or (in_a_trace() and _eager.current() is None)
    if compiled or any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value)):
        raise ContextError(
            f"summary.{name} was called in compiled code (strategy.run, replicant.function or jax.jit), which runs only once as "
            "Python. Return the value from the step, and write it outside."
        )
