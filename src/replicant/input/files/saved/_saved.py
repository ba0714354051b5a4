"""`save` and `load`: a folder of one file per shard, and `snapshot.json`, which names them.

The files consist of records as in `records/_tfrecord` (length, checksums), each of which holds some elements. They are written in a
new folder below, and then `snapshot.json` is replaced at once. So a reader sees all of a save or nothing of it, whenever a writer
ends. What a writer that was killed has left there, the next save removes (`_save_folders.py`).
"""

import dataclasses
import itertools
import json
import os
import re
import shutil
import weakref
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import jax
import numpy as np

from ...._untrusted_json import read_json
from ...._whole_file import close_after_failure, open_regular, write_whole
from ....errors import DatasetError
from ....storage._counts import current_counts
from ...graph._blocks import Block, Boxed, Column, Dense, concatenate
from ...graph._graph import Cursor, Node, State
from ...graph._structure import STRING, DatasetSpec, TensorSpec, flatten, show_structure, spec_of
from ...sources._sources import Counted
from .._limits import MAX_RECORD_BYTES, too_large
from ..records._tfrecord import read_record, record_parts
from ._block_bytes import decode_block, encoded_blocks
from ._save_folders import is_run, new_run, remove_abandoned

_VERSION = 1
_INDEX = "snapshot.json"
_FILE = re.compile(r"shard--?\d+")
_COMPRESSIONS = ("", "GZIP")
_ELEMENTS_PER_RECORD = 256
_MOST_INDEX = 1 << 30  # bytes
_BYTES_PER_RECORD = 8 << 20  # of arrays that arrive one by one, which can be whole batches


@dataclasses.dataclass(frozen=True)
class Shard:
    """One file of a saved dataset: its name, and where each record begins and how many elements it holds."""

    path: str
    blocks: tuple[tuple[int, int], ...]
    compression: str

    @property
    def size(self) -> int:
        """The number of elements."""
        return sum(count for _, count in self.blocks)


@dataclasses.dataclass(frozen=True, eq=False)
class Saved(Counted):
    """The elements of one shard."""

    shard: Shard = Shard("", (), "")
    spec: Any = None
    folder: str = ""
    max_record_bytes: int = MAX_RECORD_BYTES

    @property
    def label(self) -> str:
        return f"load({self.folder}, {self.size} elements)"

    def open(self, state: State | None = None) -> Cursor:
        return SavedCursor(self, state["next"] if state else 0)


class SavedCursor(Cursor):
    """Reads one record at a time. The position is the number of the next element."""

    def __init__(self, node: Saved, position: int) -> None:
        self.node, self.position = node, position
        self.counts = current_counts()
        self.numbers = np.cumsum([0, *(count for _, count in node.shard.blocks)])  # of the first element of each, and of the end
        self.file: BinaryIO | None = None
        self.current: tuple[int, Block] | None = None

    def pull(self, limit: int) -> Block | None:
        if self.position >= self.node.size:
            return None
        number = int(np.searchsorted(self.numbers, self.position, side="right")) - 1
        if self.current is None or self.current[0] != number:
            blocks = self.node.shard.blocks
            end = blocks[number + 1][0] if number + 1 < len(blocks) else None
            self.current = (number, self._read(*blocks[number], end))
        start = self.position - int(self.numbers[number])
        block = self.current[1].take(slice(start, start + limit))
        self.position += block.size
        return block

    def _read(self, at: int, count: int, end: int | None) -> Block:
        """A record, which ends where the next one begins, or the file ends."""
        shard = self.node.shard
        try:
            if self.file is None:
                self.file = open_regular(shard.path)
                self.close_file = weakref.finalize(self, self.file.close)  # even if an iterator is dropped without `close`
            size = os.fstat(self.file.fileno()).st_size
            end = size if end is None else end
            self.file.seek(at)
            record = read_record(self.file, end - at) if end <= size else None
        except OSError as error:
            raise DatasetError(
                f"load: cannot read {shard.path!r}: {error.strerror}. Another save may have replaced it. Call `load` again."
            ) from error
        self.counts.add("file_bytes", 0 if record is None else len(record))
        block = None if record is None else self._decoded(record, at)
        if block is None or block.size != count:
            raise DatasetError(f"load: {shard.path!r} is damaged in the record at byte {at}. Save the dataset again.")
        return block

    def _decoded(self, record: bytes, at: int) -> Block | None:
        """The elements of a record; None if it holds something else, though its checksums are right."""
        try:
            return decode_block(self._decompressed(record, at) if self.node.shard.compression else record, self.node.structure)
        except DatasetError:
            raise
        except (ValueError, zlib.error):
            return None

    def _decompressed(self, record: bytes, at: int) -> bytes:
        most, inflate = self.node.max_record_bytes, zlib.decompressobj()
        data = inflate.decompress(record, most + 1)
        if len(data) > most:
            raise too_large("load", self.node.shard.path, at, most)
        if not inflate.eof or inflate.unused_data:
            raise ValueError("it is cut off, or something follows it")
        return data

    def skip(self, count: int) -> int:
        skipped = min(count, self.node.size - self.position)
        self.position += skipped
        return skipped

    def reset(self) -> None:
        self.position = 0

    def close(self) -> None:
        if self.file is not None:
            self.close_file()
            self.file = None

    def state(self) -> State:
        return {"next": self.position}


