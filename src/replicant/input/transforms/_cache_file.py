"""`cache(filename)`: one pass in one file, which other processes and later runs can replay.

The file consists of records as in `_records` (length, checksums): blocks of elements, then an index as JSON, and at the very
end the place of the index. It is written under another name and renamed when complete, so a file with this name is always whole.
"""

import contextlib
import functools
import itertools
import json
import os
import struct
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..._untrusted_json import read_json
from ..._whole_file import WholeFile, open_regular
from ...errors import DatasetError
from ...storage._counts import current_counts
from ..files.records._tfrecord import read_record, record_parts
from ..files.saved._block_bytes import decode_block
from ..files.saved._records import RecordsByNumber, RecordWriter
from ..graph._blocks import Block
from ..graph._graph import Node, State, describe, sample
from ..graph._structure import flatten, show_structure
from ._pipeline_fingerprint import first_difference, parts
from .memory._cache import Filling, Kept, Store

_VERSION = 3
_TAIL = struct.Struct("<Q8s")
_MAGIC = b"replicnt"
_MOST_DEPTH = 500  # of the position where the pass began, which is one deeper for each transform


class FileStore(Store):
    """Keeps a pass over ``node`` in the file with this name."""

    def __init__(self, path: str, node: Node, method: str = "cache") -> None:
        self.path, self.node, self.method = Path(path), node, method

    @property
    def pipeline(self) -> str:
        return describe(self.node)

    @functools.cached_property
    def structure(self) -> Any:
        """The structure of the elements, which the file cannot hold."""
        return flatten(sample(self.node))[1]

    @functools.cached_property
    def parts(self) -> list[tuple[str, str]]:
        """Fingerprints of what the elements depend on, taken before anything is read; functions may change what they capture."""
        return parts(self.node)

    def find(self) -> Kept | None:
        return _KeptFile(self) if self.path.exists() else None

    def fill(self) -> Filling:
        return _FileFilling(self)


class _FileFilling(Filling):
    """Writes to a file of its own, which it finally renames or removes."""

    def __init__(self, store: FileStore) -> None:
        self.store = store
        _ = store.parts
        with self._telling():
            self.file = WholeFile(store.path)
        self.writer = RecordWriter(self.file)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Turn errors of the disk into errors that name the file."""
        try:
            yield
        except OSError as error:
            raise DatasetError(
                f"{self.store.method}: cannot write {str(self.store.path)!r}: {error.strerror}. None of it is kept. Make room "
                "there, or use another name."
            ) from error

    def add(self, block: Block) -> None:
        self.store.structure = block.structure
        with self._telling():
            self.writer.add(block)

    def complete(self, begin: State) -> Kept | None:
        with self._telling():
            self.writer.flush()
        if not self.writer.blocks:
            self.discard()
            return None
        index = {
            "version": _VERSION,
            "pipeline": self.store.pipeline,
            "parts": self.store.parts,
            "structure": show_structure(self.store.structure),
            "begin": begin,
            "blocks": self.writer.blocks,
        }
        at = self.file.tell()
        with self._telling():
            self.file.writelines(record_parts(json.dumps(index).encode()))
            self.file.write(_TAIL.pack(at, _MAGIC))
            self.file.flush()
        kept = self.store.find()
        if kept is None or kept.begin != begin:  # else another iterator was first
            with self._telling():
                self.file.finish()
            kept = self.store.find()
        self.discard()
        return kept

    def discard(self) -> None:
        self.file.discard()


class _KeptFile(Kept):
    """Reads one record at a time.

    Raises:
        DatasetError: If the file is damaged, or was written by another pipeline.
    """

    def __init__(self, store: FileStore) -> None:
        self.path, self.method = store.path, store.method
        self.counts = current_counts()
        try:
            self.file = open_regular(self.path)
        except OSError as error:
            raise self._refused(f"cannot be read: {error.strerror}.") from error
        self.close = weakref.finalize(self, self.file.close)
        self.size = self.file.seek(0, os.SEEK_END)
        index, end = self._index()
        written_by = index["pipeline"]
        if written_by != store.pipeline:
            raise self._refused(f"was written by another pipeline: {written_by!r}. This one is: {store.pipeline!r}.")
        if index["version"] != _VERSION:
            raise self._refused(f"was written by another version of Replicant (format {index['version']}, not {_VERSION}).")
        own_parts = store.parts
        self.structure = store.structure
        if show_structure(self.structure) != index["structure"]:
            raise self._refused(
                f"holds elements like {index['structure']}, but the pipeline makes elements like {show_structure(self.structure)}."
            )
        if (what := first_difference(index["parts"], own_parts)) is not None:
            raise self._refused(f"holds the elements of another pipeline with the same steps: {what} differ.")
        self.begin = index["begin"]
        self.blocks = index["blocks"]
        self.offsets = [*(offset for offset, _ in self.blocks), end]
        self.records = RecordsByNumber(count for _, count in self.blocks)

    def _index(self) -> tuple[dict[str, Any], int]:
        """The index, and where the records end."""
        if self.size >= _TAIL.size:
            self.file.seek(self.size - _TAIL.size)
            at, magic = _TAIL.unpack(self.file.read(_TAIL.size))
            if magic == _MAGIC:
                return self._checked(self._record(at, self.size - _TAIL.size), at), at
        raise self._refused("is not a cache file, or was cut off.")

    def _checked(self, record: bytes, end: int) -> dict[str, Any]:
        """The index, whose records follow each other up to the byte ``end``, and hold an element each at least."""
        try:
            index = read_json(record, len(record), most_depth=_MOST_DEPTH)
            index["parts"] = [tuple(part) for part in index["parts"]]
            sound = _is_index(index, end)
        except (LookupError, RecursionError, TypeError, ValueError):
            sound, index = False, {}
        if not sound:
            raise self._refused("is damaged in its index.")
        return index

    def _record(self, at: int, end: int) -> bytes:
        """The record that begins and ends there."""
        record = None
        if at < end <= self.size:
            self.file.seek(at)
            record = read_record(self.file, end - at)
        if record is None:
            raise self._refused(f"is damaged in the record at byte {at}.")
        self.counts.add("file_bytes", len(record))
        return record

    def _refused(self, what: str) -> DatasetError:
        return DatasetError(f"{self.method}: {str(self.path)!r} {what} Delete the file to fill it again, or use another name.")

    def read(self, start: int, limit: int) -> Block | None:
        return self.records.take(start, limit, self._block)

    def _block(self, number: int) -> Block:
        at, end = self.offsets[number : number + 2]
        try:
            block = decode_block(self._record(at, end), self.structure)
        except DatasetError:
            raise
        except ValueError as error:
            raise self._refused(f"is damaged in the record at byte {at}: {error}.") from error
        if block.size != self.blocks[number][1]:
            raise self._refused(f"is damaged in the record at byte {at}: its number of elements is not that of its index.")
        return block


def _is_index(index: dict[str, Any], end: int) -> bool:
    begins, counts = zip(*index["blocks"], strict=True)
    texts = [index["pipeline"], index["structure"], *(text for part in index["parts"] for text in part)]
    return (
        all(type(n) is int and n >= 0 for n in (*begins, *counts))
        and all(counts)
        and sum(counts) < 1 << 62
        and begins[0] == 0
        and all(a < b for a, b in itertools.pairwise((*begins, end)))
        and all(isinstance(text, str) for text in texts)
        and all(len(part) == 2 for part in index["parts"])
        and isinstance(index["begin"], dict)
        and type(index["version"]) is int
    )
