"""The columns of Hugging Face's datasets: those of Arrow, and files, of which pictures are decoded."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import DatasetError, ElementError
from ....storage._urls import is_url
from ...graph._blocks import Block, Boxed
from ...graph._structure import TensorSpec, flatten
from .._pictures import decoded, import_pillow
from .._stream import PIECE, FileStream
from ._numpy_columns import Columns, import_pyarrow

_FILES = {"Audio", "Image", "Video"}  # features that hold a file
_STORED = {*_FILES, "Json"}  # features whose values are decoded from what is stored
_CHANNELS = {None: 3, "L": 1, "RGB": 3, "RGBA": 4}  # of pictures, by the mode of their feature


@dataclasses.dataclass(frozen=True)
class HuggingFaceColumns(Columns):
    """Converts tables of a dataset, and says what to call on it where that is not possible.

    Args:
        features: The features by name.
    """

    features: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)

    advice_to_choose = "Select at least one: `dataset.select_columns(names)`."

    def advice_to_leave_out(self, name: str) -> str:
        return f"`dataset.remove_columns({name.partition('.')[0].partition('[')[0]!r})`"

    def advice_to_fill(self, column: str, value: Any) -> str:
        return f"`dataset.map(lambda row: {{{column!r}: {value!r} if row[{column!r}] is None else row[{column!r}]}})`"

    def advice_to_skip(self, column: str) -> str:
        return f"`dataset.filter(lambda row: row[{column!r}] is not None)`"

    @property
    def files(self) -> dict[str, "Files"]:
        """The columns that hold files."""
        found = ((name, feature) for name, feature in self.features.items() if type(feature).__name__ in _FILES)
        return {name: Files.of(self, name, feature) for name, feature in found}

    def spec(self, schema: Any) -> Any:
        files = self.files
        others = import_pyarrow(self.method).schema([field for field in schema if field.name not in files])
        specs = super().spec(others) if len(others) or not files else {}
        return {name: files[name].spec if name in files else specs[name] for name in schema.names}

    def block(self, table: Any, spec: Any, where: str) -> Block:
        files = {name: each for name, each in self.files.items() if name in table.column_names}
        others = table.drop_columns(list(files))
        plain = super().block(others, {name: spec[name] for name in others.column_names}, where)
        if not files:
            return plain
        columns = dict(zip(sorted(others.column_names), _by_column(plain, others.column_names, spec), strict=True))
        for name, each in files.items():
            values = [each.value(row, f"row {i} of {where}") for i, row in enumerate(table.column(name).to_pylist())]
            columns[name] = [Boxed.of(values)]
        leaves = [leaf for name in sorted(columns) for leaf in columns[name]]
        return Block(flatten(spec)[1], leaves, table.num_rows)

    def row(self, row: Mapping[str, Any], spec: Any, where: str) -> Any:
        """Return a row of Python values as its spec has it: with the contents of files, and lists of dicts as dicts of lists.

        ``spec`` is None if it is not known yet.
        """
        files = self.files
        return {
            name: files[name].value(value, where) if name in files else in_lists(value, None if spec is None else spec.get(name))
            for name, value in row.items()
        }


def undecoded(feature: Any) -> Any:
    """Return the feature whose values are what is stored: files, and texts of JSON, also in lists and dicts."""
    if isinstance(feature, dict):
        return {name: undecoded(each) for name, each in feature.items()}
    if isinstance(feature, list):
        return [undecoded(each) for each in feature]
    if type(feature).__name__ in _STORED and feature.decode:
        return dataclasses.replace(feature, decode=False)
    inner = getattr(feature, "feature", None)
    if dataclasses.is_dataclass(feature) and not isinstance(feature, type) and inner is not None:
        return dataclasses.replace(feature, feature=undecoded(inner))
    return feature


def _by_column(block: Block, names: list[str], spec: Any) -> list[list[Any]]:
    """The columns of a block, by the component that they belong to."""
    left = iter(block.columns)
    return [[next(left) for _ in flatten(spec[name])[0]] for name in sorted(names)]


def in_lists(value: Any, spec: Any) -> Any:
    """Return a value with each list of dicts as a dict of lists. ``spec`` says which; if it is None, the first item does."""
    if isinstance(value, Mapping):
        return {name: in_lists(each, spec.get(name) if isinstance(spec, Mapping) else None) for name, each in value.items()}
    if not isinstance(value, list) or not (isinstance(spec, Mapping) or (spec is None and value and isinstance(value[0], Mapping))):
        return value
    names = list(spec) if isinstance(spec, Mapping) else list(value[0])
    return {name: in_lists([item[name] for item in value], spec and spec[name]) for name in names}


@dataclasses.dataclass(frozen=True)
class Files:
    """A column of files.

    Args:
        columns: Who reads it.
        name: Its name.
        channels: Of its pictures; None to return the bytes of the files.
    """

    columns: HuggingFaceColumns
    name: str
    channels: int | None

    @classmethod
    def of(cls, columns: HuggingFaceColumns, name: str, feature: Any) -> "Files":
        """Return the column of a feature.

        Raises:
            DatasetError: If its pictures have a mode that is not read.
        """
        if type(feature).__name__ != "Image" or not feature.decode:
            return cls(columns, name, None)
        if feature.mode not in _CHANNELS:
            raise DatasetError(
                f"{columns.method}: the pictures of column {name!r} have the mode {feature.mode!r}. Choose one of "
                f"{[mode for mode in _CHANNELS if mode]}: `dataset.cast_column({name!r}, datasets.Image(mode='RGB'))`."
            )
        return cls(columns, name, _CHANNELS[feature.mode])

    @property
    def spec(self) -> TensorSpec:
        """The spec of a value."""
        return TensorSpec((), object) if self.channels is None else TensorSpec((None, None, self.channels), np.uint8)

    def value(self, file: Mapping[str, Any] | None, where: str) -> Any:
        """Return the picture in a file, or its bytes.

        Raises:
            DatasetError: If the file cannot be read, or is not a picture.
            ElementError: If there is none.
        """
        data, path = (None, None) if file is None else (file["bytes"], file["path"])
        if data is None and path is None:
            raise self._missing(where)
        if data is None:
            data = self._read(str(path))
        if self.channels is None:
            return data
        remedy = f"leave it out: `dataset.cast_column({self.name!r}, datasets.Image(decode=False))` gives bytes"
        return decoded(import_pillow(self.columns.method), self.columns.method, path or where, data, self.channels, remedy=remedy)

    def facts(self, file: Mapping[str, Any] | None) -> Any:
        """Return what tells a file from others, wherever it is."""
        if file is None or file["bytes"] is not None:
            return file and file["bytes"]
        return file["path"] and os.path.basename(file["path"])  # noqa: PTH119 - it may be a URL

    def _missing(self, where: str) -> DatasetError:
        return ElementError(
            f"{self.columns.method}: column {self.name!r} has no file (null) in {where}. Leave such rows out: "
            f"{self.columns.advice_to_skip(self.name)}."
        )

    def _read(self, path: str) -> bytes:
        if not is_url(path) and Path(path).exists() and not Path(path).is_file():
            raise DatasetError(f"{self.columns.method}: {path!r} in column {self.name!r} is not a regular file.")
        stream, data, piece = FileStream(self.columns.method, path, ""), bytearray(), memoryview(bytearray(PIECE))
        try:
            while count := stream.read_into(piece):
                data += piece[:count]
        finally:
            stream.close()
        return bytes(data)
