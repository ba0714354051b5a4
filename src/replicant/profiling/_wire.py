"""Reads the fields of a protocol buffer message, of which only few are needed and whose classes are in no package that is small."""

from collections.abc import Iterator

from ..errors import ProfileError

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number and the value of each field: an integer, or the bytes of a string, of a message or of a number.

    Raises:
        ProfileError: If it is not a message.

    >>> list(fields(memoryview(bytes([8, 150, 1]))))
    [(1, 150)]
    """
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        kind = key & 7
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, position = _varint(message, position)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            size = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise ProfileError(f"A profile of JAX has a field of the unknown wire type {kind} at byte {position}. Is it damaged?")
        if position + size > len(message):
            raise ProfileError(f"A profile of JAX is cut off: a field of {size} bytes begins at byte {position} of {len(message)}.")
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


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(message) and shift < 70:
        byte = message[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
    raise ProfileError(f"A profile of JAX is cut off or damaged: a number has no end before byte {position} of {len(message)}.")
