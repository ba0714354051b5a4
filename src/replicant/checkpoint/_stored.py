"""Arrays of a checkpoint that are read when they are needed, whole or only some boxes of them."""

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError, DamagedCheckpointError
from ._arrays_file import ARRAYS, check_bytes, read_array, require_size
from ._boxes import Box, blocks_of, overlap, sizes_of, within
from ._files import array_of, dtype_of, open_file
from ._parts import part_name, slice_box
from ._threads import run_all


class Stored:
    """An array in a checkpoint.

    Args:
        path: The folder of the checkpoint.
        record: What the manifest says about the array.

    Raises:
        CheckpointError: If there is no such dtype here.
    """

    def __init__(self, path: Path, record: Mapping[str, Any]):
        self.key: str = record["key"]
        self.dtype = dtype_of(path / ARRAYS, record)
        self.shape: tuple[int, ...] = tuple(record["shape"])
        self._path, self._record = path, record

    @property
    def everything(self) -> Box:
        """The box of the whole array."""
        return tuple((0, size) for size in self.shape)

    @property
    def num_bytes(self) -> int:
        """The number of bytes of the whole array."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> np.ndarray:
        """Read the whole array into memory of its own, and check its bytes.

        Raises:
            CheckpointError: If it is damaged. The message names the file.
        """
        raise NotImplementedError

    def read_boxes(self, boxes: Sequence[Box]) -> dict[Box, np.ndarray]:
        """Read some boxes, each into memory of its own, and check the bytes that are read.

        Raises:
            CheckpointError: If they are damaged. The message names the file.
        """
        raise NotImplementedError

    def checks(self, boxes: Iterable[Box]) -> list[Callable[[], None]]:
        """Return tasks that check the bytes of some boxes, and raise a CheckpointError if they are damaged."""
        raise NotImplementedError


class Whole(Stored):
    """An array with one checksum: to check a part of it, all of it is read."""

    def __init__(self, path: Path, record: Mapping[str, Any]):
        super().__init__(path, record)
        require_size(path / ARRAYS, record, self.dtype)

    def read(self) -> np.ndarray:
        return self._opened(partial(read_array, self._path / ARRAYS))

    def read_boxes(self, boxes: Sequence[Box]) -> dict[Box, np.ndarray]:
        whole = self.read()
        return {box: np.array(whole[tuple(slice(*part) for part in box)], copy=True) for box in boxes}

    def checks(self, boxes: Iterable[Box]) -> list[Callable[[], None]]:
        return [lambda: self._opened(partial(check_bytes, self._path / ARRAYS))]

    def _opened(self, read: Callable[[Any, Any], Any]) -> Any:
        try:
            with open_file(self._path / ARRAYS) as file:
                return read(file, self._record)
        except OSError as error:
            raise _unreadable(self._path / ARRAYS, error) from error


class Sliced(Stored):
    """An array whose slices lie in parts of the checkpoint, with a checksum for each block."""

    def read(self) -> np.ndarray:
        return self.read_boxes([self.everything])[self.everything]

    def read_boxes(self, boxes: Sequence[Box]) -> dict[Box, np.ndarray]:
        found = {box: self._empty(box) for box in boxes}
        run_all([partial(self._read_slice, each, found) for each in self._record["slices"] if _meets(each, boxes)])
        return found

    def checks(self, boxes: Iterable[Box]) -> list[Callable[[], None]]:
        wanted = list(boxes)
        return [partial(self._check_slice, each, wanted) for each in self._record["slices"] if _meets(each, wanted)]

    def _empty(self, box: Box) -> np.ndarray:
        try:
            return np.empty(sizes_of(box), self.dtype)
        except MemoryError as error:
            raise CheckpointError(
                f"{self._path}: there is not enough memory for {self.key!r}, of {sizes_of(box)} elements."
            ) from error

    def _check_slice(self, record: Mapping[str, Any], boxes: Sequence[Box]) -> None:
        for _ in self._blocks(record, boxes):
            pass

    def _read_slice(self, record: Mapping[str, Any], found: Mapping[Box, np.ndarray]) -> None:
        for block, data in self._blocks(record, list(found)):
            values = array_of(self._path / part_name(record["part"]), self.key, data, self.dtype, sizes_of(block))
            for box, array in found.items():
                if (both := overlap(block, box)) is not None:
                    array[within(both, box)] = values[within(both, block)]

    def _blocks(self, record: Mapping[str, Any], boxes: Sequence[Box]) -> Any:
        """Read and check the blocks of a slice that have elements of any of the boxes. Yields the box and bytes of each."""
        path, start = self._path / part_name(record["part"]), record["offset"]
        try:
            with open_file(path) as file:
                for block, checksum in zip(blocks_of(slice_box(record), self.dtype.itemsize), record["crc32"], strict=True):
                    num_bytes = math.prod(sizes_of(block)) * self.dtype.itemsize
                    if any(overlap(block, box) for box in boxes):
                        file.seek(start)
                        data = np.frombuffer(file.read(num_bytes), np.uint8)
                        self._require(path, start, num_bytes, data, checksum)
                        yield block, data
                    start += num_bytes
        except OSError as error:
            raise _unreadable(path, error) from error

    def _require(self, path: Path, start: int, num_bytes: int, data: np.ndarray, checksum: int) -> None:
        if len(data) != num_bytes:
            raise DamagedCheckpointError(
                f"{path} is damaged: it ends in the middle of {self.key!r}, {num_bytes - len(data)} bytes too early."
            )
        if (found := zlib.crc32(data.data)) != checksum:
            raise DamagedCheckpointError(
                f"{path} is damaged: {self.key!r} (bytes {start} to {start + num_bytes}) has the checksum {found}, but should have "
                f"{checksum}."
            )


def _unreadable(path: Path, error: OSError) -> DamagedCheckpointError:
    return DamagedCheckpointError(f"{path} could not be read ({error}).")


def _meets(record: Mapping[str, Any], boxes: Iterable[Box]) -> bool:
    mine = slice_box(record)
    return any(overlap(mine, box) for box in boxes)


def stored_arrays(path: Path, manifest: Mapping[str, Any]) -> dict[str, Stored]:
    """Return all arrays of a checkpoint, by key, without reading them.

    Raises:
        CheckpointError: If one of them has a dtype that is unknown here.
    """
    found: dict[str, Stored] = {record["key"]: Whole(path, record) for record in manifest["arrays"]}
    return found | {record["key"]: Sliced(path, record) for record in manifest["sliced"]}
