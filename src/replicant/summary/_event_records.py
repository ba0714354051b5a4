"""The records of an event file: their lengths, their bytes, and a checksum of each."""

import os
import struct
from collections.abc import Callable, Iterator
from typing import Any

from .._crc32c import crc32c, masked
from ..errors import SummaryError

_LENGTH, _CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")
_HEAD = _LENGTH.size + _CHECKSUM.size


def records(path: str, file: Any, cut_off: Callable[[str], None]) -> Iterator[tuple[int, bytes]]:
    """Yield where each record begins, and its bytes.

    Args:
        path: The file, for messages.
        file: The open file.
        cut_off: Is told if the last record lacks its end. It may raise an error.

    Raises:
        SummaryError: If the file is damaged. Nothing is read that it only claims to have.
    """
    size = file.seek(0, os.SEEK_END)
    at = file.seek(0)
    while at < size:
        left = size - at
        head = file.read(_HEAD)
        if len(head) == _HEAD:
            _require_checksum(path, at, "length", head[: _LENGTH.size], head[_LENGTH.size :])
        needed = _HEAD + _LENGTH.unpack_from(head)[0] + _CHECKSUM.size if len(head) == _HEAD else _HEAD
        if needed > left:
            least = "at least " if len(head) < _HEAD else ""
            cut_off(f"{path} is cut off: the record at byte {at} needs {least}{needed} bytes, but only {left} follow.")
            return
        body = file.read(needed - _HEAD)
        data = body[: -_CHECKSUM.size]
        _require_checksum(path, at, "data", data, body[len(data) :])
        yield at, data
        at += needed


def _require_checksum(path: str, at: int, part: str, data: bytes, stored: bytes) -> None:
    found, (expected,) = masked(crc32c(data)), _CHECKSUM.unpack(stored)
    if found != expected:
        raise SummaryError(
            f"{path} is damaged in the record at byte {at}: the checksum of its {part} should be 0x{expected:08x}, but the bytes "
            f"give 0x{found:08x}. Is it an event file of TensorBoard?"
        )
