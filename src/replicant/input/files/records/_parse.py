"""`parse_example` and `parse_single_example`: from serialized Examples to arrays."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....errors import ArgumentError, ArgumentTypeError, ElementError
from ...graph._structure import STRING
from ._example import DTYPES, Values, WireError, decode_example
from ._example_values import Stored, objects, stored_values

_KINDS = {dtype: kind for kind, dtype in DTYPES.items()}
_LISTS = {1: "a list of byte strings", 2: "a list of floats", 3: "a list of int64"}
_MISSING: Values = (0, ())


def _checked_dtype(feature: str, dtype: Any) -> np.dtype:
    try:
        checked = np.dtype(dtype)
    except TypeError:
        checked = None
    if checked is not None and checked.kind in "SU":
        checked = STRING
    if checked is None or checked not in _KINDS:
        raise ArgumentError(
            f"{feature}: dtype must be float32, int64 or str, the types that an Example stores. Received: {dtype!r}."
        )
    return checked


@dataclasses.dataclass(frozen=True)
class FixedLenFeature:
    """A feature with the same number of values in every Example.

    Args:
        shape: The shape of one Example's array; () for a single value.
        dtype: np.float32, np.int64 or str (whose values are bytes).
        default_value: The value for Examples without the feature, a scalar or an array of ``shape``. None refuses them.

    Raises:
        ArgumentError: If it is another dtype, a size is below 0, or the default does not fit.

    >>> FixedLenFeature((2,), np.float32)
    FixedLenFeature(shape=(2,), dtype=dtype('float32'), default_value=None)
    """

    shape: tuple[int, ...]
    dtype: Any
    default_value: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "dtype", _checked_dtype("FixedLenFeature", self.dtype))
        if any(not isinstance(size, int) or size < 0 for size in self.shape):
            raise ArgumentError(
                f"FixedLenFeature: the shape must consist of known sizes. Received: {self.shape}. Use VarLenFeature."
            )
        _ = self.default

    @functools.cached_property
    def default(self) -> np.ndarray | None:
        """The default value as an array."""
        if self.default_value is None:
            return None
        value = self.default_value.encode() if isinstance(self.default_value, str) else self.default_value
        try:
            return np.broadcast_to(np.asarray(value, self.dtype), self.shape)
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                f"FixedLenFeature: default_value {self.default_value!r} is not an array of {self.dtype} with shape {self.shape}."
            ) from error


@dataclasses.dataclass(frozen=True)
class VarLenFeature:
    """A feature with any number of values, including none.

    It is parsed to dense arrays: the values of one Example, or for a batch a matrix as wide as the longest of them,
    padded with 0 or b"".

    Raises:
        ArgumentError: If the dtype is not np.float32, np.int64 or str.

    >>> VarLenFeature(np.int64)
    VarLenFeature(dtype=dtype('int64'))
    """

    dtype: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _checked_dtype("VarLenFeature", self.dtype))


Features = Mapping[str, FixedLenFeature | VarLenFeature]


def parse_single_example(
    serialized: bytes, features: Features, example_names: Any = None, name: str | None = None
) -> dict[str, Any]:
    """Parse the named features of one serialized `tf.train.Example`; other features are ignored.

    To parse many Examples, `batch` them and map `parse_example`, which is several times faster. ``example_names`` and ``name`` have
    no effect.

    Raises:
        ElementError: If it is not an Example, or a feature is missing, of another type, or has another number of values.

    >>> from replicant.data import encode_example
    >>> parse_single_example(encode_example({"x": [1.0, 2.0], "y": 3}), {"x": VarLenFeature("float32")})
    {'x': array([1., 2.], dtype=float32)}
    """
    del example_names, name
    _check_features("parse_single_example", features)
    found = _decoded("parse_single_example", _as_bytes("parse_single_example", serialized), 0)
    return {name: _one(name, feature, found, 0) for name, feature in features.items()}


def parse_example(
    serialized: Sequence[bytes] | np.ndarray, features: Features, example_names: Any = None, name: str | None = None
) -> dict[str, np.ndarray]:
    """Parse the named features of a batch of serialized Examples; the batch becomes the leading dimension.

    Args:
        serialized: Byte strings, such as a batch of a `TFRecordDataset`.
        features: A mapping from names to `FixedLenFeature` or `VarLenFeature`.
        example_names: As in tf.data, but without effect: messages give the numbers of Examples.
        name: Without effect.

    Raises:
        ElementError: If it is not an Example, or a feature is missing, of another type, or has another number of values.

    >>> from replicant.data import encode_example
    >>> batch = [encode_example({"x": [1, 2], "y": 0.5}), encode_example({"x": [3], "y": 1.5})]
    >>> parse_example(batch, {"x": VarLenFeature("int64"), "y": FixedLenFeature((), "float32")})
    {'x': array([[1, 2],
           [3, 0]]), 'y': array([0.5, 1.5], dtype=float32)}
    """
    del example_names, name
    _check_features("parse_example", features)
    if isinstance(serialized, bytes | str):
        raise ArgumentTypeError("parse_example takes a batch. Use `parse_single_example` for one Example, or call `batch` first.")
    records = serialized.tolist() if isinstance(serialized, np.ndarray) else list(serialized)
    for kind in set(map(type, records)) - {bytes}:
        raise ArgumentTypeError(f"parse_example takes serialized Examples as bytes. Received: {kind.__name__}.")
    stored = stored_values(records, {name: _KINDS[feature.dtype] for name, feature in features.items()})
    parsed = {} if stored is None else {name: _shaped(stored[name], feature) for name, feature in features.items()}
    whole = {name: array for name, array in parsed.items() if array is not None}
    if stored is not None and len(whole) == len(features):
        return whole
    found = [_decoded("parse_example", record, i) for i, record in enumerate(records)]  # which finds out what is wrong
    return {name: _stacked(name, feature, found) for name, feature in features.items()}


def _check_features(method: str, features: Any) -> None:
    wanted = isinstance(features, Mapping) and all(isinstance(f, FixedLenFeature | VarLenFeature) for f in features.values())
    if not wanted:
        raise ArgumentTypeError(f"{method}: features must be a dict of FixedLenFeature and VarLenFeature. Received: {features!r}.")


def _as_bytes(method: str, record: Any) -> bytes:
    if not isinstance(record, bytes):
        raise ArgumentTypeError(f"{method} takes serialized Examples as bytes. Received: {record!r}.")
    return record


# All records at once


def _shaped(stored: Stored, feature: FixedLenFeature | VarLenFeature) -> np.ndarray | None:
    """A feature as one array, or None if a record lacks values."""
    if isinstance(feature, VarLenFeature):
        return _padded(stored.flat, stored.counts)
    there = stored.there
    if not (stored.counts[there] == math.prod(feature.shape)).all():
        return None
    if there.all():
        return stored.flat.reshape(len(there), *feature.shape)
    if feature.default is None:
        return None
    out = np.empty((len(there), *feature.shape), feature.dtype)
    out[~there] = feature.default
    out[there] = stored.flat.reshape(int(there.sum()), *feature.shape)
    return out


def _padded(flat: np.ndarray, counts: np.ndarray) -> np.ndarray:
    if len(counts) and (counts == counts[0]).all():
        return flat.reshape(len(counts), counts[0])
    out = np.full((len(counts), counts.max(initial=0)), b"" if flat.dtype == STRING else 0, flat.dtype)
    out[np.arange(out.shape[1]) < counts[:, None]] = flat
    return out


# One record


def _decoded(method: str, record: bytes, number: int) -> dict[str, Values]:
    try:
        return decode_example(record)
    except WireError as error:
        raise ElementError(
            f"{method}: record {number} ({len(record)} bytes, {record[:12]!r}...) is not a serialized tf.train.Example: {error}."
        ) from error


def _one(name: str, feature: FixedLenFeature | VarLenFeature, found: dict[str, Values], number: int) -> Any:
    kind, values = found.get(name, _MISSING)
    if kind and DTYPES[kind] != feature.dtype:
        raise ElementError(f"Feature {name!r} of record {number} is {_LISTS[kind]}, but the feature says {_shown(feature)}.")
    if isinstance(feature, VarLenFeature):
        return _array(values, feature.dtype)
    if not kind and feature.default is not None:
        return _scalar(feature.default.copy())
    if not kind:
        raise ElementError(
            f"Feature {name!r} is missing from record {number}, which has {sorted(found)}. "
            "Give the FixedLenFeature a default_value, or use VarLenFeature."
        )
    if len(values) != math.prod(feature.shape):
        raise ElementError(
            f"Feature {name!r} of record {number} has {len(values)} values, but shape {feature.shape} needs "
            f"{math.prod(feature.shape)}. Use VarLenFeature if the number differs."
        )
    return _scalar(_array(values, feature.dtype).reshape(feature.shape))


def _array(values: Any, dtype: np.dtype) -> np.ndarray:
    return objects(list(values)) if dtype == STRING else np.array(values, dtype)


def _scalar(array: np.ndarray) -> Any:
    """The array, or a NumPy scalar or bytes if its rank is 0."""
    return array if array.ndim else array[()]


def _shown(feature: FixedLenFeature | VarLenFeature) -> str:
    return "str" if feature.dtype == STRING else str(feature.dtype)


def _stacked(name: str, feature: FixedLenFeature | VarLenFeature, found: list[dict[str, Values]]) -> np.ndarray:
    rows = [_one(name, feature, features, i) for i, features in enumerate(found)]
    if isinstance(feature, VarLenFeature):
        flat = np.concatenate([*rows, np.empty(0, feature.dtype)])
        return _padded(flat, np.array([len(row) for row in rows], np.int64))
    out = np.empty((len(rows), *feature.shape), feature.dtype)
    for i, row in enumerate(rows):
        out[i] = row
    return out
