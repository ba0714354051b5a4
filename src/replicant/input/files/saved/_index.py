"""`snapshot.json`, which says what a folder of saved elements holds. Whoever wrote it is not trusted."""

import itertools
import json
import re
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from ...._untrusted_json import read_json
from ...._whole_file import open_regular, write_whole
from ....errors import DatasetError
from ...graph._structure import STRING, TensorSpec
from ._save_folders import is_run

_VERSION = 1
_INDEX = "snapshot.json"
_FILE = re.compile(r"shard--?\d+")
_COMPRESSIONS = ("", "GZIP")
_MOST_BYTES = 1 << 30


def is_saved(path: Path) -> bool:
    """Return whether there is a saved dataset."""
    return (path / _INDEX).exists()


def write_index(path: Path, run: str, compression: str, contents: dict[str, Any]) -> None:
    """Name the folder of a save, so that readers find it from now on.

    Raises:
        OSError: If the file cannot be written.
    """
    write_whole(path / _INDEX, json.dumps({"version": _VERSION, "run": run, "compression": compression, **contents}))


def index_of(path: Path) -> dict[str, Any]:
    """Return what `save` wrote last of all.

    Raises:
        DatasetError: If there is nothing, it is damaged, or another version wrote it.
    """
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


def current_run(path: Path) -> str | None:
    """Return the folder of the last save, which the next one replaces, or None."""
    try:
        run = _read_index(path)["run"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return run if is_run(run) else None


def _read_index(path: Path) -> Any:
    with open_regular(path / _INDEX) as file:
        return read_json(file.read(_MOST_BYTES + 1), _MOST_BYTES)


def _is_index(index: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether this is what `save` writes. A stranger may have written it, so it names no file elsewhere."""
    try:
        elements, shards = index["elements"], index["shards"]
        counts = [n for shard in shards for block in shard["blocks"] for n in block]
        leaves = [(dtype_of(leaf["dtype"]), size) for leaf in elements["leaves"] for size in [0, *leaf["shape"]]]
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
            and (nesting is None or rebuilt(nesting, elements["leaves"]) is not None)
        )
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return False


def _follow(blocks: Any) -> bool:
    """Whether records begin one behind the other, from the beginning of a file on, and hold at least an element each."""
    begins, counts = zip(*blocks, strict=True)
    numbers = all(type(n) is int and n >= 0 for n in (*begins, *counts))
    return numbers and begins[0] == 0 and all(counts) and all(a < b for a, b in itertools.pairwise(begins))


def dtype_of(name: str) -> np.dtype:
    """Return the dtype with this name."""
    return STRING if name == "string" else np.dtype(name)


def nesting_of(numbered: Any) -> Any:
    """Return a structure as JSON: tuples, dicts of texts, and the numbers of leaves. None for any other structure."""
    if isinstance(numbered, int):
        return numbered
    if type(numbered) is tuple:
        parts = [nesting_of(each) for each in numbered]
        return None if None in parts else {"tuple": parts}
    if type(numbered) is dict and all(isinstance(key, str) for key in numbered):
        parts = {key: nesting_of(each) for key, each in numbered.items()}
        return None if None in parts.values() else {"dict": parts}
    return None


def rebuilt(nesting: Any, leaves: list[TensorSpec]) -> Any:
    """Return the structure that `nesting_of` has described, of these leaves."""
    if isinstance(nesting, int):
        return leaves[nesting]
    if "tuple" in nesting:
        return tuple(rebuilt(each, leaves) for each in nesting["tuple"])
    return {key: rebuilt(each, leaves) for key, each in nesting["dict"].items()}
