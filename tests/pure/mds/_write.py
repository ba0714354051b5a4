"""Writes the folders of this folder. Run it with a Python that has mosaicml-streaming 0.13: `python tests/pure/mds/_write.py`."""

import pathlib
import shutil
from decimal import Decimal

import numpy as np

from streaming import MDSWriter

COLUMNS = {
    "any": "ndarray",
    "b": "bytes",
    "decimal": "str_decimal",
    "f16": "float16",
    "f64": "float64",
    "fixed": "ndarray:float32:2,3",
    "float": "str_float",
    "i": "int",
    "i8": "int8",
    "int": "str_int",
    "j": "json",
    "jpg": "jpeg",
    "ragged": "ndarray:int16",
    "s": "str",
    "u32": "uint32",
}


def sample(i):
    return {
        "any": np.arange(i + 1, dtype=np.uint8).reshape(1, i + 1),
        "b": bytes([i]) * i,
        "decimal": Decimal(f"{i}.50"),
        "f16": np.float16(i / 2),
        "f64": i / 3,
        "fixed": np.arange(6, dtype=np.float32).reshape(2, 3) * i,
        "float": i / 3,
        "i": i - 5 * 10**12,
        "i8": np.int8(-i),
        "int": 7 * i,
        "j": {"n": i, "tags": ["a"] * 2},
        "jpg": b"\xff\xd8" + bytes([i]),
        "ragged": np.arange(300 if i == 4 else i + 1, dtype=np.int16),
        "s": f"é{i}",
        "u32": np.uint32(i),
    }


if __name__ == "__main__":
    folder = pathlib.Path(__file__).parent
    for name, settings in {
        "plain": {"hashes": ["sha1", "xxh64"]},
        "zstd": {"compression": "zstd:7", "hashes": ["sha256"]},
        "gz": {"compression": "gz"},
        "bz2": {"compression": "bz2"},
    }.items():
        shutil.rmtree(folder / name, ignore_errors=True)
        with MDSWriter(out=str(folder / name), columns=COLUMNS, size_limit=1300, **settings) as out:
            for i in range(8):
                out.write(sample(i))
