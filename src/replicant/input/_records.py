"""TFRecord files: records with checksums.

One record is ``length (8 bytes, little endian), checksum of these, data, checksum of the data``; checksums are CRC-32C,
rotated and shifted ("masked"), so that a file of checksums is no checksum of itself.
"""

import dataclasses
import os
import struct
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import google_crc32c
import numpy as np

from replicant.errors import ArgumentError, ArgumentTypeError, DatasetError

from ._files import FileFormat
from ._stream import checked_compression

_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_HEAD = _LENGTH.size + _CHECKSUM.size
_MASK_DELTA = 0xA282EAD8
_GZIP = 31


@dataclasses.dataclass(frozen=True)
class Records(FileFormat):
    """The format of TFRecordDataset."""

    @property
    def name(self) -> str:
        return "TFRecordDataset"

    def split(self, path: str, offset: int, data: bytes, last: bool) -> tuple[list[Any], list[int], DatasetError | None]:
        starts, stops, at = _outline(data)
        records = [data[start:stop] for start, stop in zip(starts, stops, strict=True)]
        ends = [stop + _CHECKSUM.size for stop in stops]
        wrong = _first_wrong(data, starts, stops, records)
        if wrong is not None:
            begin = starts[wrong] - _HEAD
            return records[:wrong], ends[:wrong], self._damaged(path, offset, data, begin)
        if at + _HEAD <= len(data) and _is_wrong(data, at, _LENGTH.size):  # or the reader would look for its end for ever
            return records, ends, self._damaged(path, offset, data, at)
        return records, ends, self._cut_off(path, offset + at, data[at:]) if last and at < len(data) else None

    def _damaged(self, path: str, offset: int, data: bytes, at: int) -> DatasetError:
        part, begin, size = "length", at, _LENGTH.size
        if not _is_wrong(data, begin, size):
            part, begin, size = "data", at + _HEAD, _LENGTH.unpack_from(data, at)[0]
        expected, found = _checksums(data, begin, size)
        hint = "" if self.compression else ' If the file is compressed, give compression_type="GZIP" or "ZLIB".'
        return DatasetError(
            f"{self.name}: {path!r} is damaged in the record at byte {offset + at}: the checksum of its {part} should be "
            f"0x{expected:08x}, but the bytes give 0x{found:08x}. Copy or write the file again.{hint}"
        )

    def _cut_off(self, path: str, at: int, rest: bytes) -> DatasetError:
        needed = _LENGTH.unpack_from(rest)[0] + _HEAD + _CHECKSUM.size if len(rest) >= _HEAD else _HEAD
        return DatasetError(
            f"{self.name}: {path!r} is cut off: the record at byte {at} needs {'at least ' if len(rest) < _HEAD else ''}{needed} "
            f"bytes, but only {len(rest)} follow. Copy or write the file again."
        )


def _outline(data: bytes) -> tuple[list[int], list[int], int]:
    """Where the data of each whole record begins and ends, and where the first that is not whole begins."""
    unpack, end = _LENGTH.unpack_from, len(data) - _CHECKSUM.size
    starts: list[int] = []
    stops: list[int] = []
    at = 0
    while at + _HEAD <= end:
        start = at + _HEAD
        stop = start + unpack(data, at)[0]
        if stop > end:
            break
        starts.append(start)
        stops.append(stop)
        at = stop + _CHECKSUM.size
    return starts, stops, at


def _first_wrong(data: bytes, starts: list[int], stops: list[int], records: list[bytes]) -> int | None:
    """The first record with a wrong checksum."""
    if not records:
        return None
    value, table = google_crc32c.value, np.frombuffer(data, np.uint8)
    heads = np.fromiter((value(data[start - _HEAD : start - _CHECKSUM.size]) for start in starts), np.uint32, len(records))
    bodies = np.fromiter(map(value, records), np.uint32, len(records))
    wrong = _masked(heads) != _words(table, np.array(starts) - _CHECKSUM.size)
    wrong |= _masked(bodies) != _words(table, np.array(stops))
    return int(np.argmax(wrong)) if wrong.any() else None


def _words(table: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """The little-endian 32-bit numbers at these places."""
    return table[begins[:, None] + np.arange(_CHECKSUM.size)].view("<u4")[:, 0]


def _masked(checksums: np.ndarray) -> np.ndarray:
    return (checksums >> np.uint32(15) | checksums << np.uint32(17)) + np.uint32(_MASK_DELTA)


def _checksum(data: bytes) -> int:
    """The masked checksum of some bytes."""
    value = google_crc32c.value(data)
    return ((value >> 15 | value << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _is_wrong(data: bytes, at: int, size: int) -> bool:
    expected, found = _checksums(data, at, size)
    return expected != found


def _checksums(data: bytes, at: int, size: int) -> tuple[int, int]:
    """The checksum that is written after these bytes, and theirs."""
    return _CHECKSUM.unpack_from(data, at + size)[0], _checksum(data[at : at + size])


class TFRecordWriter:
    """Writes a TFRecord file, as a context manager or until `close`.

    Args:
        path: of the file; an existing one is replaced.
        compression_type: None, "", "GZIP" or "ZLIB".

    Raises:
        ArgumentError: another compression.

    >>> import tempfile, pathlib
    >>> from replicant.data import TFRecordDataset
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "two.tfrecord"
    >>> with TFRecordWriter(path) as writer:
    ...     writer.write(b"first")
    ...     writer.write(b"second")
    >>> list(TFRecordDataset(path))
    [b'first', b'second']
    """

    def __init__(self, path: str | os.PathLike[str], compression_type: str | None = None) -> None:
        compression = checked_compression("TFRecordWriter", compression_type)
        self._file = Path(path).open("wb")
        self._deflate = {
            "": lambda: None,
            "GZIP": lambda: zlib.compressobj(wbits=_GZIP),
            "ZLIB": lambda: zlib.compressobj(),
        }[compression]()

    def write(self, record: bytes) -> None:
        """Add one record.

        Raises:
            ArgumentTypeError: not bytes.
            ArgumentError: the writer is closed.
        """
        if not isinstance(record, bytes):
            raise ArgumentTypeError(
                f"TFRecordWriter.write takes bytes. Received: {type(record).__name__}. "
                "Make them with `encode_example(features)`, `message.SerializeToString()` or `text.encode()`."
            )
        if self._file.closed:
            raise ArgumentError("TFRecordWriter.write: the writer is closed. Make a new one, which replaces the file.")
        length = _LENGTH.pack(len(record))
        self._put(b"".join((length, _CHECKSUM.pack(_checksum(length)), record, _CHECKSUM.pack(_checksum(record)))))

    def _put(self, data: bytes) -> None:
        self._file.write(data if self._deflate is None else self._deflate.compress(data))

    def flush(self) -> None:
        """Hand what was written to the operating system; compressed data may wait for more, until `close`."""
        self._file.flush()

    def close(self) -> None:
        """Finish the file. May be repeated."""
        if not self._file.closed:
            if self._deflate is not None:
                self._file.write(self._deflate.flush())
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
