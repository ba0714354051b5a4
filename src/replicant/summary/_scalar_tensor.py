"""TensorProto messages that hold one number."""

import math

import ml_dtypes
import numpy as np

from .._protobuf import MessageError, as_bytes, as_integer, fields, packed_integers

# The numbers of dtypes, and the field in which a message may list its values instead of their bytes.
_DTYPES: dict[int, tuple[np.dtype, int]] = {
    1: (np.dtype("<f4"), 5),
    2: (np.dtype("<f8"), 6),
    3: (np.dtype("<i4"), 7),
    4: (np.dtype("u1"), 7),
    5: (np.dtype("<i2"), 7),
    6: (np.dtype("i1"), 7),
    9: (np.dtype("<i8"), 10),
    10: (np.dtype("?"), 11),
    14: (np.dtype(ml_dtypes.bfloat16), 13),
    17: (np.dtype("<u2"), 7),
    19: (np.dtype("<f2"), 13),
    22: (np.dtype("<u4"), 16),
    23: (np.dtype("<u8"), 17),
}
_BITS = 13  # the field with the bits of floats of two bytes, as integers
_FLOATS = (5, 6)


def scalar_of(message: memoryview) -> float:
    """Return the number.

    Raises:
        MessageError: If it is not a number, or several.

    >>> scalar_of(memoryview(bytes([8, 1, 18, 0, 45, 0, 0, 192, 63])))
    1.5
    """
    number, sizes, content, listed = 0, list[int](), None, dict[int, list[int | memoryview]]()
    for field, value in fields(message):
        if field == 1:
            number = as_integer(value)
        elif field == 2:
            sizes += [_size(as_bytes(each)) for inner, each in fields(as_bytes(value)) if inner == 2]
        elif field == 4:
            content = bytes(as_bytes(value))
        else:
            listed.setdefault(field, []).append(value)
    if number not in _DTYPES:
        raise MessageError(f"a scalar has the dtype number {number}, which is not a number")
    if math.prod(sizes) != 1:
        raise MessageError(f"a scalar has the shape {tuple(sizes)}")
    dtype, field = _DTYPES[number]
    values = (
        np.frombuffer(content, dtype)
        if content and not len(content) % dtype.itemsize
        else _listed(listed.get(field, []), field, dtype)
    )
    if len(values) > 1 or (content and len(content) != dtype.itemsize):
        raise MessageError(f"a scalar has {len(content or b'') or len(values)} values or bytes in place of one {dtype}")
    return float(values[0]) if len(values) else 0.0  # a message leaves zeros out


def _listed(pieces: list[int | memoryview], field: int, dtype: np.dtype) -> np.ndarray:
    if field in _FLOATS:
        data = b"".join(bytes(as_bytes(piece)) for piece in pieces)
        if len(data) % dtype.itemsize:
            raise MessageError(f"a list of {dtype} has {len(data)} bytes")
        return np.frombuffer(data, dtype)
    numbers = np.array([each for piece in pieces for each in packed_integers(piece)], np.int64)
    return numbers.astype(np.uint16).view(dtype) if field == _BITS else numbers.astype(dtype)


def _size(dimension: memoryview) -> int:
    return next((as_integer(value) for number, value in fields(dimension) if number == 1), 0)
