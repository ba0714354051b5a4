"""``replicant checkpoint show``: the arrays of a file."""

import json
import re

import numpy as np

from ..._display import columns
from ...checkpoint.weights import Entry, open_weights
from .._escaped import escaped


def show(path: str, *, as_json: bool) -> int:
    """Print a line for each array, in the order of their names, and how many there are."""
    with open_weights("PATH", path) as file:
        entries = sorted(file.entries.values(), key=lambda entry: in_order(entry.name))
        if as_json:
            arrays = [
                {
                    "name": entry.name,
                    "called": entry.label or None,
                    "shape": list(entry.shape),
                    "dtype": dtype_name(entry.dtype),
                    "bytes": entry.num_bytes,
                }
                for entry in entries
            ]
            print(json.dumps({"path": file.path, "format": file.format, "arrays": arrays}, indent=1))
            return 0
        print(escaped(f"{file.path}: {file.format}"))
        for line in columns([("name", "called", "shape", "dtype", "bytes"), *map(_row, entries)], left=(0, 1, 2, 3)):
            print(escaped(f"  {line}"))
        print(f"{len(entries)} arrays, {sum(entry.num_bytes or 0 for entry in entries):,} bytes")
    return 0


def _row(entry: Entry) -> tuple[str, ...]:
    size = "-" if entry.num_bytes is None else f"{entry.num_bytes:,}"
    return entry.name, entry.label, shape_text(entry.shape), dtype_name(entry.dtype), size


def in_order(name: str) -> list[tuple[int, str]]:
    """Return a key by which names are sorted as people do.

    >>> sorted(["a/10", "a/9", "b"], key=in_order)
    ['a/9', 'a/10', 'b']
    """
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", name)]


def shape_text(shape: tuple[int, ...]) -> str:
    """Return a shape as text: ``3 x 4``, and ``scalar`` for none.

    >>> shape_text((3, 4)), shape_text(())
    ('3 x 4', 'scalar')
    """
    return " x ".join(map(str, shape)) or "scalar"


def dtype_name(dtype: np.dtype) -> str:
    """Return the name of a dtype; "string" for strings, which NumPy has as objects."""
    return "string" if dtype.hasobject else dtype.name
