"""The values of a TensorProto: raw bytes, or numbers in a field for their dtype."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ...._protobuf import MessageError, as_bytes, fields, packed_integers
from ._dtypes import STRING

_CONTENT = 4  # the field with raw bytes, whatever the dtype
_FLOATS, _DOUBLES, _STRINGS, _FLOAT8 = (5, 9), (6, 12), 8, 18
_HALVES = 13
_INTEGERS = 7  # of at most 32 bits
_FIELDS = {1: 5, 2: 6, 7: 8, 8: 9, 9: 10, 10: 11, 14: 13, 18: 12, 19: 13, 22: 16, 23: 17, 24: 18, 25: 18, 26: 18, 27: 18, 28: 18}


def values_of(message: memoryview, number: int, dtype: np.dtype, count: int) -> np.ndarray:
    """Return the values of a TensorProto, in memory of their own.

    Args:
        message: The TensorProto.
        number: The number of its dtype.
        dtype: The dtype.
        count: How many values it should have.

    Raises:
        MessageError: If it is something else, or has another number of values.
    """
    field = _FIELDS.get(number, _INTEGERS)
    found = [value for each, value in fields(message) if each == field]
    content = [as_bytes(value) for each, value in fields(message) if each == _CONTENT]
    if content and number != STRING:
        values = _raw(content[-1], dtype)
    elif number == STRING:
        values = np.empty(len(found), object)
        values[:] = [bytes(as_bytes(value)) for value in found]
    else:
        values = np.concatenate([_DECODERS.get(field, _integers)(value, dtype) for value in found] or [np.empty(0, dtype)])
    if len(values) != count:
        raise MessageError(f"it has {len(values)} values in place of {count}")
    return values


def _raw(data: memoryview, dtype: np.dtype) -> np.ndarray:
    if len(data) % dtype.itemsize:
        raise MessageError(f"its {len(data)} bytes are not a whole number of values of dtype {dtype}")
    return np.frombuffer(data, np.uint8).copy().view(dtype)


def _little_endian(value: int | memoryview, dtype: np.dtype) -> np.ndarray:
    return _raw(as_bytes(value), dtype)


def _bits(value: int | memoryview, dtype: np.dtype) -> np.ndarray:
    return _in_range(packed_integers(value), np.dtype(np.uint16)).view(dtype)


def _integers(value: int | memoryview, dtype: np.dtype) -> np.ndarray:
    found = packed_integers(value)
    return found.view(np.uint64) if dtype == np.uint64 else _in_range(found, dtype)


def _in_range(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    found = values.astype(dtype)
    if (found.astype(np.int64) != values).any():
        raise MessageError(f"one of its values does not fit into dtype {dtype}")
    return found


_DECODERS: dict[int, Callable[[Any, np.dtype], np.ndarray]] = {
    **dict.fromkeys((*_FLOATS, *_DOUBLES, _FLOAT8), _little_endian),
    _HALVES: _bits,
}
