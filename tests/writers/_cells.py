"""A cell of the table: a file as a library writes it, what that library reads back, and what Replicant makes of it."""

import dataclasses
import datetime as dt
import decimal
import importlib
import math
import pkgutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent

# Writes a file below a folder; returns a function that reads it by Replicant, and what its own library reads.
Write = Callable[[Path], tuple[Callable[[], Any], Any]]


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell.

    Args:
        form: The format, as the table names it.
        writer: The packages that write it, the first of which has a version in the table.
        what: What is in the file.
        write: Writes it.
        refused: Words of the error with which it is refused; None if it is read.
        program: The program of the machine that it needs, if any.
    """

    form: str
    writer: str
    what: str
    write: Write
    refused: str | None = None
    program: str | None = None

    @property
    def name(self) -> str:
        """The name of its test."""
        return f"{self.form}, {self.writer}: {self.what}"


def cells() -> list[Cell]:
    """Return all cells, in the order of the table. The libraries are not imported."""
    import cells as package

    found: list[Cell] = []
    for each in sorted(pkgutil.iter_modules(package.__path__), key=lambda each: each.name):
        found += importlib.import_module(f"cells.{each.name}").cells()
    return found


def rows(dataset: Any) -> list[Any]:
    """Return the elements of a dataset."""
    return list(dataset)


def plain(value: Any) -> Any:
    """Return a value as plain Python, in which types still differ: 1, 1.0 and True are not equal, and NaN equals NaN."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return ("float", "nan" if math.isnan(value) else value.hex())
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    if isinstance(value, uuid.UUID):
        return ("bytes", value.bytes)
    if isinstance(value, bytearray | memoryview):
        return ("bytes", bytes(value))
    assert isinstance(value, bool | int | str | bytes | dt.date | dt.timedelta | decimal.Decimal | None), type(value)
    return (type(value).__name__, value)


def differences(ours: Any, theirs: Any, where: str = "") -> Iterator[str]:
    """Say where two values differ. Where both are NumPy's, their dtypes and shapes count."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if ours.keys() != theirs.keys():
            yield f"{where}: names {sorted(ours)} instead of {sorted(theirs)}"
        for key in ours.keys() & theirs.keys():
            yield from differences(ours[key], theirs[key], f"{where}[{key!r}]")
        return
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        if len(ours) != len(theirs):
            yield f"{where}: {len(ours)} elements instead of {len(theirs)}"
        for i, (mine, its) in enumerate(zip(ours, theirs, strict=False)):
            yield from differences(mine, its, f"{where}[{i}]")
        return
    if isinstance(ours, np.ndarray | np.generic) and isinstance(theirs, np.ndarray | np.generic):
        mine, its = (ours.dtype.newbyteorder("="), ours.shape), (theirs.dtype.newbyteorder("="), theirs.shape)
        if mine != its:
            yield f"{where}: {mine} instead of {its}"
            return
    if plain(ours) != plain(theirs):
        yield f"{where}: {ours!r} instead of {theirs!r}"


def versions() -> dict[str, str]:
    """Return the version of each package and program with which the cells are tried."""
    files = ("requirements.txt", "requirements-streaming.txt", "programs.txt")
    lines = [line for name in files for line in (FOLDER / name).read_text().splitlines()]
    pinned = (line.partition("#")[0].strip().partition("==") for line in lines)
    return {name: version for name, _, version in pinned if name}
