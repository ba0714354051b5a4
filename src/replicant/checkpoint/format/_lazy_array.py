"""Arrays of a checkpoint that are read when they are needed, whole or only some boxes of them."""

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...errors import CheckpointError, DamagedCheckpointError
from ..folders._locations import Place, is_damage, is_remote
from ..folders._threads import run_all
from ._arrays_file import ARRAYS, check_bytes, read_array, require_size
from ._boxes import Box, blocks_of, overlap, sizes_of, within
from ._files import array_of, dtype_of
from ._parts import part_name, slice_box
from ._readers import Readers

_RANGE, _RANGE_OF_STORE = 4 << 20, 16 << 20  # bytes of blocks side by side that are read at once, from a disk and a store


class Stored:
    """An array in a checkpoint.

    Args:
        readers: The files of the checkpoint.
        record: What the manifest says about the array.

    Raises:
        CheckpointError: If there is no such dtype here.
    """

    def __init__(self, readers: Readers, record: Mapping[str, Any]):
        self._readers, self._path, self._record = readers, readers.folder, record
        self.key: str = record["key"]
        self.dtype = dtype_of(self._path / ARRAYS, record)
        self.shape: tuple[int, ...] = tuple(record["shape"])

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

    def __init__(self, readers: Readers, record: Mapping[str, Any]):
        super().__init__(readers, record)
        require_size(self._path / ARRAYS, record, self.dtype)

    def read(self) -> np.ndarray:
        return self._opened(partial(read_array, self._path / ARRAYS))

    def read_boxes(self, boxes: Sequence[Box]) -> dict[Box, np.ndarray]:
        whole = self.read()
        return {box: np.array(whole[tuple(slice(*part) for part in box)], copy=True) for box in boxes}

    def checks(self, boxes: Iterable[Box]) -> list[Callable[[], None]]:
        return [lambda: self._opened(partial(check_bytes, self._path / ARRAYS))]

    def _opened(self, read: Callable[[Any, Any], Any]) -> Any:
        try:
            with self._readers.opened(ARRAYS, self._record["num_bytes"]) as file:
                return read(file, self._record)
        except OSError as error:
            raise _unreadable(self._path / ARRAYS, error) from error


class _Block(NamedTuple):
    """A part of a slice with a checksum of its own: its box, and its bytes in the file."""

    box: Box
    start: int
    stop: int
    checksum: int


def _runs(blocks: Iterable[_Block], most: int) -> Iterator[list[_Block]]:
    """Join blocks that lie side by side in a file, up to so many bytes, or one block that has more."""
    run: list[_Block] = []
    for block in blocks:
        if run and (block.start != run[-1].stop or block.stop - run[0].start > most):
            yield run
            run = []
        run.append(block)
    if run:
        yield run


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
        name, most = part_name(record["part"]), _RANGE_OF_STORE if is_remote(self._path) else _RANGE
        path = self._path / name
        try:
            for run in _runs(self._wanted(record, boxes), most):
                start, stop = run[0].start, run[-1].stop
                with self._readers.opened(name, stop - start) as file:
                    file.seek(start)
                    data = np.frombuffer(file.read(stop - start), np.uint8)
                for each in run:
                    own = data[each.start - start : each.stop - start]
                    self._require(path, each.start, each.stop - each.start, own, each.checksum)
                    yield each.box, own
        except OSError as error:
            raise _unreadable(path, error) from error

    def _wanted(self, record: Mapping[str, Any], boxes: Sequence[Box]) -> Iterator[_Block]:
        """The blocks of a slice that have elements of any of the boxes."""
        start = record["offset"]
        for box, checksum in zip(blocks_of(slice_box(record), self.dtype.itemsize), record["crc32"], strict=True):
            stop = start + math.prod(sizes_of(box)) * self.dtype.itemsize
            if any(overlap(box, each) for each in boxes):
                yield _Block(box, start, stop, checksum)
            start = stop

    def _require(self, path: Place, start: int, num_bytes: int, data: np.ndarray, checksum: int) -> None:
        if len(data) != num_bytes:
            raise DamagedCheckpointError(
                f"{path} is damaged: it ends in the middle of {self.key!r}, {num_bytes - len(data)} bytes too early."
            )
        if (found := zlib.crc32(data.data)) != checksum:
            raise DamagedCheckpointError(
                f"{path} is damaged: {self.key!r} (bytes {start} to {start + num_bytes}) has the checksum {found}, but should have "
                f"{checksum}."
            )


def _unreadable(path: Place, error: OSError) -> CheckpointError:
    return (DamagedCheckpointError if is_damage(error) else CheckpointError)(f"{path} could not be read ({error}).")


def _meets(record: Mapping[str, Any], boxes: Iterable[Box]) -> bool:
    mine = slice_box(record)
    return any(overlap(mine, box) for box in boxes)


def files_of(path: Place, manifest: Mapping[str, Any]) -> Place:
    """Return the folder with the files of the checkpoint `path`. At an object store, its manifest names a folder in it."""
    return path / manifest["folder"] if "folder" in manifest else path


def stored_arrays(path: Place, manifest: Mapping[str, Any]) -> dict[str, Stored]:
    """Return all arrays of a checkpoint, by key, without reading them.

    Raises:
        CheckpointError: If one of them has a dtype that is unknown here.
    """
    readers = Readers(files_of(path, manifest))
    found: dict[str, Stored] = {record["key"]: Whole(readers, record) for record in manifest["arrays"]}
    return found | {record["key"]: Sliced(readers, record) for record in manifest["sliced"]}
