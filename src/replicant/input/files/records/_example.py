"""`tf.train.Example` messages, written and read byte by byte: no protobuf library is needed for three nested lists.

Wire format: a message is a run of fields; a field is a tag (number * 8 + wire type) and a value. Here::

    Example   1: Features
    Features  1: entry, repeated
    entry     1: key                   2: Feature
    Feature   1: list of byte strings  2: list of floats  3: list of int64
    list      1: value, repeated; numbers mostly packed into one field
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ....errors import ArgumentTypeError, ElementError
from ...graph._structure import STRING, texts

BYTES, FLOAT, INT64 = 1, 2, 3
DTYPES = {BYTES: STRING, FLOAT: np.dtype(np.float32), INT64: np.dtype(np.int64)}

_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_FLOAT_SIZE = 4
_ALL_BITS = 2**64 - 1
_MANY_VARINTS = 64  # bytes from which on NumPy is faster than a loop

# Kind of list, and the values: byte strings, or an array.
Values = tuple[int, Any]


class WireError(ElementError):
    """The bytes are not such a message."""


def decode_example(data: bytes) -> dict[str, Values]:
    """Return the features of a serialized Example by name.

    Raises:
        WireError: If the bytes are not an Example.
    """
    features: dict[str, Values] = {}
    try:
        for number, _, start, stop in _fields(data, 0, len(data)):
            if number == 1:
                for entry, _, first, last in _fields(data, start, stop):
                    if entry == 1:
                        key, values = _entry(data, first, last)
                        features[key] = values
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise WireError("the bytes end in the middle of a field, or are not an Example") from error
    return features


def _entry(data: bytes, start: int, stop: int) -> tuple[str, Values]:
    key, values = "", (0, ())
    for number, _, first, last in _fields(data, start, stop):
        if number == 1:
            key = data[first:last].decode()
        elif number == 2:
            for kind, _, begin, end in _fields(data, first, last):
                if kind in DTYPES:
                    values = (kind, list_values(data, kind, begin, end))
    return key, values


def list_values(data: bytes, kind: int, start: int, stop: int) -> Any:
    """Return the values of one list: byte strings, or an array."""
    pieces = [(wire, begin, end) for number, wire, begin, end in _fields(data, start, stop) if number == 1]
    if kind == BYTES:
        return [data[begin:end] for _, begin, end in pieces]
    packed = b"".join([data[begin:end] for _, begin, end in pieces]) if len(pieces) != 1 else data[pieces[0][1] : pieces[0][2]]
    return floats(packed) if kind == FLOAT else varints(packed)


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type, and start and end of the value of each field."""
    while at < end:
        tag, at = varint(data, at)
        wire = tag & 7
        if wire == _SIZED:
            size, at = varint(data, at)
            stop = at + size
        elif wire == _VARINT:
            stop = varint(data, at)[1]
        elif wire in _FIXED_SIZES:
            stop = at + _FIXED_SIZES[wire]
        else:
            raise WireError(f"a field at byte {at} has the unknown wire type {wire}")
        if stop > end:
            raise WireError(f"a field needs {stop - end} more bytes than there are")
        yield tag >> 3, wire, at, stop
        at = stop


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number encoded at `at` (seven bits per byte, low bits first), and the place after it."""
    value, shift = data[at], 0
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    while True:
        byte = data[at]
        at += 1
        shift += 7
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at


def floats(packed: bytes) -> np.ndarray:
    """Return all numbers of a packed list."""
    if len(packed) % _FLOAT_SIZE:
        raise WireError(f"a list of floats has {len(packed)} bytes, which is not a multiple of {_FLOAT_SIZE}")
    return np.frombuffer(packed, "<f4")


def varints(packed: bytes) -> np.ndarray:
    """Return all numbers of a packed list, as int64."""
    if packed and packed[-1] >= 0x80:
        raise WireError("a number is cut off")
    if len(packed) < _MANY_VARINTS:
        values, at = [], 0
        while at < len(packed):
            value, at = varint(packed, at)
            values.append(value & _ALL_BITS)
        return np.array(values, np.uint64).view(np.int64)
    data = np.frombuffer(packed, np.uint8)
    ends = np.flatnonzero(data < 0x80)
    if len(ends) == len(data):
        return data.astype(np.int64)
    begins = np.append(0, ends[:-1] + 1)
    places = np.arange(len(data)) - np.repeat(begins, ends - begins + 1)
    parts = (data & 0x7F).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.add.reduceat(parts, begins).view(np.int64)


def encode_example(features: Mapping[str, Any]) -> bytes:
    r"""Serialize a `tf.train.Example`, which can be written as a record and read with `parse_example`.

    Args:
        features: A mapping from names to values or arrays, which are flattened: bytes and str (as UTF-8), floats (stored as
            float32), integers and bools (stored as int64).

    Raises:
        ArgumentTypeError: If a value is none of these.

    >>> encode_example({"label": 7})
    b'\n\x10\n\x0e\n\x05label\x12\x05\x1a\x03\n\x01\x07'
    """
    entries = [_sized(1, _sized(1, name.encode()) + _sized(2, _feature(name, value))) for name, value in features.items()]
    return _sized(1, b"".join(entries))


def _feature(name: str, value: Any) -> bytes:
    array = np.asarray(value, dtype=object if isinstance(value, str | bytes) else None)
    array = (texts(value, array) if array.dtype.kind in "SU" else array).ravel()
    if array.size == 0 and not hasattr(value, "dtype"):
        return b""  # it has no type
    if array.dtype.kind in "SUO":
        strings = [text.encode() if isinstance(text, str) else text for text in array.tolist()]
        if all(isinstance(string, bytes) for string in strings):
            return _sized(BYTES, b"".join(_sized(1, string) for string in strings))
    if array.dtype.kind == "f":
        return _sized(FLOAT, _sized(1, array.astype("<f4").tobytes()))
    if array.dtype.kind in "iub":
        return _sized(INT64, _sized(1, b"".join(_as_varint(number) for number in array.tolist())))
    raise ArgumentTypeError(f"encode_example: feature {name!r} must hold bytes, strings, floats or integers. Received: {value!r}.")


def _sized(number: int, data: bytes) -> bytes:
    return _as_varint(number << 3 | _SIZED) + _as_varint(len(data)) + data


def _as_varint(value: int) -> bytes:
    value &= _ALL_BITS
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
