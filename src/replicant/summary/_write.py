"""``scalar``, ``text``, ``histogram`` and ``image``: what can be written."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError
from ..replicas._values import DistributedValues, Mirrored
from ..variables._known import value_of
from ._event_file import NUM_BUCKETS, EventFile
from ._writer import check_not_traced, current, should_record_summaries


def scalar(name: str, data: Any, step: Any = None, description: str | None = None) -> bool:
    """Write a number.

    Semantics of all functions here: those of tf.summary.

    Args:
        name: The name of the curve. Slashes make groups.
        data: A number, or an array or variable with one element.
        step: The position on the horizontal axis. By default, what ``as_default(step=...)`` or ``experimental.set_step`` has set.
        description: A text in Markdown, which TensorBoard shows with the curve.

    Returns:
        Whether it was written: False without a writer, or if the condition of `record_if` does not hold.

    Raises:
        ArgumentError: If there is no step, or if `data` has several elements.
        ArgumentTypeError: If `data` is not a number, or differs by replica.
        ContextError: In compiled code, and if the writer is closed.
    """
    name = name or "scalar_summary"

    def write(file: EventFile, at: int) -> None:
        value = _numbers("scalar", name, data)
        if value.shape != ():
            raise ArgumentError(f"summary.scalar takes one number for {name!r}; got the shape {value.shape}. Use histogram.")
        file.scalar(name, float(value), at, description or "")

    return _write("scalar", data, step, write)


def text(name: str, data: Any, step: Any = None, description: str | None = None) -> bool:
    """Write a text in Markdown, or a table of texts.

    Args:
        name: The name of the text.
        data: A string, or a nested list or array of strings.
        step: As for `scalar`.
        description: As for `scalar`.

    Returns:
        As for `scalar`.

    Raises:
        ArgumentError: If there is no step.
        ArgumentTypeError: If `data` is not a string.
        ContextError: As for `scalar`.
    """
    name = name or "text_summary"

    def write(file: EventFile, at: int) -> None:
        array = np.asarray(data, dtype=object)
        texts = [x.decode() if isinstance(x, bytes) else x for x in array.ravel().tolist()]
        if not all(isinstance(x, str) for x in texts):
            raise ArgumentTypeError(f"summary.text takes strings for {name!r}; got {data!r}. Write str(...), or use scalar.")
        file.text(name, texts, at, array.shape, description or "")

    return _write("text", data, step, write)


def histogram(name: str, data: Any, step: Any = None, buckets: int | None = None, description: str | None = None) -> bool:
    """Write the distribution of numbers.

    Args:
        name: The name of the histogram.
        data: An array or variable of any shape. NaN and infinity are left out.
        step: As for `scalar`.
        buckets: The number of buckets of equal width; 30 by default.
        description: As for `scalar`.

    Returns:
        As for `scalar`.

    Raises:
        ArgumentError: If there is no step, or if `buckets` is negative.
        ArgumentTypeError: If `data` is not an array of numbers, or differs by replica.
        ContextError: As for `scalar`.
    """
    name = name or "histogram_summary"
    num_buckets = NUM_BUCKETS if buckets is None else int(buckets)
    if num_buckets < 0:
        raise ArgumentError(f"summary.histogram needs buckets >= 0; got {buckets} for {name!r}.")

    def write(file: EventFile, at: int) -> None:
        values = _numbers("histogram", name, data)
        file.histogram(name, values[np.isfinite(values)], at, num_buckets, description or "")

    return _write("histogram", data, step, write)


def image(name: str, data: Any, step: Any = None, max_outputs: int = 3, description: str | None = None) -> bool:
    """Write pictures.

    Args:
        name: The name of the pictures.
        data: An array [pictures, height, width, channels]. There are 1 to 4 channels: gray or RGB, with or without transparency.
            Floats are from 0 to 1, and what is outside is cut off. Integers are uint8.
        step: As for `scalar`.
        max_outputs: The most pictures that are written.
        description: As for `scalar`.

    Returns:
        As for `scalar`.

    Raises:
        ArgumentError: If there is no step, if `data` has another shape, or if `max_outputs` is not positive.
        ArgumentTypeError: If `data` is neither float nor uint8, or differs by replica.
        ContextError: As for `scalar`.
    """
    name = name or "image_summary"

    def write(file: EventFile, at: int) -> None:
        pictures = _numbers("image", name, data)
        if pictures.ndim != 4 or not 1 <= pictures.shape[-1] <= 4 or max_outputs < 1:
            raise ArgumentError(
                f"summary.image takes an array [pictures, height, width, channels], with 1 to 4 channels, and max_outputs >= 1; "
                f"got the shape {pictures.shape} for {name!r} and max_outputs={max_outputs}. For one picture, pass picture[None]."
            )
        if np.issubdtype(pictures.dtype, np.floating):
            pictures = np.clip(np.nan_to_num(pictures) * 255.5, 0, 255).astype(np.uint8)  # as tf.image.convert_image_dtype
        elif pictures.dtype != np.uint8:
            raise ArgumentTypeError(
                f"summary.image takes floats from 0 to 1, or uint8; got {pictures.dtype} for {name!r}. Write data.astype('uint8')."
            )
        file.images(name, pictures[:max_outputs], at, description or "")

    return _write("image", data, step, write)


def _write(kind: str, data: Any, step: Any, write: Callable[[EventFile, int], None]) -> bool:
    check_not_traced(kind, data)
    writer = current().writer
    if writer is None or not should_record_summaries():
        return False
    step = current().step if step is None else step
    if step is None:
        raise ArgumentError(
            f"summary.{kind} needs a step. Pass step=..., or set one for all: writer.as_default(step=...), or "
            "summary.experimental.set_step(...)."
        )
    at = np.asarray(value_of(step))
    if at.shape != () or not np.issubdtype(at.dtype, np.integer):
        raise ArgumentTypeError(f"summary.{kind} takes an integer as its step; got {step!r}.")
    writer.write(lambda file: write(file, int(at)))
    return writer.records


def _numbers(kind: str, name: str, data: Any) -> np.ndarray:
    """Return the numbers of an array, a variable, or a value that all replicas share."""
    data = value_of(data)
    if isinstance(data, DistributedValues):
        if not isinstance(data, Mirrored):
            raise ArgumentTypeError(
                f"summary.{kind} was given a value for {name!r} that differs by replica. Reduce it first: "
                "strategy.reduce('SUM', value)."
            )
        data = data.values[0]
    array = np.asarray(data)
    if array.dtype.kind in "OSUMm":
        raise ArgumentTypeError(f"summary.{kind} takes numbers for {name!r}; got {data!r}. Use summary.text for strings.")
    return array.astype(np.float32) if array.dtype.kind == "V" else array  # bfloat16 and its like
