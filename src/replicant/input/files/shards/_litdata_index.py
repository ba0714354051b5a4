"""The file index.json of a folder of LitData's chunks."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from ...._untrusted_json import read_json
from ....errors import DatasetError
from .._small_files import NotJsonError, is_below, joined, json_file
from ._litdata_leaves import Leaf, leaf_of

METHOD = "LitDataDataset"
_MOST_BYTES = 1 << 28  # of an index
_MOST_RAW = 1 << 32  # bytes of a chunk, whose offsets have 32 bits
_LEVELS = (None, "chunk", "batch", "sample")


@dataclasses.dataclass(frozen=True)
class Chunk:
    """One chunk: its file, the number of its items, its bytes once the file is decompressed, and its number of token ids."""

    path: str
    items: int
    size: int
    dim: int | None


@dataclasses.dataclass(frozen=True)
class LitIndex:
    """What an index says.

    Args:
        path: Its own path.
        chunks: The chunks.
        tree: The structure of an item, with numbers of ``formats`` as its leaves.
        formats: How LitData has written each value.
        level: What is compressed by zstd: "chunk", "batch" or "sample"; "" if nothing is.
        of_tokens: Whether chunks hold token ids, one behind the other.
    """

    path: str
    chunks: tuple[Chunk, ...]
    tree: Any
    formats: tuple[str, ...]
    level: str
    of_tokens: bool

    def leaves(self, names: tuple[str, ...] | None) -> tuple[Any, dict[int, Leaf]]:
        """Return the structure of what is read of an item, and what reads each of its values.

        Raises:
            DatasetError: If there is no value of such a name, or one is not read.
        """
        tree = self.tree
        if names is not None:
            has = list(tree) if isinstance(tree, dict) else []
            if missing := [name for name in names if name not in has]:
                told = has or "none, because items are not dicts"
                raise DatasetError(f"{METHOD}: there is no column {missing[0]!r} in {self.path!r}. Its columns are {told}.")
            tree = {name: tree[name] for name in names}
        found: dict[int, Leaf] = {}
        for number, name in _named(tree, ""):
            try:
                found[number] = leaf_of(name or "the item", self.formats[number])
            except DatasetError as error:
                raise DatasetError(f"{METHOD}: {name or 'the item'!r} in {self.path!r} {error}") from error
        return tree, found


def _named(tree: Any, name: str) -> Iterator[tuple[int, str]]:
    if isinstance(tree, int):
        yield tree, name
        return
    for key, child in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from _named(child, f"{name}/{key}" if name else str(key))


def read_index(folder: str) -> LitIndex:
    """Return what the index of a folder says.

    Raises:
        DatasetError: If it is missing, damaged, or says something that is not read.
    """
    path = joined(folder, "index.json")
    try:
        found = json_file(
            METHOD, path, _MOST_BYTES, "Pass the path or URL of a folder that LitData has written, or a list of them."
        )
    except NotJsonError as error:
        raise _wrong(path, str(error)) from error
    config = found.get("config") if isinstance(found, dict) else None
    if not isinstance(config, dict) or not isinstance(found.get("chunks"), list):
        raise _wrong(path, "it has no 'config' and list of 'chunks'")
    loader, formats = config.get("item_loader") or "PyTreeLoader", config.get("data_format")
    if config.get("encryption"):
        raise _refused(path, "its chunks are encrypted")
    if loader not in ("PyTreeLoader", "TokensLoader"):
        raise _refused(path, f"its chunks are for {loader!r}, and those of PyTreeLoader and TokensLoader are read")
    if not found["chunks"]:
        return LitIndex(path, (), (), (), "", loader == "TokensLoader")
    if not isinstance(formats, list) or not all(isinstance(each, str) for each in formats):
        raise _wrong(path, f"its data_format is {formats!r}, which is not a list of texts")
    level = _level(path, config)
    chunks = [_chunk(path, folder, number, each) for number, each in enumerate(found["chunks"])]
    if len({chunk.path for chunk in chunks}) < len(chunks):
        raise _wrong(path, "it has a chunk twice")
    tree, count = _tree(path, config.get("data_spec"))
    if count != len(formats):
        raise _wrong(path, f"its data_spec has {count} values, and its data_format {len(formats)}")
    return LitIndex(path, tuple(chunks), tree, tuple(formats), level, loader == "TokensLoader")


def _wrong(path: str, what: str) -> DatasetError:
    return DatasetError(f"{METHOD}: {path!r} is not an index of LitData: {what}. Copy or write the folder again.")


def _refused(path: str, what: str) -> DatasetError:
    return DatasetError(f"{METHOD}: {path!r} says that {what}. Write the folder again, by `litdata.optimize` without that.")


def _level(path: str, config: dict[str, Any]) -> str:
    compression, level = config.get("compression"), config.get("compression_level")
    if compression is None:
        return ""
    if not isinstance(compression, str) or compression.partition(":")[0] != "zstd" or level not in _LEVELS:
        raise _refused(path, f"its chunks are compressed by {compression!r} ({level!r}), and zstd is read")
    return level or "chunk"


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST_RAW


def _chunk(path: str, folder: str, number: int, chunk: Any) -> Chunk:
    where = f"chunk {number}"
    if not isinstance(chunk, dict) or not (_is_count(chunk.get("chunk_bytes")) and _is_count(chunk.get("chunk_size"))):
        raise _wrong(path, f"{where} has no number of items and bytes")
    name, dim = chunk.get("filename"), chunk.get("dim")
    if not isinstance(name, str) or not is_below(name):
        raise _wrong(path, f"{where} is {name!r}, which is not below the folder")
    if dim is not None and not _is_count(dim):
        raise _wrong(path, f"{where} has {dim!r} token ids")
    return Chunk(joined(folder, name), chunk["chunk_size"], chunk["chunk_bytes"], dim)


def _tree(path: str, text: Any) -> tuple[Any, int]:
    """The structure that PyTorch's text says, with the numbers of the values as its leaves, and how many there are."""
    try:
        version, found = read_json(text.encode(), _MOST_BYTES)
    except (AttributeError, TypeError, ValueError) as error:
        raise _wrong(path, f"its data_spec is not a structure ({error})") from error
    if version != 1:
        raise _wrong(path, f"its data_spec has version {version!r}, and 1 is read")
    numbers = iter(range(1 << 20))
    return _branch(path, found, numbers), next(numbers)


def _branch(path: str, node: Any, numbers: Iterator[int]) -> Any:
    kind = node.get("type", "") if isinstance(node, dict) else ""
    children = node.get("children_spec") if isinstance(node, dict) else None
    if not isinstance(children, list):
        raise _wrong(path, "its data_spec is not a structure")
    if kind is None and not children:
        return next(numbers)
    if kind in ("builtins.list", "builtins.tuple"):
        return tuple(_branch(path, child, numbers) for child in children)
    if kind == "builtins.dict":
        keys = _keys(path, node.get("context"))
        if len(keys) == len(children):
            return {key: _branch(path, child, numbers) for key, child in zip(keys, children, strict=True)}
    raise _refused(path, f"items hold {kind!r}, and dicts whose keys are texts, lists and tuples are read")


def _keys(path: str, text: Any) -> list[str]:
    try:
        keys = read_json(text.encode(), _MOST_BYTES)
    except (AttributeError, ValueError) as error:
        raise _wrong(path, f"its data_spec has a dict without keys ({error})") from error
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or len({*keys}) < len(keys):
        raise _refused(path, f"items hold dicts of the keys {keys!r}, and texts are read")
    return keys
