"""`save`: a folder of one file per shard, and `snapshot.json`, which names them.

The files consist of records as in `records/_tfrecord` (length, checksums), each of which holds some elements. They are written in a
new folder below, and then `snapshot.json` is replaced at once. So a reader sees all of a save or nothing of it, whenever a writer
ends. What a writer that was killed has left there, the next save removes (`_save_folders.py`).
"""

import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ...._whole_file import close_after_failure
from ....errors import DatasetError
from ...graph._blocks import Block, Column, Dense
from ...graph._graph import Node
from ...graph._structure import STRING, DatasetSpec, TensorSpec, flatten, show_structure, spec_of
from ._index import current_run, nesting_of, write_index
from ._records import ELEMENTS, RecordWriter
from ._save_folders import new_run, remove_abandoned


def save(node: Node, path: Path, shard_of: Callable[[Any], int] | None, compression: str) -> None:
    """Write all elements below a folder.

    Raises:
        DatasetError: If a file cannot be written.
    """
    try:
        with new_run(path) as folder:
            remove_abandoned(path, lambda: current_run(path))
            before = current_run(path)
            write_index(path, folder.name, compression, _written(node, folder, shard_of, compression))
    except OSError as error:
        raise DatasetError(f"save: cannot write to {str(path)!r}: {error.strerror}.") from error
    if before is not None:
        shutil.rmtree(path / before, ignore_errors=True)


def _written(node: Node, folder: Path, shard_of: Callable[[Any], int] | None, compression: str) -> dict[str, Any]:
    """What the index says of the elements, which are written here."""
    shards: dict[int, _ShardFile] = {}
    seen = _Seen()
    cursor = node.open()
    try:
        while (block := cursor.pull(ELEMENTS)) is not None:
            seen.add(block)
            for number, part in _parts(block, shard_of):
                if number not in shards:
                    shards[number] = _ShardFile(folder / f"shard-{number:05}", compression)
                shards[number].writer.add(part)
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
        self.path = path
        self.file = path.open("xb")
        self.writer = RecordWriter(self.file, zlib.compress if compression else bytes)

    def complete(self) -> list[tuple[int, int]]:
        self.writer.flush()
        self.file.flush()
        os.fsync(self.file.fileno())
        return self.writer.blocks

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
        nesting = None if structure is None else nesting_of(jax.tree_util.tree_unflatten(structure, range(len(specs))))
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
