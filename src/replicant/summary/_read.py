"""Reads scalars out of event files, whoever has written them: TensorFlow 1 and 2, torch, tensorboardX or Replicant."""

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .._protobuf import MessageError, as_bytes, as_integer, as_text, fields
from .._whole_file import open_regular
from ..errors import ArgumentError, SummaryError
from ..storage._path import RemotePath
from ..storage._urls import folder_at
from ._event_records import records
from ._scalar_tensor import scalar_of

_MARK = "tfevents"  # in the names of event files
_VERSION = "brain.Event:"  # what the first event of a file says
_PLUGIN = "scalars"


class ScalarEvent(NamedTuple):
    """A point of a curve, as TensorBoard's ``EventAccumulator.Scalars`` has it.

    Attributes:
        wall_time: When it was written, in seconds since 1970.
        step: The step.
        value: The value, which may be NaN or infinite.
    """

    wall_time: float
    step: int
    value: float


def read_scalars(logdir: str | os.PathLike[str], *, may_be_cut_off: bool = False) -> dict[str, dict[str, list[ScalarEvent]]]:
    """Read all scalars of the event files in a folder and below it.

    It reads what ``tf.summary.scalar`` of TensorFlow 2 and 1, torch, tensorboardX and `replicant.summary` have written. Other
    summaries, such as histograms and pictures, are left out. TensorFlow and TensorBoard need not be installed.

    Semantics: TensorBoard's runs and tags. A run is a folder with event files, named by its path below `logdir`, and ``"."`` for
    `logdir` itself. The points of a tag are in the order in which they were written, file after file in the order of their names. A
    program that was started again from an earlier step has written some steps twice.

    Args:
        logdir: The folder, or one event file; a path or a URL.
        may_be_cut_off: Whether the last record of a file may lack its end, as while a program writes it or after it was killed.

    Returns:
        The points of each tag of each run.

    Raises:
        ArgumentError: If it is the URL of no folder.
        SummaryError: If there are no event files, or if one is damaged.

    >>> import replicant, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = replicant.summary.create_file_writer(f"{folder}/train")
    ...     with writer.as_default():
    ...         for step in range(3):
    ...             _ = replicant.summary.scalar("loss", 1 / (1 + step), step=step)
    ...     writer.close()
    ...     curves = replicant.summary.read_scalars(folder)
    >>> [(point.step, point.value) for point in curves["train"]["loss"]][:2]
    [(0, 1.0), (1, 0.5)]
    """
    return read(logdir, _pass if may_be_cut_off else _refuse)


def read(logdir: str | os.PathLike[str], cut_off: Callable[[str], None]) -> dict[str, dict[str, list[ScalarEvent]]]:
    """Do what `read_scalars` does. `cut_off` is told of each file whose last record lacks its end."""
    place = folder_at("read_scalars: logdir", logdir, ArgumentError)
    root = RemotePath(place) if isinstance(place, str) else place
    found: dict[str, dict[str, list[ScalarEvent]]] = {}
    for run, file in _files(root):
        tags = found.setdefault(run, {})
        for tag, point in _scalars(file, cut_off):
            tags.setdefault(tag, []).append(point)
    if not found:
        raise SummaryError(
            f"{str(logdir)!r} {'has no event files' if root.exists() else 'does not exist'}. Name a folder with files whose names "
            f"have {_MARK!r} in them, or one above it."
        )
    return found


def _pass(_: str) -> None:
    """Take what is there."""


def _refuse(message: str) -> None:
    raise SummaryError(f"{message} If it is still being written, or its program was killed, pass may_be_cut_off=True.")


def _files(root: Path | RemotePath) -> Iterator[tuple[str, Path | RemotePath]]:
    """Yield the event files in the order of their names, with their runs."""
    if isinstance(root, RemotePath):
        yield from _remote_files(root, ".")
    elif root.is_dir():
        for file in sorted(each for each in root.rglob("*") if _MARK in each.name and each.is_file()):
            yield str(file.parent.relative_to(root)), file
    elif root.exists():
        yield ".", root


def _remote_files(folder: RemotePath, run: str) -> Iterator[tuple[str, RemotePath]]:
    entries = sorted(folder.entries(), key=lambda each: each.name)
    for entry in entries:
        if _MARK in entry.name and not entry.is_folder:
            yield run, folder / entry.name
    for entry in entries:
        if entry.is_folder:
            yield from _remote_files(folder / entry.name, entry.name if run == "." else f"{run}/{entry.name}")


def _scalars(place: Path | RemotePath, cut_off: Callable[[str], None]) -> Iterator[tuple[str, ScalarEvent]]:
    plugins: dict[str, str] = {}  # of each tag: TensorBoard needs to be told only once
    try:
        with place.open_to_read() if isinstance(place, RemotePath) else open_regular(place) as file:
            for at, data in records(str(place), file, cut_off):
                try:
                    yield from _points(str(place), at, memoryview(data), plugins)
                except MessageError as error:
                    raise SummaryError(f"{place} is damaged in the record at byte {at}: {error}.") from error
    except OSError as error:
        raise SummaryError(f"{place} cannot be read: {error}.") from error


def _points(path: str, at: int, event: memoryview, plugins: dict[str, str]) -> Iterator[tuple[str, ScalarEvent]]:
    """The scalars of one event."""
    wall_time, step, summaries, version = 0.0, 0, list[memoryview](), None
    for number, value in fields(event):
        if number == 1:
            (wall_time,) = _unpacked("<d", value)
        elif number == 2:
            step = as_integer(value)
        elif number == 3:
            version = as_text(value)
        elif number == 5:
            summaries.append(as_bytes(value))
    if at == 0 and not (version or "").startswith(_VERSION):
        raise SummaryError(f"{path} is not a TensorBoard event file: it does not begin with an event that says {_VERSION!r}.")
    for summary in summaries:
        for number, value in fields(summary):
            if number == 1 and (found := _value(as_bytes(value), plugins)) is not None:
                yield found[0], ScalarEvent(wall_time, step, found[1])


def _value(message: memoryview, plugins: dict[str, str]) -> tuple[str, float] | None:
    """The tag and the number of a value of a summary; None if it is not a scalar."""
    tag, simple, tensor, plugin = "", None, None, None
    for number, value in fields(message):
        if number == 1:
            tag = as_text(value)
        elif number == 2:
            (simple,) = _unpacked("<f", value)
        elif number == 8:
            tensor = as_bytes(value)
        elif number == 9:
            plugin = _plugin(as_bytes(value)) or plugin
    plugins.setdefault(tag, plugin or "")
    if simple is not None:
        return tag, float(simple)
    if tensor is not None and (plugin or plugins[tag]) == _PLUGIN:
        return tag, scalar_of(tensor)
    return None


def _plugin(metadata: memoryview) -> str:
    names = [
        as_text(name) for number, value in fields(metadata) if number == 1 for inner, name in fields(as_bytes(value)) if inner == 1
    ]
    return names[-1] if names else ""


def _unpacked(form: str, value: int | memoryview) -> tuple[Any, ...]:
    data = as_bytes(value)
    if len(data) != struct.calcsize(form):
        raise MessageError(f"a number has {len(data)} bytes")
    return struct.unpack(form, data)
