"""The keys of slices in a table, which are ordered as names and numbers are: Google's OrderedCode."""

import re

from ._entry import Slice

# By the number of bytes of a signed number, the bits that say so at its beginning.
_HEADERS = (0, 0x80, 0xC000, 0xE000, 0xF000, 0xF800, 0xFC00, 0xFE00, 0xFF00, 0xFF80, 0xFFC0)
_END = b"\x00\x01"  # of a name
_ESCAPED = {b"\x00": b"\x00\xff", b"\xff": b"\xff\x00"}

SLICE_PREFIX = b"\x00"  # no name begins so


def slice_key(name: bytes, own: Slice) -> bytes:
    """Return the key of a slice of the tensor with this name.

    >>> slice_key(b"a", ((0, 2), (0, -1))).hex()
    '0061000101028082807f'
    """
    escaped = re.sub(rb"[\x00\xff]", lambda found: _ESCAPED[found.group()], name)
    numbers = b"".join(_signed(start) + _signed(length) for start, length in own)
    return _unsigned(0) + escaped + _END + _unsigned(len(own)) + numbers


def _unsigned(value: int) -> bytes:
    size = (value.bit_length() + 7) // 8
    return bytes([size]) + value.to_bytes(size, "big")


def _signed(value: int) -> bytes:
    size = (~value if value < 0 else value).bit_length() // 7 + 1
    if size == 1:
        return bytes([0x80 ^ (value & 0xFF)])
    raw = bytearray((value & ((1 << 8 * size) - 1)).to_bytes(size, "big"))
    raw[0] ^= _HEADERS[size] >> 8
    raw[1] ^= _HEADERS[size] & 0xFF
    return bytes(raw)
