"""TFRecord files: records with checksums.

One record is ``length (8 bytes, little endian), checksum of these, data, checksum of the data``; checksums are CRC-32C,
rotated and shifted ("masked"), so that data which contains checksums does not yield trivial ones.
"""

import contextlib
import dataclasses
import functools
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import google_crc32c
import numpy as np

from ...._crc32c import masked
from ...._whole_file import close_after_failure
from ....errors import ArgumentError, ArgumentTypeError, DatasetError
from ....storage._retry import RemoteError
from ....storage._upload import ObjectFile
from ....storage._urls import folder_at
from .. import _stream
from .._file_format import Cut, FileFormat
from .._limits import too_large
from .._remedies import HEAD, if_compressed
from .._stream import WINDOW_BITS, checked_compression

_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_HEAD = _LENGTH.size + _CHECKSUM.size
_FEW = 4  # fewer records are not worth a search for a common length


@dataclasses.dataclass(frozen=True)
class Records(FileFormat):
    """The format of TFRecordDataset."""

    @property
    def name(self) -> str:
        return "TFRecordDataset"

    def split(self, path: str, offset: int, data: memoryview, last: bool) -> Cut:
        if len(data) > _stream.PIECE and (stop := max(_first_end(data), _stream.PIECE)) < len(data):
            data, last = data[:stop], False
        records, size = _alike(data)
        at = len(records) * size
        others, stops, failure = self._one_by_one(path, offset + at, data[at:].tobytes(), last)
        ends = np.concatenate([np.arange(1, len(records) + 1) * size, at + _CHECKSUM.size + np.array(stops, np.int64)])
        return records + others, ends, failure

    def _one_by_one(self, path: str, offset: int, data: bytes, last: bool) -> tuple[list[bytes], list[int], DatasetError | None]:
        """Records of any length, where the data of each ends, and what is wrong after them."""
        starts, stops, at = _outline(data)
        records = [data[start:stop] for start, stop in zip(starts, stops, strict=True)]
        wrong = _first_wrong(data, starts, stops, records)
        if wrong is not None:
            begin = starts[wrong] - _HEAD
            return records[:wrong], stops[:wrong], self._damaged(path, offset, data, begin)
        if at + _HEAD <= len(data) and _is_wrong(data, at, _LENGTH.size):  # otherwise the reader would look for its end forever
            return records, stops, self._damaged(path, offset, data, at)
        if at + _HEAD <= len(data) and (size := _size(data, at)) > self.max_record_bytes:
            return records, stops, too_large(self.name, path, offset + at, self.max_record_bytes, size=size)
        return records, stops, self._cut_off(path, offset + at, data[at:]) if last and at < len(data) else None

    def _damaged(self, path: str, offset: int, data: bytes, at: int) -> DatasetError:
        part, begin, size = "length", at, _LENGTH.size
        if not _is_wrong(data, begin, size):
            part, begin, size = "data", at + _HEAD, _LENGTH.unpack_from(data, at)[0]
        expected, found = _checksums(data, begin, size)
        remedy = None if offset else if_compressed(data[:HEAD], () if self.compression else WINDOW_BITS)
        return DatasetError(
            f"{self.name}: {path!r} is damaged in the record at byte {offset + at}: the checksum of its {part} should be "
            f"0x{expected:08x}, but the bytes give 0x{found:08x}. {remedy or 'Copy or write the file again.'}"
        )

    def _cut_off(self, path: str, at: int, rest: bytes) -> DatasetError:
        needed = _size(rest, 0) if len(rest) >= _HEAD else _HEAD
        return DatasetError(
            f"{self.name}: {path!r} is cut off: the record at byte {at} needs {'at least ' if len(rest) < _HEAD else ''}{needed} "
            f"bytes, but only {len(rest)} follow. Copy or write the file again."
        )


def _size(data: bytes | memoryview, at: int) -> int:
    """How many bytes the record that begins here takes, as it says."""
    return _HEAD + _LENGTH.unpack_from(data, at)[0] + _CHECKSUM.size


def _first_end(data: memoryview) -> int:
    """Where the first record ends, as far as it is known."""
    return _size(data, 0) if len(data) >= _HEAD else len(data)


def _alike(data: memoryview) -> tuple[list[bytes], int]:
    """The sound records of equal length at the beginning, and how many bytes each takes."""
    if len(data) < _HEAD or _is_wrong(data, 0, _LENGTH.size):
        return [], 0
    (length,), size = _LENGTH.unpack_from(data), _size(data, 0)
    count = len(data) // size
    if count < _FEW:
        return [], 0
    lengths, checksums, sums = (
        np.ndarray(count, dtype, data, at, (size,)) for dtype, at in (("<u8", 0), ("<u4", _LENGTH.size), ("<u4", _HEAD + length))
    )
    count = _leading((lengths == lengths[0]) & (checksums == checksums[0]))
    cut = struct.Struct(f"{_HEAD}x{length}s{_CHECKSUM.size}x").iter_unpack(data[: count * size])
    records = [record for (record,) in cut]
    sound = _leading(masked(_checksums_of(records)) == sums[:count])
    return records[:sound], size


def _leading(holds: np.ndarray) -> int:
    """The number of true values before the first false one."""
    return len(holds) if holds.all() else int(np.argmin(holds))


def _outline(data: bytes) -> tuple[list[int], list[int], int]:
    """Where the data of each whole record begins and ends, and where the first incomplete one begins."""
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
    table, begins = np.frombuffer(data, np.uint8), np.array(starts) - _HEAD
    lengths = table[begins[:, None] + np.arange(_LENGTH.size)]
    wrong = masked(_checksums_of_lengths(lengths)) != _words(table, begins + _LENGTH.size)
    wrong |= masked(_checksums_of(records)) != _words(table, np.array(stops))
    return int(np.argmax(wrong)) if wrong.any() else None


