"""What byte strings encode: arrays, as they are or compressed, and pictures."""

import contextlib
import math
import zlib
from typing import Any

import numpy as np

from ....errors import ConfigurationError
from ...graph._blocks import Boxed, Column
from .._fast_jpeg import check_simplejpeg, is_jpeg, jpeg_pixels, simplejpeg
from .._limits import MAX_RECORD_BYTES
from .._pictures import import_pillow, picture_of
from ._columns import WrongExample
from ._features import METHOD, Feature, Picture, Steps


def decoded(feature: Feature | Steps, column: Column) -> Column:
    """Return the values of a feature whose column has byte strings; another column stays as it is.

    Raises:
        WrongExample: If one is damaged.
        ConfigurationError: If it is a picture, and Pillow is not installed.
    """
    if isinstance(feature, Steps) or not feature.encoding:
        return column
    made: list[Any] = []
    for row, value in enumerate(column.refs.tolist()):
        try:
            made.append(_in_sequences(feature, value, len(feature.lengths)))
        except ConfigurationError:
            raise
        except ValueError as error:
            raise WrongExample(row, feature.path, f"cannot be decoded: {error}") from error
    return Boxed.of(made)


def _in_sequences(feature: Feature, value: Any, depth: int) -> Any:
    """The arrays of one example: one, those of a sequence as one, or lists of them."""
    if not depth:
        return _array(feature, value)
    items = [_in_sequences(feature, each, depth - 1) for each in value]
    if len(feature.lengths) > 1:
        return items
    if not items:
        return np.empty((0, *(size or 0 for size in feature.item)), feature.dtype)
    if shapes := {item.shape for item in items} - {items[0].shape}:
        raise ValueError(f"its items have the shapes {items[0].shape} and {shapes.pop()}, which do not fit into one array")
    return np.stack(items)


def _array(feature: Feature, value: Any) -> np.ndarray:
    """One item."""
    shape = feature.item
    if feature.has_own_shape:
        value, shape = value
        if len(shape) != len(feature.item) or any(a not in (None, b) for a, b in zip(feature.item, shape, strict=True)):
            raise ValueError(f"its shape {shape} does not fit {feature.item}")
    if isinstance(feature, Picture):
        return _picture(feature, value)
    return _shaped(feature, value, shape)


def _shaped(feature: Feature, value: bytes, shape: tuple[int | None, ...]) -> np.ndarray:
    """An array of bytes."""
    if min((size for size in shape if size is not None), default=0) < 0:
        raise ValueError(f"its shape {shape} has a size below 0")
    known = math.prod(size for size in shape if size is not None) * feature.dtype.itemsize
    data = value if feature.encoding == "bytes" else _inflated(value)
    if (len(data) != known) if None not in shape else (len(data) % known if known else len(data)):
        raise ValueError(f"it has {len(data)} bytes, and {feature.dtype} of shape {shape} needs {known}")
    free = len(data) // known if known else 0
    values = np.frombuffer(data, feature.dtype.newbyteorder("<")).astype(feature.dtype)  # a copy, which can be written to
    return values.reshape([free if size is None else size for size in shape])[()]


def _inflated(data: bytes) -> bytes:
    """The decompressed bytes."""
    expand = zlib.decompressobj()
    try:
        found = expand.decompress(data, MAX_RECORD_BYTES + 1)
    except zlib.error as error:
        raise ValueError(f"it is not compressed by zlib: {error}") from error
    if len(found) > MAX_RECORD_BYTES:
        raise ValueError(f"it has more than {MAX_RECORD_BYTES:,} bytes once decompressed")
    if not expand.eof:
        raise ValueError("its compressed bytes are cut off")
    return found


def _picture(feature: Picture, data: bytes) -> np.ndarray:
    """A picture. One channel of floats is stored as four of bytes."""
    channels = feature.item[2] or 0
    if feature.dtype == np.float32:
        found = picture_of(import_pillow(METHOD), data, 4, np.dtype(np.uint8))
        found = np.ascontiguousarray(found).view("<f4").astype(np.float32)
    elif feature.dtype == np.uint8 and is_jpeg(data):
        found = _jpeg(feature, data, channels)
    else:
        found = picture_of(import_pillow(METHOD), data, channels, feature.dtype)
    if any(size not in (None, its) for size, its in zip(feature.item, found.shape, strict=True)):
        raise ValueError(f"the picture has the shape {found.shape}, and {feature.item} is expected")
    return found


def _jpeg(feature: Picture, data: bytes, channels: int) -> np.ndarray:
    """A JPEG picture. Pillow has the last word on what simplejpeg does not read."""
    if feature.fast_dct:
        check_simplejpeg(METHOD)
        return jpeg_pixels(data, channels, fast_dct=True)
    if simplejpeg() is not None:
        with contextlib.suppress(ValueError):
            return jpeg_pixels(data, channels, fast_dct=False)
    return picture_of(import_pillow(METHOD), data, channels, feature.dtype)