def is_saved(path: Path) -> bool:
    """Return whether there is a saved dataset."""
    return (path / _INDEX).exists()


def load(path: Path, element_spec: Any, compression: str, max_record_bytes: int = MAX_RECORD_BYTES) -> list[Saved]:
    """Return the shards of a saved dataset: at least one, which may be empty.

    Records that are compressed may have ``max_record_bytes`` at most. Others have no more than their file.

    Raises:
        DatasetError: If there is none, it is damaged, or it is not what was expected.
    """
    index = _index_of(path)
    if index["compression"] != compression:
        raise DatasetError(
            f"load: {str(path)!r} was saved with compression={index['compression'] or None!r}. Received: {compression or None!r}. "
            "Give `load` the same."
        )
    spec = _spec(index["elements"], element_spec, path)
    shards = [
        Shard(str(path / index["run"] / each["file"]), tuple((at, count) for at, count in each["blocks"]), compression)
        for each in index["shards"]
    ]
    return [
        Saved(size=shard.size, shard=shard, spec=spec, folder=path.name, max_record_bytes=max_record_bytes)
        for shard in shards or [Shard("", (), "")]
    ]


def _index_of(path: Path) -> dict[str, Any]:
    """What `save` wrote last of all."""
    try:
        index = _read_index(path)
    except OSError as error:
        raise DatasetError(
            f"load: there is no saved dataset in {str(path)!r}: {error.strerror}. Check the path, or call `save`."
        ) from error
    except ValueError:
        index = None
    if isinstance(index, dict) and index.get("version", _VERSION) != _VERSION:
        raise DatasetError(
            f"load: {str(path)!r} was saved by another version of Replicant (format {index['version']}, not {_VERSION})."
        )
    if not _is_index(index):
        raise DatasetError(f"load: {str(path / _INDEX)!r} is damaged. Save the dataset again.")
    return index


def _read_index(path: Path) -> Any:
    with open_regular(path / _INDEX) as file:
        return read_json(file.read(_MOST_INDEX + 1), _MOST_INDEX)


