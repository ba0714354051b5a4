"""`load`: the elements that `save` wrote, of one file per shard, which `snapshot.json` names."""

import dataclasses
import os
import weakref
import zlib
from pathlib import Path
from typing import Any, BinaryIO

from ...._whole_file import open_regular
from ....errors import DatasetError
from ....storage._counts import current_counts
from ...graph._blocks import Block
from ...graph._graph import NOT_COMPARED, Counting, Cursor, State
from ...graph._structure import TensorSpec, flatten, show_structure
from ...sources._sources import Counted
from .._limits import MAX_RECORD_BYTES, too_large
from ..records._tfrecord import read_record
from ._block_bytes import decode_block
from ._index import dtype_of, index_of, rebuilt
from ._records import RecordsByNumber


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
    spec: Any = dataclasses.field(default=None, metadata=NOT_COMPARED)
    folder: str = ""
    max_record_bytes: int = MAX_RECORD_BYTES

    @property
    def label(self) -> str:
        return f"load({self.folder}, {self.size} elements)"

    def open(self, state: State | None = None) -> Cursor:
        return SavedCursor(self, state["next"] if state else 0)


class SavedCursor(Counting):
    """Reads one record at a time. The position is the number of the next element."""

    def __init__(self, node: Saved, position: int) -> None:
        super().__init__(position, node.size)
        self.node = node
        self.counts = current_counts()
        self.records = RecordsByNumber(count for _, count in node.shard.blocks)
        self.file: BinaryIO | None = None
        self.close_file: weakref.finalize | None = None

    def pull(self, limit: int) -> Block | None:
        block = self.records.take(self.position, limit, self._read)
        self.position += block.size if block else 0
        return block

    def _read(self, number: int) -> Block:
        """A record, which ends where the next one begins, or the file ends."""
        shard = self.node.shard
        (at, count), *after = shard.blocks[number : number + 2]
        try:
            if self.file is None:
                self.file = open_regular(shard.path)
                self.close_file = weakref.finalize(self, self.file.close)  # even if an iterator is dropped without `close`
            size = os.fstat(self.file.fileno()).st_size
            end = after[0][0] if after else size
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

    def close(self) -> None:
        if self.close_file is not None:
            self.close_file()
            self.file = None


def load(path: Path, element_spec: Any, compression: str, max_record_bytes: int = MAX_RECORD_BYTES) -> list[Saved]:
    """Return the shards of a saved dataset: at least one, which may be empty.

    Records that are compressed may have ``max_record_bytes`` at most. Others have no more than their file.

    Raises:
        DatasetError: If there is none, it is damaged, or it is not what was expected.
    """
    index = index_of(path)
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


def _spec(saved: dict[str, Any], expected: Any, path: Path) -> Any:
    """The spec of the elements: as saved, or as the user gives it."""
    leaves = [TensorSpec(tuple(each["shape"]), dtype_of(each["dtype"])) for each in saved["leaves"]]
    if expected is None:
        if saved["nesting"] is None and leaves:
            raise DatasetError(
                f"load: the elements in {str(path)!r} are of the structure {saved['structure']}, which a file cannot hold. "
                "Give their `element_spec`."
            )
        return None if saved["nesting"] is None else rebuilt(saved["nesting"], leaves)
    wanted, structure = flatten(expected)
    if show_structure(structure) != saved["structure"] and leaves:
        raise DatasetError(
            f"load: element_spec has the structure {show_structure(structure)}, but the elements in {str(path)!r} have "
            f"{saved['structure']}. Leave it out."
        )
    for one, other in zip(wanted, leaves, strict=bool(leaves)):
        if leaves and not fits(one, other):
            raise DatasetError(f"load: element_spec has {one}, but the elements in {str(path)!r} have {other}. Leave it out.")
    return expected


def fits(wanted: TensorSpec, saved: TensorSpec) -> bool:
    """Return whether elements that were saved with a spec have what the user expects."""
    if wanted.dtype != saved.dtype or len(wanted.shape) != len(saved.shape):
        return False
    return all(size is None or size == its for size, its in zip(wanted.shape, saved.shape, strict=True))
