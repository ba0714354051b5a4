"""Sources of file names."""

import dataclasses
import glob
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ArgumentError, ArgumentTypeError, DatasetError
from ...storage._retry import RemoteError
from ...storage._store import Store
from ...storage._urls import checked_name, is_url
from ..graph._graph import NOT_COMPARED
from ..graph._structure import STRING, TensorSpec
from ..sources._sources import Rows

STRING_SPEC = TensorSpec((), STRING)


@dataclasses.dataclass(frozen=True, eq=False)
class FileNames(Rows):
    """File names. Sharding a dataset by files shards this node."""

    spec: Any = dataclasses.field(default=STRING_SPEC, metadata=NOT_COMPARED)
    name: str = dataclasses.field(default="files", metadata=NOT_COMPARED)

    @property
    def label(self) -> str:
        return f"{self.name}({self.size} files)"


@dataclasses.dataclass(frozen=True, eq=False)
class FileParts(FileNames):
    """File names, each with the number of one of its parts: row groups, which workers share as they share files."""

    spec: Any = dataclasses.field(default=(STRING_SPEC, TensorSpec((), np.int64)), metadata=NOT_COMPARED)
    name: str = dataclasses.field(default="parts of files", metadata=NOT_COMPARED)

    @property
    def label(self) -> str:
        return f"{self.name}({self.size} of {len({*self.tables[0]})} files)"


def file_names(method: str, names: Any) -> FileNames:
    """Return a source of these names: one, or several in their order.

    Raises:
        ArgumentTypeError: If something is not a file name.
        ArgumentError: If there is no name.
    """
    return FileNames(size=len(texts := _names(method, names)), tables=(np.array(texts, dtype=object),))


def matching_files(patterns: Any) -> FileNames:
    """Return a source of the names that match the patterns, sorted.

    Raises:
        DatasetError: If a pattern matches nothing.
    """
    found: set[str] = set()
    for pattern in _names("list_files", patterns):
        matches = _matching(pattern)
        if not matches:
            searched = "" if is_url(pattern) else f" (searched from {Path.cwd()})"
            raise DatasetError(
                f"list_files: no file matches {pattern!r}{searched}. "
                "Check the path; `*` matches within one folder, and `**` is not recursive."
            )
        found.update(matches)
    names = np.array(sorted(found), dtype=object)
    return FileNames(size=len(names), tables=(names,), name="list_files")


def _matching(pattern: str) -> list[str]:
    if not is_url(pattern):
        return glob.glob(pattern)  # noqa: PTH207 - the pattern may be absolute or relative
    try:
        return Store(pattern).matches()
    except RemoteError as error:
        raise DatasetError(f"list_files: {error}.") from error


def _names(method: str, names: Any) -> list[str]:
    if isinstance(names, str | bytes | os.PathLike):
        names = [names]
    if isinstance(names, np.ndarray):
        names = names.ravel().tolist()
    if not isinstance(names, Iterable):
        raise ArgumentTypeError(f"{method} takes a file name or a list of them. Received: {names!r}.")
    try:
        texts = [checked_name(method, name) for name in names]
    except TypeError as error:
        raise ArgumentTypeError(f"{method} takes a file name or a list of them. Received: {names!r}.") from error
    if not texts:
        raise ArgumentError(f"{method}: there is no file name in {names!r}.")
    return texts
