"""Files of arrays that NumPy writes and maps into memory, as they go into `from_tensor_slices`."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _cells import Cell, rows

FORM, WRITER = "Arrays", "numpy"
_DTYPES = ("i1", "<i2", ">i4", "<i8", ">u2", "<f2", ">f4", "<f8", "?", "<c8", ">c16")


def cells() -> Iterator[Cell]:
    for dtype in _DTYPES:
        yield Cell(
            FORM,
            WRITER,
            f".npy of {dtype}",
            functools.partial(_saved, lambda dtype=dtype: np.arange(12).reshape(4, 3).astype(dtype)),
        )
    for what, make in _MADE.items():
        yield Cell(FORM, WRITER, f".npy, {what}", functools.partial(_saved, make))
        yield Cell(FORM, WRITER, f".npy, {what}, mapped", functools.partial(_saved, make, mmap_mode="r"))
    yield Cell(FORM, WRITER, ".npz", functools.partial(_zipped, np.savez))
    yield Cell(FORM, WRITER, ".npz, compressed", functools.partial(_zipped, np.savez_compressed))
    yield Cell(FORM, WRITER, "memmap", _mapped)
    yield Cell(FORM, WRITER, ".npy of texts", functools.partial(_saved, lambda: np.array(["a", "ä", ""])))
    yield Cell(FORM, WRITER, ".npy of bytes", functools.partial(_saved, lambda: np.array([b"a", b"\xff", b""])))
    yield Cell(
        FORM, WRITER, ".npy of records", functools.partial(_saved, lambda: np.zeros(3, [("a", "i4"), ("b", "f4")])), "records"
    )
    yield Cell(FORM, WRITER, ".npy of dates", functools.partial(_saved, lambda: np.array(["2026-01-01"], "M8[D]")), "datetime64")


_MADE: dict[str, Callable[[], np.ndarray]] = {
    "Fortran order": lambda: np.asfortranarray(np.arange(24.0).reshape(4, 3, 2)),
    "big-endian, Fortran order": lambda: np.asfortranarray(np.arange(12, dtype=">f8").reshape(4, 3)),
    "one dimension": lambda: np.arange(5),
    "no columns": lambda: np.zeros((3, 0)),
}


def _slices(arrays: Any) -> list[Any]:
    from replicant.data import Dataset

    return rows(Dataset.from_tensor_slices(arrays))


def _saved(make: Callable[[], np.ndarray], folder: Path, **settings: Any) -> Any:
    path = folder / "file.npy"
    np.save(path, make())
    return lambda: _slices(np.load(path, **settings)), _as_python(list(np.load(path)))


def _as_python(values: list[Any]) -> list[Any]:
    return [each.item() if isinstance(each, np.str_ | np.bytes_) else each for each in values]


def _zipped(save: Callable[..., None], folder: Path) -> Any:
    path = folder / "file.npz"
    save(path, x=np.arange(12).reshape(4, 3), y=np.arange(4) / 7)
    with np.load(path) as its:
        arrays = dict(its)
    return lambda: _slices(arrays), [{name: arrays[name][i] for name in arrays} for i in range(4)]


def _mapped(folder: Path) -> Any:
    path = folder / "file"
    made = np.memmap(path, ">i4", "w+", shape=(4, 3))
    made[:] = np.arange(12).reshape(4, 3)
    made.flush()
    return lambda: _slices(np.memmap(path, ">i4", "r", shape=(4, 3))), list(np.array(made))
