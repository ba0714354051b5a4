"""The encodings of MDS shards: from bytes to values."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ....errors import DatasetError, ElementError
from ...graph._structure import STRING, TensorSpec, component_names, flatten, show_structure
from ...sources._generator import fitted, free_spec
from ..text._json_values import json_value

_NUMBERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
_DTYPES = {8: "u1", 9: "i1", 16: "u2", 17: "i2", 18: "f2", 32: "u4", 33: "i4", 34: "f4", 64: "u8", 65: "i8", 66: "f8"}
_NAMES = {name: np.dtype(name).newbyteorder("<") for name in _NUMBERS}
_REMEDY = {
    "pkl": "to read it would run whatever code the file contains. Write it as json or ndarray",
    "pil": "it holds pixels of many layouts. Write it as jpeg, png or ndarray",
}


class DamagedError(ValueError):
    """Bytes are not what an encoding makes."""


@dataclasses.dataclass(frozen=True)
class Decoder:
    """Makes the values of one column.

    Args:
        decode: Returns the value of some bytes, or raises `DamagedError`.
        size: The number of bytes of every value, or None if it differs.
        spec: The spec of every value, or None if the first one says it.
    """

    decode: Callable[[bytes], Any]
    size: int | None
    spec: TensorSpec | None

    def spec_of(self, value: Any, name: str) -> Any:
        """Return the spec of the column, of which this is the first value.

        Raises:
            ElementError: If it is something that arrays cannot hold.
        """
        if self.spec is not None:
            return self.spec
        _check_complete(value, name)
        return free_spec(*flatten(value), f"{name}: ", "the first sample")

    def checked(self, value: Any, spec: Any, name: str) -> Any:
        """Return a value in the dtypes of its column.

        Raises:
            ElementError: If it does not have the spec of its column.
        """
        if self.spec is not None:
            return value
        if isinstance(value, np.ndarray) and (value.dtype != spec.dtype or value.ndim != len(spec.shape)):
            raise ElementError(f"{name} is {TensorSpec(value.shape, value.dtype)}, expected {spec}")
        _check_complete(value, name)
        (leaves, structure), (specs, expected) = flatten(value), flatten(spec)
        if structure != expected:
            raise ElementError(f"{name} has the structure {show_structure(structure)}, expected {show_structure(expected)}")
        names = component_names(structure)
        named = zip(leaves, specs, names, strict=True)
        return structure.unflatten([fitted(leaf, its, f"{name}: {what}") for leaf, its, what in named])


def decoder(encoding: str) -> Decoder:
    """Return the decoder of an encoding.

    Raises:
        DatasetError: If it is not known or not safe. The message is what follows the name of the column.
    """
    name, _, settings = encoding.partition(":")
    if name == "ndarray":
        return _of_arrays(encoding, settings)
    if settings or name not in _DECODERS:
        readable = ", ".join(sorted([*_DECODERS, "ndarray"]))
        remedy = _REMEDY.get(name.removeprefix("list[").removesuffix("]"), f"Encodings that are read are {readable}")
        raise DatasetError(
            f"is encoded as {encoding!r}, which is not read: {remedy}, or leave the column out: name others in `columns`."
        )
    return _DECODERS[name]


def _check_complete(value: Any, name: str) -> None:
    """Check that no part of a value of JSON is null."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if value is None:
        raise ElementError(f"{name} is null, which no array holds")
    for part in parts:
        _check_complete(part, name)


def _scalar(name: str) -> Decoder:
    dtype = _NAMES[name]
    return Decoder(lambda data: np.frombuffer(data, dtype)[0], dtype.itemsize, TensorSpec((), np.dtype(name)))


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DamagedError(str(error)) from error


def _whole_number(data: bytes) -> np.int64:
    try:
        return np.int64(int(_text(data)))
    except (ValueError, OverflowError) as error:
        raise DamagedError(f"{data[:40]!r} is not a whole number of 64 bits") from error


def _number(data: bytes) -> np.float64:
    try:
        return np.float64(float(_text(data)))
    except ValueError as error:
        raise DamagedError(f"{data[:40]!r} is not a number") from error


def _json(data: bytes) -> Any:
    try:
        return json_value(data)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"it is not JSON: {error}") from error


def _of_arrays(encoding: str, settings: str) -> Decoder:
    """The decoder of arrays whose dtype and shape may be fixed."""
    name, _, sizes = settings.partition(":")
    texts = sizes.split(",") if sizes else []
    if (name and name not in _NAMES) or not all(text.isdecimal() and int(text) for text in texts):
        raise DatasetError(
            f"is encoded as {encoding!r}, whose dtype or shape is not known. Write it as 'ndarray:float32:2,3', say."
        )
    dtype, shape = _NAMES.get(name), tuple(map(int, texts)) or None
    fixed = TensorSpec(shape, np.dtype(name)) if dtype is not None and shape is not None else None
    size = None if shape is None or dtype is None else math.prod(shape) * dtype.itemsize
    return Decoder(lambda data: _array(data, dtype, shape), size, fixed)


def _array(data: bytes, dtype: np.dtype | None, shape: tuple[int, ...] | None) -> np.ndarray:
    at = 0
    try:
        if dtype is None:
            dtype, at = np.dtype(f"<{_DTYPES[data[0]]}"), 1
        if shape is None:
            count, kind = divmod(data[at], 4)
            sizes = np.frombuffer(data, f"<u{1 << kind}", count, at + 1)
            shape, at = tuple(sizes.tolist()), at + 1 + sizes.nbytes
        values = np.frombuffer(data[at:], dtype)
        return values.reshape(shape).astype(dtype.newbyteorder("="))  # a copy, which does not keep the sample in memory
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise DamagedError(f"it is not an array: {error}") from error


_TEXT = Decoder(_text, None, TensorSpec((), STRING))
_BYTES = Decoder(bytes, None, TensorSpec((), STRING))
_DECODERS = {
    **{name: _scalar(name) for name in _NUMBERS},
    "int": _scalar("int64"),
    "str": _TEXT,
    "str_decimal": _TEXT,
    "str_int": Decoder(_whole_number, None, TensorSpec((), np.dtype(np.int64))),
    "str_float": Decoder(_number, None, TensorSpec((), np.dtype(np.float64))),
    "bytes": _BYTES,
    "jpeg": _BYTES,
    "png": _BYTES,
    "json": Decoder(_json, None, None),
}
