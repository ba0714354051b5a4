"""Writes MDS shards by MosaicML's streaming, and reads them back. cells/mds.py runs it in an environment of its own.

Each line of its input says what to write, and it answers each by a line.
"""

import decimal
import json
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from streaming.base.util import merge_index

import streaming


def values_of(encoding: str, count: int) -> list[Any]:
    """Return values for a column."""
    name, _, rest = encoding.partition(":")
    if name == "ndarray":
        dtype, _, shape = rest.partition(":")
        sizes = tuple(map(int, shape.split(","))) if shape else None
        return [
            np.arange(np.prod(sizes or (i + 1, 2)), dtype=dtype or "float32").reshape(sizes or (i + 1, 2)) for i in range(count)
        ]
    if name.startswith(("jpeg_array", "jpegarray")):
        return [np.full((8, 8, 3), 9 * i, np.uint8) for i in range(count)]
    pictures = [Image.new("RGB", (8, 6), (i, 2 * i, 255 - i)) for i in range(count)]
    made = {
        "str": [f"text ä {i}" for i in range(count)],
        "bytes": [bytes([255, 0]) * i for i in range(count)],
        "json": [{"a": [i, 2], "b": {"c": "x", "d": i / 8}} for i in range(count)],
        "str_int": [10**i for i in range(count)],
        "str_float": [i / 7 for i in range(count)],
        "pkl": [{"a": i} for i in range(count)],
        "jpeg": pictures,
        "png": pictures,
        "pil": pictures,
    }
    made |= {f"list[{name}]": [[picture] * 2 for picture in pictures] for name in ("jpeg", "png", "pil")}
    if encoding == "str_decimal":
        return [decimal.Decimal(i) / 8 for i in range(count)]
    if encoding == "int":
        return [2**62 + i for i in range(count)]
    return made.get(encoding) or [np.dtype(encoding).type(i) for i in range(count)]


def encoded(value: Any) -> Any:
    """Return a value as JSON."""
    if isinstance(value, np.ndarray | np.generic):
        return {"dtype": value.dtype.str, "shape": value.shape, "data": value.tobytes().hex()}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, dict):
        return {key: encoded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [encoded(each) for each in value]
    return value if isinstance(value, str | int | float) or value is None else str(value)


def answered(asked: dict[str, Any]) -> list[Any]:
    """Write what is asked for, and return what streaming reads of it."""
    folder, count, column = Path(asked["folder"]), asked.get("samples", 5), asked.get("column")
    columns = {"x": column} if column else {"x": "int", "text": "str", "array": "ndarray:float32:3"}
    kind = getattr(streaming, asked.get("writer", "MDSWriter"))
    if "writer" in asked:
        columns = {"x": "int", "text": "str"}
    outs = [folder / str(i) for i in range(asked.get("folders", 1))]
    for number, out in enumerate(outs):
        with kind(out=str(out), columns=columns, **asked.get("settings", {})) as writer:
            for sample in samples(columns, count, number, asked):
                writer.write(sample)
    if asked.get("merge"):
        merge_index(str(folder), keep_local=True)
    found: list[Any] = []
    if not (asked.get("other") or (column or "").startswith(("pkl", "pil", "list", "jpeg_array"))):
        for out in outs if count else []:
            found += [decoded(sample, columns) for sample in read(out)]
    return encoded(found)


def samples(columns: dict[str, str], count: int, number: int, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the samples of a folder."""
    if "values" in asked:
        return [{"x": value} for value in asked["values"]]
    if asked.get("other"):
        return [{"x": {"a": 1}}, {"x": {"b": 1}}]
    if set(columns) == {"x"}:
        return [{"x": value} for value in values_of(columns["x"], count)]
    made = [{"x": i + 10 * number, "text": f"ä {i}", "array": np.float32([i, 2, 3])} for i in range(count)]
    return [{name: sample[name] for name in columns} for sample in made]


def read(out: Path) -> Any:
    """Return the samples that streaming reads, of a copy: it decompresses shards in their folder."""
    copy = out.with_name(f"copy of {out.name}")
    shutil.copytree(out, copy)
    return streaming.StreamingDataset(local=str(copy), shuffle=False, batch_size=1)


def decoded(sample: dict[str, Any], columns: dict[str, str]) -> dict[str, Any]:
    """Return a sample as Replicant is to give it: with pictures as pixels, and whole numbers of 64 bits."""
    made = dict(sample)
    for name, encoding in columns.items():
        if encoding in ("jpeg", "png"):
            made[name] = np.asarray(sample[name])
        elif encoding in ("int", "str_int"):
            made[name] = np.int64(sample[name])
        elif encoding == "str_float":
            made[name] = np.float64(sample[name])
    return made


def main() -> None:
    """Answer each line."""
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        try:
            answer = {"samples": answered(json.loads(line))}
        except Exception:  # noqa: BLE001 - the cell shows it
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
