"""The part of a manifest that is not about arrays, checked before anything relies on it.

A checksum reveals damage, but anybody can compute one, so a manifest that was written by hand can say anything.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import DamagedCheckpointError
from ..replicas._copies import VariableAggregation
from .folders._atomic_at_store import MANIFEST
from .folders._locations import Place
from .format._storage import read_manifest
from .values._values import COPIES, is_number_text

EXTRA = ".extra/"  # prefix of arrays that belong to no object; no object's name begins with a dot


def read_checked(path: Place) -> dict[str, Any]:
    """Read the manifest of a ``Checkpoint`` at `path`.

    Raises:
        CheckpointError: If it is missing or damaged, or is not what ``Checkpoint`` writes. The message names the file.
    """
    manifest = read_manifest(path)
    check_meta(path, manifest)
    return manifest


def check_meta(path: Place, manifest: dict[str, Any]) -> None:
    """Check that the manifest is one that ``Checkpoint`` writes.

    Raises:
        DamagedCheckpointError: If it is not.
    """
    meta, records = manifest["meta"], {record["key"]: record for record in (*manifest["arrays"], *manifest["sliced"])}

    def require(holds: bool, what: str) -> None:
        if not holds:
            raise DamagedCheckpointError(f"{path / MANIFEST} is damaged: {what}.")

    require(isinstance(meta, dict), f"its meta is a {type(meta).__name__}, not a JSON object")
    for name, (is_right, what) in _FIELDS.items():
        require(name in meta and is_right(meta[name]), f"{name!r} in its meta is {_shown(meta.get(name))}, not {what}")
    _check_names(meta, records, require)
    for record in manifest["sliced"]:
        key = record["key"]
        require(
            not key.startswith(".") and key not in meta["random_keys"] and key not in meta["copies"] and not key.endswith(COPIES),
            f"{_shown(key)} is in slices, but only variables with one value are",
        )
    for key, rule in meta["copies"].items():
        one, stack = records.get(key), records.get(key + COPIES)
        require(
            one is not None
            and stack is not None
            and rule in VariableAggregation.__members__
            and one["dtype"] == stack["dtype"]
            and len(stack["shape"]) > 0
            and stack["shape"][1:] == one["shape"],
            f"the copies of {key!r} ({_shown(rule)}) are not a stack of its shape and dtype",
        )


def _check_names(meta: Mapping[str, Any], records: Mapping[str, Any], require: Callable[[bool, str], None]) -> None:
    """Check that every value has one place, and that what refers to an array finds it."""
    extras = {f"{EXTRA}{i}" for i in range(min(meta["num_extra_arrays"], len(records) + 1))}
    found = {key for key in records if key.startswith(".")}
    require(extras == found, f"it says that there are {meta['num_extra_arrays']} extra arrays, but has {len(found)}")
    stray = {key for key in records if key.endswith(COPIES) and key.removesuffix(COPIES) not in meta["copies"]}
    require(not stray, f"{_shown(min(stray, default=''))} are not the copies of any variable")
    places = (records, meta["numbers"], meta["states"])
    names = [key for place in places for key in place]
    require(len(names) == len(set(names)), "it has two values with the same name")
    absent = sorted(set(meta["random_keys"]) - set(records))
    require(not absent, f"the random key {_shown(absent[0] if absent else '')} has no array")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"type", "value"} and is_number_text(value["type"], value["value"])


def _dict_of(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(is_right, value.values()))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "save_counter": (_is_count, "a number of checkpoints"),
    "saved_at": (_is_time, "a time in seconds"),
    "num_extra_arrays": (_is_count, "a number of arrays"),
    "objects": (_dict_of(lambda value: isinstance(value, dict)), "a JSON object of JSON objects"),
    "extra": (_dict_of(lambda _: True), "a JSON object"),
    "numbers": (_dict_of(_is_number), "a JSON object of Python numbers with their types"),
    "states": (_dict_of(lambda _: True), "a JSON object"),
    "random_keys": (_dict_of(_is_text), "a JSON object of the names of random number generators"),
    "copies": (_dict_of(_is_text), "a JSON object of aggregations"),
}


def _shown(value: Any) -> str:
    """The beginning of a value, for a message."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
