"""Writes a small checkpoint of TensorFlow 1: variables with names, in the format of `tf.train.Saver`."""

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from replicant._crc32c import crc32c, masked

_FLOAT32 = 1
_MAGIC = 0xDB4775248B80FB57


def write_bundle(prefix: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    """Write arrays of float32. The index has one block, and the data are in one file."""
    data, entries = b"", {b"": bytes([8, 1, 26, 2, 8, 1])}
    for name in sorted(arrays, key=str.encode):
        raw = np.ascontiguousarray(arrays[name], "<f4").tobytes()
        shape = b"".join(_sized(2, _number(1, size)) for size in arrays[name].shape)
        place = _number(4, len(data)) + _number(5, len(raw)) + b"\x35" + struct.pack("<I", masked(crc32c(raw)))
        entries[name.encode()] = _number(1, _FLOAT32) + _sized(2, shape) + place
        data += raw
    prefix.with_name(f"{prefix.name}.data-00000-of-00001").write_bytes(data)
    prefix.with_name(f"{prefix.name}.index").write_bytes(_table(entries))
    return prefix


def _table(entries: Mapping[bytes, bytes]) -> bytes:
    first = _block(entries)
    meta = _block({})
    end = len(first) + len(meta)
    index = _block({b"\xff": _varint(0) + _varint(len(first) - 5)})
    handles = _varint(len(first)) + _varint(len(meta) - 5) + _varint(end) + _varint(len(index) - 5)
    return first + meta + index + handles.ljust(40, b"\0") + struct.pack("<Q", _MAGIC)


def _block(entries: Mapping[bytes, bytes]) -> bytes:
    body = b"".join(_varint(0) + _varint(len(key)) + _varint(len(value)) + key + value for key, value in entries.items())
    raw = body + struct.pack("<II", 0, 1) + b"\0"
    return raw + struct.pack("<I", masked(crc32c(raw)))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _sized(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
