"""``replicant checkpoint diff``: how two files differ, array by array."""

import json
from typing import Any

import numpy as np

from ..._display import columns
from ...checkpoint.weights import Entry, WeightsFile, open_weights
from .._escaped import escaped
from ._show import dtype_name, in_order, shape_text

_HEAD = ("name", "difference", "A", "B")


def diff(first: str, second: str, *, as_json: bool) -> int:
    """Print a line for each array that is only in one file, or differs. Return 1 if there are any.

    Arrays of the same shape and dtype are equal if all their values are; NaN equals NaN.
    """
    with open_weights("A", first) as a, open_weights("B", second) as b:
        found = [
            row
            for name in sorted(a.entries.keys() | b.entries.keys(), key=in_order)
            if (row := _difference(a, b, name)) is not None
        ]
        equal = len(a.entries.keys() & b.entries.keys()) - sum(row["kind"] not in ("only in A", "only in B") for row in found)
    if as_json:
        print(json.dumps({"A": a.path, "B": b.path, "equal": equal, "different": found}, indent=1))
        return int(bool(found))
    print(escaped(f"A: {a.path}, {a.format}\nB: {b.path}, {b.format}"))
    if found:
        rows = [(row["name"], row["kind"], row["A"], row["B"]) for row in found]
        for line in columns([_HEAD, *rows], left=(0, 1, 2, 3)):
            print(escaped(f"  {line}"))
    print(f"{equal} equal, {len(found)} different")
    return int(bool(found))


def _difference(a: WeightsFile, b: WeightsFile, name: str) -> dict[str, Any] | None:
    left, right = a.entries.get(name), b.entries.get(name)
    shown = {"A": _shown(left), "B": _shown(right)}
    if left is None or right is None:
        return {"name": name, "kind": "only in B" if left is None else "only in A", **shown}
    if left.shape != right.shape or left.dtype != right.dtype:
        return {"name": name, "kind": "shape" if left.shape != right.shape else "dtype", **shown}
    one, other = np.asarray(a.read(name)), np.asarray(b.read(name))
    kind = _of_values(one, other)
    return None if kind is None else {"name": name, "kind": kind, **shown}


def _of_values(one: np.ndarray, other: np.ndarray) -> str | None:
    """How many values differ, and by how much at most; None if all are equal."""
    if one.dtype == object:
        count = int((one != other).sum())
        return f"{count} of {one.size} values" if count else None
    differs = np.asarray(one != other)
    if one.dtype.kind not in "biu":
        x, y = (each.astype(np.complex128 if each.dtype.kind == "c" else np.float64) for each in (one, other))
        differs &= ~(np.isnan(x) & np.isnan(y))
    if not differs.any():
        return None
    return f"{int(differs.sum())} of {one.size} values, by at most {_largest(one[differs], other[differs]):.6g}"


def _largest(one: np.ndarray, other: np.ndarray) -> float:
    """The largest absolute difference; infinite if there is one, and NaN if a value is NaN in only one file."""
    if one.dtype.kind in "biu":
        return max(abs(int(x) - int(y)) for x, y in zip(one.tolist(), other.tolist(), strict=True))
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    return float(np.max(np.abs(one.astype(wide) - other.astype(wide))))


def _shown(entry: Entry | None) -> str:
    return "" if entry is None else f"{dtype_name(entry.dtype)} {shape_text(entry.shape)}"
