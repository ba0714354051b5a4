"""The parts of a checkpoint: files with slices of variables, which every device that has some writes by itself.

A slice is written once, in C order, and its bytes have a checksum for each block (``_boxes.py``), so that a part of it can be read
and checked alone. The manifest says which box of which variable lies where.
"""

import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ...errors import CheckpointError, DamagedCheckpointError
from ..folders._locations import Place, created, is_damage
from ..folders._threads import run_all
from ._boxes import Box, blocks_of, box_of, is_grid, num_blocks, sizes_of
from ._files import as_bytes, dtype_of, is_size

_PART = {"number", "num_bytes", "writer"}
_SLICED = {"key", "dtype", "shape", "slices"}
_SLICE = {"start", "sizes", "part", "offset", "crc32"}
_MAX_RANK = 64  # of a NumPy array


def part_name(number: int) -> str:
    """Return the name of the file of a part."""
    return f"slices-{number}.bin"


class Piece(NamedTuple):
    """A slice to be written: the key of its variable, its box, and a function that returns its values on the host."""

    key: str
    box: Box
    read: Callable[[], np.ndarray]


class Parts:
    """What this process writes of variables in slices.

    Args:
        arrays: The variables that lie in slices, by key. All workers have the same ones.
        fetch: Whether to copy all slices to the host now, because the next step may come before they are written. On a CPU, this
            copies nothing. Otherwise each slice is copied just before it is written.
    """

    def __init__(self, arrays: Mapping[str, jax.Array], *, fetch: bool):
        self._arrays = {key: (array.dtype.name, tuple(array.shape)) for key, array in arrays.items()}
        devices = sorted({device for array in arrays.values() for device in array.sharding.device_set}, key=lambda each: each.id)
        numbers = {device: number for number, device in enumerate(devices)}
        self.pieces: dict[int, list[Piece]] = defaultdict(list)
        for key, array in arrays.items():
            mine = {shard.device: shard.data for shard in array.addressable_shards}
            for box, device in _writers(array).items():
                if device in mine:
                    self.pieces[numbers[device]].append(Piece(key, box, _reader(mine[device])))
        if fetch:
            self._fetch(arrays.values())

    def _fetch(self, arrays: Any) -> None:
        for array in arrays:
            for shard in array.addressable_shards:
                shard.data.copy_to_host_async()
        self.pieces = {number: [piece._replace(read=_known(piece.read())) for piece in own] for number, own in self.pieces.items()}

    @property
    def num_bytes(self) -> int:
        """The number of bytes that this process writes."""
        own = [piece for pieces in self.pieces.values() for piece in pieces]
        return sum(math.prod(sizes_of(piece.box)) * np.dtype(self._arrays[piece.key][0]).itemsize for piece in own)

    def write(self, folder: Place, writer: str) -> dict[str, Any]:
        """Write this process's parts, several at a time, and return their records. `writer` is the name of this process.

        Raises:
            OSError: If they cannot be written.
        """
        tasks = [lambda number=number, own=own: _write_part(folder, number, own, writer) for number, own in self.pieces.items()]
        return joined(run_all(tasks))

    def records(self, written: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the manifest says about slices, given the records of all parts."""
        slices: dict[str, list[Any]] = {key: [] for key in self._arrays}
        for key, record in written["slices"]:
            slices[key].append(record)
        sliced = [
            {"key": key, "dtype": dtype, "shape": list(shape), "slices": sorted(slices[key], key=lambda each: each["start"])}
            for key, (dtype, shape) in self._arrays.items()
        ]
        return {"parts": sorted(written["parts"], key=lambda part: part["number"]), "sliced": sliced}


def joined(written: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the records of several parts as one."""
    return {name: [record for each in written for record in each[name]] for name in ("parts", "slices")}


def in_slices(array: Any) -> bool:
    """Whether an array consists of slices on different devices, of this process or of several."""
    if not isinstance(array, jax.Array) or array.ndim == 0 or array.size == 0 or array.is_fully_replicated:
        return False
    return len(array.sharding.device_set) > 1


def _writers(array: jax.Array) -> dict[Box, Any]:
    """The device that writes each slice: one of those that have it, by turns."""
    holders: dict[Box, list[Any]] = defaultdict(list)
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        holders[box_of(index, array.shape)].append(device)
    for devices in holders.values():
        devices.sort(key=lambda device: device.id)
    return {box: holders[box][number % len(holders[box])] for number, box in enumerate(sorted(holders))}


def _reader(data: jax.Array) -> Callable[[], np.ndarray]:
    def read() -> np.ndarray:
        # JAX keeps the copy on the host with the array that was copied, and this one is thrown away.
        view = jax.make_array_from_single_device_arrays(data.shape, data.sharding, [data])
        return np.asarray(view)

    return read


def _known(value: np.ndarray) -> Callable[[], np.ndarray]:
    return lambda: value


def _write_part(folder: Place, number: int, pieces: Sequence[Piece], writer: str) -> dict[str, Any]:
    slices = []
    with created(folder / part_name(number)) as stream:
        for key, box, read in pieces:
            value, offset, checksums = read(), stream.tell(), list[int]()
            data, start = as_bytes(value), 0
            for block in blocks_of(box, value.dtype.itemsize):
                stop = start + math.prod(sizes_of(block)) * value.dtype.itemsize
                checksums.append(zlib.crc32(data[start:stop]))
                stream.write(data[start:stop])
                start = stop
            place = {"start": [start for start, _ in box], "sizes": list(sizes_of(box))}
            slices.append((key, {**place, "part": number, "offset": offset, "crc32": checksums}))
        return {"parts": [{"number": number, "num_bytes": stream.tell(), "writer": writer}], "slices": slices}


# What a manifest says


def check_parts(file: Place, folder: Place, manifest: Mapping[str, Any]) -> None:
    """Check what a manifest says about slices, and that the parts are in the folder with their sizes.

    Raises:
        CheckpointError: If it cannot be right. The message names the file.
    """
    parts, sliced = manifest.get("parts"), manifest.get("sliced")
    if not isinstance(parts, list) or not isinstance(sliced, list) or not all(map(_is_part, parts)):
        raise DamagedCheckpointError(f"{file} is damaged: it has no list of parts or of arrays in slices.")
    if len({part["number"] for part in parts}) != len(parts):
        raise DamagedCheckpointError(f"{file} is damaged: two parts have the same number.")
    keys = {record["key"] for record in manifest["arrays"]}
    ends: dict[int, list[tuple[int, int]]] = {part["number"]: [] for part in parts}
    for number, record in enumerate(sliced):
        problem = _problem(file, record, ends)
        if problem is None and record["key"] in keys:
            problem = f"there are two with the name {record['key']!r}"
        if problem is not None:
            raise DamagedCheckpointError(f"{file} is damaged: array {number} in slices cannot be right: {problem}.")
        keys.add(record["key"])
    for part in parts:
        _check_part(file, folder, part, sorted(ends[part["number"]]))


def _is_part(part: Any) -> bool:
    return (
        isinstance(part, dict)
        and set(part) == _PART
        and isinstance(part["writer"], str)
        and all(map(is_size, (part["number"], part["num_bytes"])))
    )


def _problem(file: Place, record: Any, ends: dict[int, list[tuple[int, int]]]) -> str | None:
    """The problem with the description of an array in slices, or None. Adds where its slices lie to `ends`."""
    if not isinstance(record, dict) or set(record) != _SLICED or {type(record["key"]), type(record["dtype"])} != {str}:
        return f"it is not described by {', '.join(sorted(_SLICED))}"
    key, shape, slices = record["key"], record["shape"], record["slices"]
    if not isinstance(shape, list) or not 0 < len(shape) <= _MAX_RANK or not all(is_size(size) and size for size in shape):
        return f"{key!r} has no shape that could be cut"
    if not isinstance(slices, list) or not all(isinstance(each, dict) and set(each) == _SLICE for each in slices):
        return f"the slices of {key!r} are not described by {', '.join(sorted(_SLICE))}"
    itemsize = dtype_of(file, record).itemsize
    for each in slices:
        lists = (each["start"], each["sizes"], each["crc32"])
        if not all(isinstance(numbers, list) and all(map(is_size, numbers)) for numbers in lists) or 0 in each["sizes"]:
            return f"a slice of {key!r} has sizes that are not integers of at least 0"
        if len(each["start"]) != len(shape) or len(each["sizes"]) != len(shape):
            return f"a slice of {key!r} has another number of axes than the array"
        if len(each["crc32"]) != num_blocks(each["sizes"], itemsize):
            return f"a slice of {key!r} has {len(each['crc32'])} checksums, but {num_blocks(each['sizes'], itemsize)} blocks"
        if not is_size(each["part"]) or each["part"] not in ends or not is_size(each["offset"]):
            return f"a slice of {key!r} is in no part"
        ends[each["part"]].append((each["offset"], each["offset"] + math.prod(each["sizes"]) * itemsize))
    return None if is_grid(map(slice_box, slices), shape) else f"the slices of {key!r} do not have each of its elements once"


def slice_box(record: Mapping[str, Any]) -> Box:
    """Return the box of a slice that a manifest describes."""
    return tuple((start, start + size) for start, size in zip(record["start"], record["sizes"], strict=True))


def _check_part(file: Place, folder: Place, part: Mapping[str, Any], ranges: Sequence[tuple[int, int]]) -> None:
    path, num_bytes = folder / part_name(part["number"]), part["num_bytes"]
    by = f", which {part['writer']} has written," if part["writer"] else ""
    if [0, *(end for _, end in ranges)] != [*(start for start, _ in ranges), num_bytes]:
        raise DamagedCheckpointError(
            f"{file} is damaged: the slices in {path.name} do not follow each other up to byte {num_bytes}."
        )
    try:
        size = path.stat().st_size
    except OSError as error:
        if not is_damage(error):
            raise CheckpointError(str(error)) from error
        raise DamagedCheckpointError(f"{path}{by} is missing ({error}); it should have {num_bytes} bytes.") from error
    if size != num_bytes:
        raise DamagedCheckpointError(f"{path}{by} is damaged: it has {size} bytes, but should have {num_bytes}.")
