"""Reads the fields of protocol buffer messages, of which only few are needed and whose classes are in no package that is small."""

from collections.abc import Iterator

import numpy as np

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_MOST_BITS = 70  # of a number of 64 bits, seven in a byte


class MessageError(ValueError):
    """The bytes are not such a message. Who reads them says of which file they are."""


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number and the value of each field: an integer, or the bytes of a string, of a message or of a number.

    Raises:
        MessageError: If it is not a message.

    >>> list(fields(memoryview(bytes([8, 150, 1]))))
    [(1, 150)]
    """
    position = 0
    while position < len(message):
        key, position = varint(message, position)
        kind = key & 7
        if kind == _VARINT:
            value, position = varint(message, position)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, position = varint(message, position)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            size = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise MessageError(f"a field has the unknown wire type {kind} at byte {position}")
        if position + size > len(message):
            raise MessageError(f"a field of {size} bytes begins at byte {position} of {len(message)}")
        yield key >> 3, message[position : position + size]
        position += size


def messages(message: memoryview, first: int, *rest: int) -> Iterator[memoryview]:
    """Yield the messages, strings or bytes at the end of a path of field numbers."""
    for number, value in fields(message):
        if number == first and isinstance(value, memoryview):
            yield from messages(value, *rest) if rest else [value]


def text(message: memoryview, number: int) -> str:
    """Return the string of a field; an empty one if there is none."""
    return next((bytes(value).decode(errors="replace") for value in messages(message, number)), "")


def varint(message: memoryview, position: int) -> tuple[int, int]:
    """Return the number that begins at a byte, seven bits in each and the low ones first, and the place after it.

    Raises:
        MessageError: If it has no end, or has more than 64 bits.
    """
    begin, value, shift = position, 0, 0
    while position < len(message) and shift < _MOST_BITS:
        byte = message[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            if value >> 64:
                raise MessageError(f"the number at byte {begin} has more than 64 bits")
            return value, position
    raise MessageError(f"a number has no end before byte {position} of {len(message)}")


def signed(value: int) -> int:
    """Return the number of 64 bits with a sign that a varint holds.

    >>> signed(5), signed(2**64 - 1)
    (5, -1)
    """
    return value - (1 << 64) if value >> 63 else value


def as_integer(value: int | memoryview) -> int:
    """Return the value of a field that must be an integer with a sign.

    Raises:
        MessageError: If it is something else.
    """
    if isinstance(value, memoryview):
        raise MessageError(f"a field has {len(value)} bytes in place of an integer")
    return signed(value)


def as_bytes(value: int | memoryview) -> memoryview:
    """Return the value of a field that must be a string, bytes or a message.

    Raises:
        MessageError: If it is something else.
    """
    if isinstance(value, int):
        raise MessageError(f"a field has the integer {value} in place of bytes")
    return value


def as_text(value: int | memoryview) -> str:
    """Return the value of a field that must be a string.

    Raises:
        MessageError: If it is something else, or not UTF-8.
    """
    raw = bytes(as_bytes(value))
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise MessageError(f"the string {raw[:60]!r} is not UTF-8") from error


def packed_integers(value: int | memoryview) -> np.ndarray:
    """Return the integers of one field, several packed into one or one alone, as an array of int64.

    Raises:
        MessageError: If one has no end, or more than 64 bits.

    >>> packed_integers(memoryview(bytes([1, 150, 1]))), packed_integers(2**64 - 1)
    (array([  1, 150]), array([-1]))
    """
    if isinstance(value, int):
        return np.array([value], np.uint64).view(np.int64)
    data = np.frombuffer(value, np.uint8)
    ends = np.flatnonzero(data < 128)
    starts = np.concatenate([[0], ends + 1])
    sizes = ends - starts[:-1] + 1
    if starts[-1] < len(data) or (sizes > 10).any() or (data[ends[sizes == 10]] > 1).any():
        raise MessageError("a packed integer has no end, or more than 64 bits")
    if not len(ends):
        return np.empty(0, np.int64)
    places = np.arange(len(data)) - np.repeat(starts[:-1], sizes)
    parts = (data & 127).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.bitwise_or.reduceat(parts, starts[:-1]).view(np.int64)