def _checksums_of(records: list[bytes]) -> np.ndarray:
    return np.fromiter(map(google_crc32c.value, records), np.uint32, len(records))


def _checksums_of_lengths(lengths: np.ndarray) -> np.ndarray:
    """The checksum of each row of 8 bytes. Checksums are linear, so each byte adds its share to the checksum of zeros."""
    zeros, shares = _shares_of_bytes()
    return np.bitwise_xor.reduce(shares[np.arange(_LENGTH.size), lengths], axis=1) ^ zeros


@functools.cache
def _shares_of_bytes() -> tuple[np.uint32, np.ndarray]:
    """The checksum of 8 zeros, and what each byte at each place changes in it."""
    size, value = _LENGTH.size, google_crc32c.value
    zeros = value(bytes(size))
    shares = [[value(bytes(at) + bytes([byte]) + bytes(size - at - 1)) ^ zeros for byte in range(256)] for at in range(size)]
    return np.uint32(zeros), np.array(shares, np.uint32)


def _words(table: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """The little-endian 32-bit numbers at these places."""
    return table[begins[:, None] + np.arange(_CHECKSUM.size)].view("<u4")[:, 0]


def _checksum(data: bytes) -> int:
    """The masked checksum of some bytes."""
    return masked(google_crc32c.value(data))


def _is_wrong(data: bytes | memoryview, at: int, size: int) -> bool:
    expected, found = _checksums(data, at, size)
    return expected != found


def _checksums(data: bytes | memoryview, at: int, size: int) -> tuple[int, int]:
    """The checksum that is written after these bytes, and the one that the bytes give."""
    return _CHECKSUM.unpack_from(data, at + size)[0], _checksum(bytes(data[at : at + size]))


def begins_record(head: bytes) -> bool:
    """Return whether a record begins with these bytes: with its length, and the checksum of that."""
    return len(head) >= _HEAD and not _is_wrong(head, 0, _LENGTH.size)


def record_parts(record: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the parts that are written for one record."""
    length = _LENGTH.pack(len(record))
    return length, _CHECKSUM.pack(_checksum(length)), record, _CHECKSUM.pack(_checksum(record))


def read_record(file: BinaryIO, room: int | None = None) -> bytes | None:
    """Return the record that begins here, or None if it is damaged or cut off.

    ``room`` is how many bytes it takes, if that is known: it is damaged if it takes others.
    """
    head = file.read(_HEAD)
    if len(head) < _HEAD or _is_wrong(head, 0, _LENGTH.size):
        return None
    size = _LENGTH.unpack_from(head)[0]
    if room is None:
        at, end = file.tell(), file.seek(0, os.SEEK_END)
        file.seek(at)
        if size + _CHECKSUM.size > end - at:  # `read` would make room for all that it is asked for
            return None
    elif _HEAD + size + _CHECKSUM.size != room:
        return None
    body = file.read(size + _CHECKSUM.size)
    return body[:size] if len(body) == size + _CHECKSUM.size and not _is_wrong(body, 0, size) else None


class TFRecordWriter:
    """Writes a TFRecord file, until `close` or the end of a ``with`` block.

    Args:
        path: The path of the file, or its URL; an existing file is replaced. At a URL, the file exists once it is closed. S3 gets
            it in parts while it is written. Other stores get it in one request, and until then all of it is in memory.
        compression_type: The compression: None or "" for none, "GZIP" or "ZLIB".

    Raises:
        ArgumentError: If it is another compression.
        DatasetError: Here, in `write`, `flush` or `close`, if the disk does not take it. Then the file is removed.

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
        place = folder_at("TFRecordWriter: path", path, ArgumentError)
        self.path = str(place)
        with self._telling():
            self._file = ObjectFile(place) if isinstance(place, str) else place.open("wb")
        self._deflate = zlib.compressobj(wbits=WINDOW_BITS[compression]) if compression else None

    def write(self, record: bytes) -> None:
        """Add one record.

        Raises:
            ArgumentTypeError: If the record is not bytes.
            ArgumentError: If the writer is closed.
        """
        if not isinstance(record, bytes):
            raise ArgumentTypeError(
                f"TFRecordWriter.write takes bytes. Received: {type(record).__name__}. "
                "Make them with `encode_example(features)`, `message.SerializeToString()` or `text.encode()`."
            )
        if self._file.closed:
            raise ArgumentError("TFRecordWriter.write: the writer is closed. Make a new one, which replaces the file.")
        self._put(b"".join(record_parts(record)))

    def _put(self, data: bytes) -> None:
        with self._telling():
            self._file.write(data if self._deflate is None else self._deflate.compress(data))

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Turn errors of the disk into errors that name the file, and remove it: a part of it would be read as if it were all."""
        try:
            yield
        except OSError as error:
            if isinstance(error, RemoteError):
                raise
            if (file := getattr(self, "_file", None)) is not None and not isinstance(file, ObjectFile):
                close_after_failure(file)
                if Path(self.path).is_file():
                    with contextlib.suppress(OSError):
                        Path(self.path).unlink()
            raise DatasetError(
                f"TFRecordWriter: cannot write {self.path!r}: {error.strerror}. None of it is kept. Make room there, or choose "
                "another path."
            ) from error

    def flush(self) -> None:
        """Pass what was written to the operating system. Compressed data may wait in memory until `close`."""
        with self._telling():
            self._file.flush()

    def close(self) -> None:
        """Finish the file. It may be called several times."""
        if not self._file.closed:
            with self._telling():
                if self._deflate is not None:
                    self._file.write(self._deflate.flush())
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None and isinstance(self._file, ObjectFile):
            self._file.leave()
        self.close()
