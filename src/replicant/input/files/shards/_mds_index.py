"""The file index.json of a folder of MDS shards."""

import dataclasses
import re
from pathlib import Path
from typing import Any

from ....errors import DatasetError
from ....storage._urls import is_url
from .._small_files import NotJsonError, is_below, joined, json_file

_METHOD = "MDSDataset"
_MOST_BYTES = 1 << 28  # of an index, which takes some hundred bytes for each shard
_MOST_RAW = 1 << 32  # bytes of a shard, whose offsets have 32 bits
COMPRESSIONS = {"zstd", "gz", "bz2"}


@dataclasses.dataclass(frozen=True)
class FileFacts:
    """A file's size in bytes and its digests, by the names of their algorithms."""

    path: str
    size: int
    hashes: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Column:
    """One column of all samples. Values have ``size`` bytes, or each says it if this is None."""

    name: str
    encoding: str
    size: int | None


@dataclasses.dataclass(frozen=True)
class Shard:
    """One shard: the file that is read, what it holds once it is decompressed, and its number of samples."""

    file: FileFacts
    raw: FileFacts
    compression: str
    samples: int


def read_index(folder: str) -> tuple[list[Shard], tuple[Column, ...]]:
    """Return the shards of a folder, and the columns that all of them have. Without samples, there are neither.

    Raises:
        DatasetError: If its index.json is missing, damaged or of another format.
    """
    path = joined(folder, "index.json")
    found = _loaded(path)
    if not isinstance(found, dict) or not isinstance(found.get("shards"), list):
        raise _wrong(path, "it has no list of shards in 'shards'")
    shards: dict[str, Shard] = {}
    columns: tuple[Column, ...] = ()
    for number, each in enumerate(found["shards"]):
        where = f"shard {number}"
        if not isinstance(each, dict):
            raise _wrong(path, f"{where} is not an object")
        its = _columns(path, where, each)
        columns = columns or its
        if its != columns:
            raise _wrong(path, f"{where} has other columns than shard 0: {listed(its)} instead of {listed(columns)}")
        shard = _shard(path, where, folder, each)
        if shard.file.path in shards:
            raise _wrong(path, f"{where} is {shard.file.path!r} once more")
        shards[shard.file.path] = shard
    return list(shards.values()), columns


def _loaded(path: str) -> Any:
    remedy = "Pass the path or URL of a folder that has an index.json, or a list of them. Patterns are not looked up."
    try:
        return json_file(_METHOD, path, _MOST_BYTES, remedy)
    except NotJsonError as error:
        raise _wrong(path, str(error)) from error


def _wrong(path: str, what: str) -> DatasetError:
    return DatasetError(f"{_METHOD}: {path!r} is not an index of MDS shards: {what}. Copy or write the folder again.")


def listed(columns: tuple[Column, ...]) -> str:
    """Return the names and encodings of columns, for messages."""
    return ", ".join(f"{each.name} ({each.encoding})" for each in columns)


def _columns(path: str, where: str, shard: dict[str, Any]) -> tuple[Column, ...]:
    if shard.get("format") != "mds" or shard.get("version") != 2:
        raise _wrong(path, f"{where} has the format {shard.get('format')!r}, version {shard.get('version')!r}; expected 'mds', 2")
    names, encodings, sizes = (shard.get(f"column_{kind}") for kind in ("names", "encodings", "sizes"))
    if not (
        isinstance(names, list)
        and isinstance(encodings, list)
        and isinstance(sizes, list)
        and len(names) == len(encodings) == len(sizes) == len(set(map(repr, names)))
        and all(isinstance(each, str) for each in [*names, *encodings])
        and all(size is None or _is_count(size) for size in sizes)
    ):
        raise _wrong(path, f"{where} has no lists of column names, encodings and sizes that fit")
    return tuple(Column(name, encoding, size or None) for name, encoding, size in zip(names, encodings, sizes, strict=True))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _shard(path: str, where: str, folder: str, shard: dict[str, Any]) -> Shard:
    if not _is_count(shard.get("samples")):
        raise _wrong(path, f"{where} has {shard.get('samples')!r} samples")
    raw = _facts(path, f"{where}, raw_data", folder, shard.get("raw_data"))
    if shard["samples"] and 4 * (shard["samples"] + 2) > raw.size:
        raise _wrong(path, f"{where} has {shard['samples']} samples in {raw.size} bytes, and their offsets alone take more")
    if raw.size >= _MOST_RAW:
        raise _wrong(path, f"{where} has {raw.size} bytes, and the offsets of samples have 32 bits")
    if shard.get("zip_data") is None or (not is_url(raw.path) and Path(raw.path).exists()):
        return Shard(raw, raw, "", shard["samples"])
    compression = re.sub(r":\d+$", "", str(shard.get("compression")))
    if compression not in COMPRESSIONS:
        raise DatasetError(
            f"{_METHOD}: {path!r} says that {where} is compressed by {compression!r}. Only zstd, gz and bz2 are read: decompress "
            "it in its folder, or write it again."
        )
    return Shard(_facts(path, f"{where}, zip_data", folder, shard["zip_data"]), raw, compression, shard["samples"])


def _facts(path: str, where: str, folder: str, found: Any) -> FileFacts:
    if not isinstance(found, dict) or not isinstance(found.get("basename"), str) or not _is_count(found.get("bytes")):
        raise _wrong(path, f"{where} has no name and size of a file")
    name, hashes = found["basename"], found.get("hashes") or {}
    if not is_below(name):
        raise _wrong(path, f"{where} is {name!r}, which is not below the folder")
    if not isinstance(hashes, dict) or not all(isinstance(value, str) for value in hashes.values()):
        raise _wrong(path, f"{where} has hashes that are not texts")
    return FileFacts(joined(folder, name), found["bytes"], hashes)