def _is_index(index: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether this is what `save` writes. A stranger may have written it, so it names no file elsewhere."""
    try:
        elements, shards = index["elements"], index["shards"]
        counts = [n for shard in shards for block in shard["blocks"] for n in block]
        leaves = [(_dtype(leaf["dtype"]), size) for leaf in elements["leaves"] for size in [0, *leaf["shape"]]]
        nesting = elements["nesting"]
        return (
            "version" in index
            and is_run(index["run"])
            and index["compression"] in _COMPRESSIONS
            and all(_FILE.fullmatch(shard["file"]) for shard in shards)
            and all(_follow(shard["blocks"]) for shard in shards)
            and len({shard["file"] for shard in shards}) == len(shards)
            and sum(counts) < 1 << 62
            and all(size is None or (type(size) is int and size >= 0) for _, size in leaves)
            and isinstance(elements["structure"], str | None)
            and (nesting is None or _rebuilt(nesting, elements["leaves"]) is not None)
        )
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return False


def _follow(blocks: Any) -> bool:
    """Whether records begin one behind the other, from the beginning of a file on, and hold at least an element each."""
    begins, counts = zip(*blocks, strict=True)
    numbers = all(type(n) is int and n >= 0 for n in (*begins, *counts))
    return numbers and begins[0] == 0 and all(counts) and all(a < b for a, b in itertools.pairwise(begins))


def _spec(saved: dict[str, Any], expected: Any, path: Path) -> Any:
    """The spec of the elements: as saved, or as the user gives it."""
    leaves = [TensorSpec(tuple(each["shape"]), _dtype(each["dtype"])) for each in saved["leaves"]]
    if expected is None:
        if saved["nesting"] is None and leaves:
            raise DatasetError(
                f"load: the elements in {str(path)!r} are of the structure {saved['structure']}, which a file cannot hold. "
                "Give their `element_spec`."
            )
        return None if saved["nesting"] is None else _rebuilt(saved["nesting"], leaves)
    wanted, structure = flatten(expected)
    if show_structure(structure) != saved["structure"] and leaves:
        raise DatasetError(
            f"load: element_spec has the structure {show_structure(structure)}, but the elements in {str(path)!r} have "
            f"{saved['structure']}. Leave it out."
        )
    for one, other in zip(wanted, leaves, strict=bool(leaves)):
        if leaves and not _fits(one, other):
            raise DatasetError(f"load: element_spec has {one}, but the elements in {str(path)!r} have {other}. Leave it out.")
    return expected


def _fits(wanted: TensorSpec, saved: TensorSpec) -> bool:
    if wanted.dtype != saved.dtype or len(wanted.shape) != len(saved.shape):
        return False
    return all(size is None or size == its for size, its in zip(wanted.shape, saved.shape, strict=True))


def _dtype(name: str) -> np.dtype:
    return STRING if name == "string" else np.dtype(name)


def save(node: Node, path: Path, shard_of: Callable[[Any], int] | None, compression: str) -> None:
    """Write all elements below a folder.

    Raises:
        DatasetError: If a file cannot be written.
    """
    try:
        with new_run(path) as folder:
            remove_abandoned(path, lambda: _current_run(path))
            before = _current_run(path)
            index = _written(node, folder, shard_of, compression)
            text = json.dumps({"version": _VERSION, "run": folder.name, "compression": compression, **index})
            write_whole(path / _INDEX, text)
    except OSError as error:
        raise DatasetError(f"save: cannot write to {str(path)!r}: {error.strerror}.") from error
    if before is not None:
        shutil.rmtree(path / before, ignore_errors=True)


def _current_run(path: Path) -> str | None:
    """The folder of the last save, which the next one replaces."""
    try:
        run = _read_index(path)["run"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return run if is_run(run) else None


def _written(node: Node, folder: Path, shard_of: Callable[[Any], int] | None, compression: str) -> dict[str, Any]:
    """What the index says of the elements, which are written here."""
    shards: dict[int, _ShardFile] = {}
    seen = _Seen()
    cursor = node.open()
    try:
        while (block := cursor.pull(_ELEMENTS_PER_RECORD)) is not None:
            seen.add(block)
            for number, part in _parts(block, shard_of):
                if number not in shards:
                    shards[number] = _ShardFile(folder / f"shard-{number:05}", compression)
                shards[number].add(part)
        blocks = [(file.path.name, file.complete()) for _, file in sorted(shards.items())]
    finally:
        cursor.close()
        for file in shards.values():
            file.close()
    return {"elements": seen.described(node), "shards": [{"file": name, "blocks": its} for name, its in blocks]}


def _parts(block: Block, shard_of: Callable[[Any], int] | None) -> list[tuple[int, Block]]:
    """The elements of each shard."""
    if shard_of is None:
        return [(0, block)]
    numbers = np.array([shard_of(element) for element in block.elements()])
    return [(int(number), block.take(np.flatnonzero(numbers == number))) for number in np.unique(numbers)]


class _ShardFile:
    """A file that grows by records."""

    def __init__(self, path: Path, compression: str) -> None:
        self.path, self.compression = path, compression
        self.file = path.open("xb")
        self.blocks: list[tuple[int, int]] = []
        self._wait()

    def _wait(self) -> None:
        self.waiting: list[Block] = []
        self.num_waiting = self.bytes_waiting = 0

    def add(self, block: Block) -> None:
        self.waiting.append(block)
        self.num_waiting += block.size
        self.bytes_waiting += sum(getattr(leaf, "nbytes", 0) for c in block.columns if isinstance(c, Boxed) for leaf in c.refs)
        if self.num_waiting >= _ELEMENTS_PER_RECORD or self.bytes_waiting >= _BYTES_PER_RECORD:
            self._write()

    def _write(self) -> None:
        block = concatenate(self.waiting)
        self._wait()
        for size, data in encoded_blocks(block, _ELEMENTS_PER_RECORD):
            self.blocks.append((self.file.tell(), size))
            self.file.writelines(record_parts(zlib.compress(data) if self.compression else data))

    def complete(self) -> list[tuple[int, int]]:
        if self.waiting:
            self._write()
        self.file.flush()
        os.fsync(self.file.fileno())
        return self.blocks

    def close(self) -> None:
        close_after_failure(self.file)  # after `complete`, nothing waits in memory


class _Seen:
    """The structure and the shapes of the elements so far."""

    def __init__(self) -> None:
        self.structure: Any = None
        self.specs: list[TensorSpec] | None = None

    def add(self, block: Block) -> None:
        if self.structure is not None and self.structure != block.structure:
            raise DatasetError(
                f"save: the elements have different structures: {show_structure(self.structure)}, then "
                f"{show_structure(block.structure)}. Return the same structure for all elements."
            )
        self.structure = block.structure
        found = [_of_column(column) for column in block.columns]
        pairs = zip(self.specs or found, found, strict=True)
        self.specs = [_merged(one, other) for one, other in pairs]

    def described(self, node: Node) -> dict[str, Any]:
        """Return what the index says. Sizes that the dataset calls free, such as that of a batch, stay free."""
        spec = node.spec
        structure, specs = self.structure, self.specs
        if specs is None:
            specs, structure = flatten(spec) if spec is not None else ([], None)
        elif spec is not None and flatten(spec)[1] == structure:
            specs = [_merged(one, other) for one, other in zip(specs, flatten(spec)[0], strict=True)]
        leaves = [{"shape": each.shape, "dtype": "string" if each.dtype == STRING else each.dtype.name} for each in specs]
        nesting = None if structure is None else _nesting(jax.tree_util.tree_unflatten(structure, range(len(specs))))
        return {"structure": structure and show_structure(structure), "nesting": nesting, "leaves": leaves}


def _of_column(column: Column) -> TensorSpec:
    if isinstance(column, Dense) and column.refs.dtype != STRING:
        return TensorSpec(column.refs.shape[1:], column.refs.dtype)
    specs = [spec_of(row) if isinstance(row, str | bytes) or hasattr(row, "dtype") else DatasetSpec(None) for row in column.rows()]
    first = specs[0]
    for other in specs[1:]:
        first = _merged(first, other)
    return first


def _merged(one: TensorSpec, other: TensorSpec) -> TensorSpec:
    if len(one.shape) != len(other.shape):
        raise DatasetError(f"save: a component has {len(one.shape)} dimensions in one element and {len(other.shape)} in another.")
    return TensorSpec(tuple(a if a == b else None for a, b in zip(one.shape, other.shape, strict=True)), one.dtype)


def _nesting(numbered: Any) -> Any:
    """A structure as JSON: tuples, dicts of texts, and the numbers of leaves. None for any other structure."""
    if isinstance(numbered, int):
        return numbered
    if type(numbered) is tuple:
        parts = [_nesting(each) for each in numbered]
        return None if None in parts else {"tuple": parts}
    if type(numbered) is dict and all(isinstance(key, str) for key in numbered):
        parts = {key: _nesting(each) for key, each in numbered.items()}
        return None if None in parts.values() else {"dict": parts}
    return None


def _rebuilt(nesting: Any, leaves: list[TensorSpec]) -> Any:
    if isinstance(nesting, int):
        return leaves[nesting]
    if "tuple" in nesting:
        return tuple(_rebuilt(each, leaves) for each in nesting["tuple"])
    return {key: _rebuilt(each, leaves) for key, each in nesting["dict"].items()}
