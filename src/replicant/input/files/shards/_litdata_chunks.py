"""The bytes of the items in LitData's chunks, which may be compressed as a whole, some items together, or each by itself."""

import abc
import itertools
from typing import Any

import numpy as np

from ....errors import DatasetError
from .._stream import PIECE
from .._url_file import UrlFile
from .._zstd import import_zstandard
from ..arrays._rows import FileBytes
from ._litdata_index import METHOD, Chunk

_WORD = np.dtype("<u4")
_FRAMED = b"LDFZ01\x00\x00"
_ARROW = b"LDARW01\x00"  # the last bytes of a chunk that holds its items as a table
_FRAMED_HEAD = 24  # bytes of its head, and of what describes a frame
_FRAME = np.dtype([("first", "<u4"), ("items", "<u4"), ("begin", "<u8"), ("size", "<u4"), ("raw", "<u4")])


def damaged(path: str, what: str) -> DatasetError:
    """Return the error of a chunk that cannot be read."""
    return DatasetError(f"{METHOD}: {path!r} is damaged: {what}. Copy or write the file again.")


class Items(abc.ABC):
    """The items of one chunk. Item i begins at byte ``offsets[i]`` and ends at ``offsets[i + 1]`` of all their bytes."""

    offsets: np.ndarray
    is_held = False  # whether the whole chunk was read and is in memory

    @abc.abstractmethod
    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Return the bytes of the items from ``start`` on, and where each begins in them and the last ends.

        The last number is that of the bytes of the file that were read for it.

        Raises:
            DatasetError: If they are damaged.
        """


class PlainItems(Items):
    """Items that are not compressed, or were decompressed with the whole chunk. ``data`` begins where the chunk does."""

    def __init__(self, chunk: Chunk, data: Any) -> None:
        self.data, self.is_held = data, isinstance(data, np.ndarray)
        self.offsets = offsets_of(chunk, data)

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, int]:
        begin, end = int(self.offsets[start]), int(self.offsets[stop])
        found = np.empty(end - begin, np.uint8)
        if isinstance(self.data, np.ndarray):
            found[:] = self.data[begin:end]
        elif end > begin:
            self.data.fill(found, begin)
        return found, self.offsets[start : stop + 1] - begin, 0 if self.is_held else end - begin


class PackedItems(Items):
    """Items that are compressed one by one."""

    def __init__(self, chunk: Chunk, file: FileBytes, most: int) -> None:
        self.chunk, self.file, self.most = chunk, file, most
        self.offsets = offsets_of(chunk, file)

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, int]:
        spans = self.offsets[start : stop + 1].tolist()
        packed = self.file[spans[0] : spans[-1]]
        parts: list[bytes] = []
        left = self.most
        for begin, end in itertools.pairwise(spans):
            parts.append(unpacked(self.chunk.path, packed[begin - spans[0] : end - spans[0]], left, exact=False))
            left -= len(parts[-1])
        ends = np.cumsum([0, *map(len, parts)])
        return np.frombuffer(b"".join(parts), np.uint8), ends, len(packed)


class FramedItems(Items):
    """Items that are compressed some at a time, in frames. The last frame is held."""

    def __init__(self, chunk: Chunk, file: FileBytes, most: int) -> None:
        self.chunk, self.file, self.most = chunk, file, most
        head = file[:_FRAMED_HEAD]
        if len(head) < _FRAMED_HEAD or not head.startswith(_FRAMED):
            raise damaged(chunk.path, f"it begins with {head[:8]!r} instead of {_FRAMED!r}")
        version, count, frames = (int.from_bytes(head[a:b], "little") for a, b in ((8, 10), (12, 16), (20, 24)))
        begin = _FRAMED_HEAD + 4 * (count + 1)
        if version != 1 or count != chunk.items or begin + _FRAMED_HEAD * frames > len(file):
            raise damaged(
                chunk.path, f"it has the version {version} and {count} items at byte 8, and index.json says {chunk.items}"
            )
        self.offsets = np.frombuffer(file[_FRAMED_HEAD:begin], _WORD).astype(np.int64)
        self.frames = np.frombuffer(file[begin : begin + _FRAMED_HEAD * frames], _FRAME)
        self._check()
        self.held, self.data = -1, np.empty(0, np.uint8)

    def _check(self) -> None:
        first, items = (self.frames[name].astype(np.int64) for name in ("first", "items"))
        ends, raw = first + items, self.frames["raw"].astype(np.int64)
        if (
            self.offsets[0]
            or (np.diff(self.offsets) < 0).any()
            or not np.array_equal(first, np.concatenate([[0], ends[:-1]])[: len(first)])
            or (not len(ends) and self.chunk.items)
            or (len(ends) and ends[-1] != self.chunk.items)
            or not np.array_equal(self.offsets[ends] - self.offsets[first], raw)
        ):
            raise damaged(self.chunk.path, "its tables of items and frames contradict each other")

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, int]:
        number = int(np.searchsorted(self.frames["first"], start, side="right")) - 1
        frame, read = self.frames[number], 0
        first, end = int(frame["first"]), int(frame["first"]) + int(frame["items"])
        if number != self.held:
            begin, size, raw = int(frame["begin"]), int(frame["size"]), int(frame["raw"])
            if begin + size > len(self.file):
                raise damaged(self.chunk.path, f"frame {number} ends behind it, at byte {begin + size}")
            packed = self.file[begin : begin + size]
            if raw > self.most:
                raise damaged(self.chunk.path, f"frame {number} has {raw:,} bytes, more than max_chunk_bytes={self.most:,} allows")
            data = np.frombuffer(unpacked(self.chunk.path, packed, raw, exact=True), np.uint8)
            self.held, self.data, read = number, data, size
        stop = min(stop, end)
        places = self.offsets[start : stop + 1] - self.offsets[first]
        return self.data[places[0] : places[-1]], places - places[0], read


def offsets_of(chunk: Chunk, data: Any) -> np.ndarray:
    """Return where the items of a chunk begin, and where the last one ends.

    Raises:
        DatasetError: If the chunk is not what the index says.
    """
    begin, size = _WORD.itemsize * (chunk.items + 2), len(data)
    if size != chunk.size:
        raise damaged(chunk.path, f"it has {size} bytes, and index.json says {chunk.size}")
    head = bytes(data[:begin])
    count = int.from_bytes(head[:4], "little")
    if len(head) < begin or count != chunk.items:
        raise damaged(chunk.path, f"it has {count} items at byte 0, and index.json says {chunk.items}")
    offsets = np.frombuffer(head[4:], _WORD).astype(np.int64)
    if bytes(data[size - len(_ARROW) : size]) == _ARROW:
        raise DatasetError(
            f"{METHOD}: {chunk.path!r} holds its items as an Arrow table, as LitData writes dicts of texts and lists if PyArrow is "
            "installed, and these are not read. Write the rows as Parquet, for `ParquetDataset`."
        )
    wrong = np.flatnonzero(np.diff(offsets, prepend=begin) < 0)
    if len(wrong) or offsets[0] != begin or offsets[-1] != size:
        at = int(wrong[0]) if len(wrong) else 0 if offsets[0] != begin else chunk.items
        raise damaged(chunk.path, f"byte {4 * (at + 1)} says that item {at} begins, or the last one ends, at {offsets[at]}")
    return offsets


def unpacked(path: str, data: bytes, most: int, *, exact: bool) -> bytes:
    """Return what bytes hold that zstd has compressed: at most, or exactly, so many bytes.

    Raises:
        DatasetError: If they are damaged, or hold another number of bytes.
    """
    zstandard = import_zstandard(METHOD)
    found = bytearray()
    try:
        reader = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
        while len(found) <= most and (piece := reader.read(min(PIECE, most + 1 - len(found)))):
            found += piece
    except zstandard.ZstdError as error:
        raise damaged(path, f"it cannot be decompressed ({error})") from error
    if len(found) > most:
        raise damaged(
            path, f"it holds more than {most:,} bytes once decompressed, the most that index.json or max_chunk_bytes allows"
        )
    if exact and len(found) != most:
        raise damaged(path, f"it holds {len(found)} bytes once decompressed, and {most} are expected")
    return bytes(found)


def items_of(chunk: Chunk, level: str, file: FileBytes, most: int) -> Items:
    """Return what reads the items of a chunk.

    Raises:
        DatasetError: If it is damaged, or too large to be in memory as a whole.
    """
    if level == "batch":
        return FramedItems(chunk, file, most)
    if level == "sample":
        return PackedItems(chunk, file, most)
    if level == "" and not isinstance(file, UrlFile):
        return PlainItems(chunk, file)
    if chunk.size > most:
        raise DatasetError(
            f"{METHOD}: {chunk.path!r} has {chunk.size:,} bytes, more than {most:,}, the most that max_chunk_bytes allows. Give a "
            "larger max_chunk_bytes."
        )
    data = file[: len(file)]
    return PlainItems(chunk, np.frombuffer(unpacked(chunk.path, data, chunk.size, exact=True) if level else data, np.uint8))
