"""`timeseries_dataset_from_array`."""

from typing import Any

import numpy as np

from ...errors import ArgumentError, ArgumentTypeError
from ...input._arguments import whole
from ...input._dataset import AUTOTUNE, Dataset
from ...input.graph._structure import as_leaf
from ._folders import check_format

_NAME = "timeseries_dataset_from_array"


def timeseries_dataset_from_array(  # noqa: PLR0917 - the arguments are those of Keras
    data: Any,
    targets: Any,
    sequence_length: int,
    sequence_stride: int = 1,
    sampling_rate: int = 1,
    batch_size: int | None = 128,
    shuffle: bool = False,
    seed: int | None = None,
    start_index: int | None = None,
    end_index: int | None = None,
    format: str = "tf",  # noqa: A002 - Keras's name
) -> Dataset:
    """Return windows of a time series, as `keras.utils.timeseries_dataset_from_array` does. Nothing is copied in advance.

    Window i holds the rows ``i * sequence_stride + j * sampling_rate`` of the data, for j from 0 to ``sequence_length - 1``,
    counted from ``start_index``. Its target is row ``i * sequence_stride`` of the targets, counted in the same way.

    Args:
        data: An array with one row per time.
        targets: The targets, one row per time; None means windows without targets.
        sequence_length: The number of rows in a window.
        sequence_stride: The number of rows from the beginning of one window to that of the next.
        sampling_rate: The number of rows from one row of a window to the next.
        batch_size: The number of windows in a batch; None makes no batches.
        shuffle: Whether to shuffle all windows, anew in each pass.
        seed: A seed for the order.
        start_index: The first row to use.
        end_index: The row before which to stop.
        format: Must be "tf".

    Raises:
        ArgumentError: If an argument breaks a rule.
        ArgumentTypeError: If an argument has the wrong type.

    >>> list(timeseries_dataset_from_array([0, 1, 2, 3, 4], [0, 10, 20], sequence_length=3, batch_size=2))
    [(array([[0, 1, 2],
           [1, 2, 3]], dtype=int32), array([ 0, 10], dtype=int32)), (array([[2, 3, 4]], dtype=int32), array([20], dtype=int32))]
    """
    rows = _rows("data", data)
    length = whole(_NAME, "sequence_length", sequence_length, 1)
    stride = _below("sequence_stride", sequence_stride, 1, len(rows))
    rate = _below("sampling_rate", sampling_rate, 1, len(rows))
    start = 0 if start_index is None else _below("start_index", start_index, 0, len(rows))
    stop = len(rows) if end_index is None else _below("end_index", end_index, 0, len(rows))
    if start and end_index is not None and stop and stop <= start:
        raise ArgumentError(f"{_NAME}: end_index must be higher than start_index. Received: {end_index} and {start_index}.")
    if batch_size is not None:
        whole(_NAME, "batch_size", batch_size, 1)
    check_format(_NAME, format)
    windows = _windows(rows[start:stop], length, rate)
    made: Any = windows[::stride]
    if targets is not None:
        its = _rows("targets", targets)
        windows = windows[: len(its)]
        its = its[start:stop]
        if len(its) < len(windows):
            raise ArgumentError(
                f"{_NAME}: targets must have a row for each of the {len(windows)} windows, from start_index on. "
                f"There are {len(its)}."
            )
        made = (windows[::stride], its[: len(windows) : stride])
    dataset = Dataset.from_tensor_slices(made)
    if shuffle:
        dataset = dataset.shuffle(max(1, len(dataset)), seed)
    return (dataset if batch_size is None else dataset.batch(batch_size)).prefetch(AUTOTUNE)


def _rows(name: str, value: Any) -> np.ndarray:
    """The value as an array with rows."""
    array = np.asarray(as_leaf(value, lambda: f"{_NAME}: {name}"))
    if not array.ndim:
        raise ArgumentTypeError(f"{_NAME}: {name} must be an array with one row per time. Received: {value!r}.")
    return array


def _below(name: str, value: Any, least: int, length: int) -> int:
    number = whole(_NAME, name, value, least)
    if number >= length:
        raise ArgumentError(f"{_NAME}: {name} must be lower than the number of rows, {length}. Received: {number}.")
    return number


def _windows(rows: np.ndarray, length: int, rate: int) -> np.ndarray:
    """All windows, as a view."""
    span = (length - 1) * rate + 1
    if span > len(rows):
        return np.empty((0, length, *rows.shape[1:]), rows.dtype)
    view = np.lib.stride_tricks.sliding_window_view(rows, span, axis=0)
    return np.moveaxis(view, -1, 1)[:, ::rate]
