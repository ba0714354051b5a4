"""Event files in the layout that TensorBoard's dashboards read: every summary is a tensor, marked with its plugin."""

import contextlib
import importlib
import itertools
import json
import os
import secrets
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigurationError, WriteError
from ..storage._copied import StoreCopy
from ._png import png

_FLUSH_SECONDS = 2.0  # a flush waits for the disk, so many small flushes would slow training down
_FLOAT, _DOUBLE, _STRING = 1, 2, 7  # the numbers of tensor types in the file format
NUM_BUCKETS = 30  # of a histogram, unless another number is asked for

_numbers = itertools.count()
_open: "weakref.WeakSet[Any]" = weakref.WeakSet()


def import_writer(module: str) -> Any:
    """Import a module of tensorboardX, which writes event files."""
    try:
        return importlib.import_module(f"tensorboardX.{module}")
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"TensorBoard event files need tensorboardX, which cannot be imported ({error}). Run: "
            "pip install replicant-jax[tensorboard]."
        ) from error


class EventFile:
    """One event file of a run. It needs no thread: events are written as they are added, and reach the disk within seconds.

    Args:
        folder: Where the file is made. If it is a URL, the file is in a temporary folder, and a copy of it at the URL is renewed
            twice a minute and when the file is closed. The end of the program closes it. What goes wrong is a warning then.
        name_suffix: The end of its name.
    """

    def __init__(self, folder: Path | str, name_suffix: str = ""):
        self._event = import_writer("proto.event_pb2").Event
        own = Path(tempfile.mkdtemp(prefix="replicant-log-")) if isinstance(folder, str) else folder
        self._folder = own
        try:
            own.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WriteError(f"the folder {str(own)!r} of event files cannot be made: {error.strerror}. Name another.") from error
        # Without the suffix, two fits that begin in the same second would overwrite each other's file. It is random because
        # otherwise somebody could prepare a link of that name, and its target would be overwritten.
        suffix = f".{os.getpid()}.{next(_numbers):06}.{secrets.token_hex(8)}.v2{name_suffix}"
        self._writer = import_writer("event_file_writer").EventsWriter(str(own / "events"), suffix)
        self._copy: StoreCopy | None = None
        if isinstance(folder, str):
            (file,) = own.iterdir()
            self._copy = StoreCopy(file, f"{folder.rstrip('/')}/{file.name}")
            self._finish = weakref.finalize(self, _finish, self._writer, self._copy)  # also if nobody closes it
        self._flushed = time.monotonic()
        _open.add(self._writer)

    def scalar(self, tag: str, value: float, step: int, description: str = "") -> None:
        """Add a point to a curve."""
        self._add(tag, step, "scalars", {"dtype": _FLOAT, "float_val": [value]}, shape=(), description=description)

    def histogram(self, tag: str, values: np.ndarray, step: int, num_buckets: int = NUM_BUCKETS, description: str = "") -> None:
        """Add the distribution of finite numbers."""
        rows = buckets(values, num_buckets)
        tensor = {"dtype": _DOUBLE, "double_val": rows.ravel().tolist()}
        self._add(tag, step, "histograms", tensor, shape=rows.shape, description=description)

    def images(self, tag: str, images: Sequence[np.ndarray] | np.ndarray, step: int, description: str = "") -> None:
        """Add pictures of equal size, uint8[height, width, channels]."""
        height, width = np.shape(images)[1:3]
        strings = [str(width).encode(), str(height).encode(), *map(png, images)]
        self._add(tag, step, "images", {"dtype": _STRING, "string_val": strings}, shape=(len(strings),), description=description)

    def text(self, tag: str, markdown: str | Sequence[str], step: int, shape: tuple[int, ...] = (), description: str = "") -> None:
        """Add a text in Markdown, or a table of them with this shape."""
        texts = [markdown] if isinstance(markdown, str) else markdown
        tensor = {"dtype": _STRING, "string_val": [text.encode() for text in texts]}
        self._add(tag, step, "text", tensor, shape=shape, description=description)

    def keras_graph(self, tag: str, config: dict[str, Any], step: int) -> None:
        """Add a Keras model's config, which TensorBoard draws as a graph of layers."""
        tensor = {"dtype": _STRING, "string_val": [json.dumps(config).encode()]}
        self._add(tag, step, "graph_keras_model", tensor, shape=(), content=b"1")

    def flush(self) -> None:
        """Write everything so far to the disk."""
        self._flushed = time.monotonic()
        try:
            self._writer.flush()
        except OSError as error:
            self._stop(error)
        if self._copy is not None:
            self._copy.update()

    def close(self) -> None:
        """Write everything to the disk, and close the file."""
        _open.discard(self._writer)
        if self._copy is None:
            try:
                self._writer.close()
            except OSError as error:
                self._stop(error)
        else:
            self._finish()

    def _add(
        self,
        tag: str,
        step: int,
        plugin: str,
        tensor: dict[str, Any],
        *,
        shape: tuple[int, ...],
        content: bytes = b"",
        description: str = "",
    ) -> None:
        if self._copy is not None and self._copy.is_over:
            return
        event = self._event(wall_time=time.time(), step=step)
        metadata = {"plugin_data": {"plugin_name": plugin, "content": content}, "summary_description": description}
        value = event.summary.value.add(tag=tag, metadata=metadata)
        value.tensor.MergeFrom(type(value.tensor)(tensor_shape={"dim": [{"size": size} for size in shape]}, **tensor))
        try:
            self._writer.write_event(event)
        except OSError as error:
            self._stop(error)
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self.flush()

    def _stop(self, error: OSError) -> None:
        """Add nothing any more, if a log at a URL cannot be written to its file. A local log must not miss events."""
        if self._copy is None:
            raise WriteError(
                f"the event file {str(self._folder)!r} cannot be written: {error.strerror}. Events are missing from here on. Make "
                "room there, or name another folder."
            ) from error
        self._copy.stop(error)


def _flush_all() -> None:
    for writer in list(_open):
        with contextlib.suppress(OSError):  # the next flush or close tells
            writer.flush()


os.register_at_fork(before=_flush_all)  # otherwise a child that ends would write what waits in memory a second time


def _finish(writer: Any, copy: StoreCopy) -> None:
    if not copy.is_own:
        return
    _open.discard(writer)
    try:
        writer.close()
    except OSError as error:
        copy.stop(error)
    copy.finish()
    with contextlib.suppress(OSError):  # the file is still there if the store did not take it
        copy.file.parent.rmdir()


def buckets(values: np.ndarray, num_buckets: int = NUM_BUCKETS) -> np.ndarray:
    """Return float64[num_buckets, 3] of left edge, right edge and count, with the buckets of TensorFlow's histograms.

    >>> buckets(np.array([0.0, 1.0, 30.0]))[[0, 1, 29]].tolist()
    [[0.0, 1.0, 1.0], [1.0, 2.0, 1.0], [29.0, 30.0, 1.0]]
    """
    values = np.asarray(values, np.float64).ravel()
    rows = np.zeros((num_buckets, 3))
    if not values.size or not num_buckets:
        return rows
    low, high = values.min(), values.max()
    if low == high:  # all values go to the last bucket, which has no width
        rows[:, :2] = low
        rows[-1, 2] = values.size
        return rows
    rows[:, 2], edges = np.histogram(values, num_buckets, (low, high))
    rows[:, 0], rows[:, 1] = edges[:-1], edges[1:]
    return rows
