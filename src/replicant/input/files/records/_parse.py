"""`parse_example` and `parse_single_example`: from serialized Examples to arrays."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....errors import ArgumentError, ArgumentTypeError, ElementError
from ...graph._structure import STRING
from ._example import BYTES, DTYPES, FLOAT, Values, WireError, decode_example, list_values, varints
from ._examples_alike import Uniform
from ._examples_together import NotPlainError, Places, find_features

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
                f"FixedLenFeature: default_value {self.default_value!r} is no {self.dtype} array of shape {self.shape}."
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
    data, sizes = b"".join(records), list(map(len, records))
    parsed = _uniform(data, sizes, features) or _side_by_side(data, sizes, features)
    if parsed is None:  # unusual or wrong: parsing one by one finds out what is wrong
        found = [_decoded("parse_example", record, i) for i, record in enumerate(records)]
        return {name: _stacked(name, feature, found) for name, feature in features.items()}
    return parsed


def _check_features(method: str, features: Any) -> None:
    wanted = isinstance(features, Mapping) and all(isinstance(f, FixedLenFeature | VarLenFeature) for f in features.values())
    if not wanted:
        raise ArgumentTypeError(f"{method}: features must be a dict of FixedLenFeature and VarLenFeature. Received: {features!r}.")


def _as_bytes(method: str, record: Any) -> bytes:
    if not isinstance(record, bytes):
        raise ArgumentTypeError(f"{method} takes serialized Examples as bytes. Received: {record!r}.")
    return record


# All records at once; None if something is unusual or wrong.


def _uniform(data: bytes, sizes: list[int], features: Features) -> dict[str, np.ndarray] | None:
    """The features of records that have the same layout."""
    if not data or sizes.count(sizes[0]) != len(sizes):
        return None
    out: dict[str, np.ndarray] = {}
    try:
        records = Uniform(data, sizes[0])
        for name, feature in features.items():
            values = out[name] = records.values(name, _KINDS[feature.dtype])
            if isinstance(feature, FixedLenFeature):
                if values.shape[1] != math.prod(feature.shape):
                    return None
                out[name] = values.reshape(len(sizes), *feature.shape)
    except NotPlainError:
        return None
    return out


def _side_by_side(data: bytes, sizes: list[int], features: Features) -> dict[str, np.ndarray] | None:
    """The features of records with different layouts."""
    out: dict[str, np.ndarray] = {}
    try:
        places = find_features(data, sizes, list(features))
        for name, feature in features.items():
            array = _gathered(data, places[name], feature)
            if array is None:
                return None
            out[name] = array
    except (NotPlainError, WireError):
        return None
    return out


def _gathered(data: bytes, places: Places, feature: FixedLenFeature | VarLenFeature) -> np.ndarray | None:
    """The feature of all records, or None if something is wrong with one of them."""
    kind = _KINDS[feature.dtype]
    there = places.kinds != 0
    if not (places.kinds[there] == kind).all():
        return None
    single = kind == BYTES and bool((places.values[there] >= 0).all())
    starts, stops = (places.values if single else places.starts)[there], places.stops[there]
    if kind != BYTES:
        flat, counts = _numbers(kind, data, starts, stops)
    else:
        pieces = [data[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        flat, counts = (_objects(pieces), np.ones(len(pieces), np.int64)) if single else _strings(pieces)
    if isinstance(feature, VarLenFeature):
        all_counts = np.zeros(len(there), np.int64)
        all_counts[there] = counts
        return _padded(flat, all_counts)
    if not (counts == math.prod(feature.shape)).all():
        return None
    if there.all():
        return flat.reshape(len(there), *feature.shape)
    if feature.default is None:
        return None
    out = np.empty((len(there), *feature.shape), feature.dtype)
    out[~there] = feature.default
    out[there] = flat.reshape(len(starts), *feature.shape)
    return out


def _numbers(kind: int, data: bytes, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of all lists in one array, and how many each list has."""
    sizes = stops - starts
    packed = _pieces(data, starts, sizes)
    if kind == FLOAT:
        if (sizes % 4).any():
            raise WireError("a number is cut off")
        return packed.view("<f4"), sizes // 4
    last = packed < 0x80  # the last byte of a number
    if last.all():
        return packed.astype(np.int64), sizes
    borders = np.cumsum(sizes)
    if not last[borders[sizes > 0] - 1].all():
        raise WireError("a number is cut off")
    ends = np.concatenate([[0], np.cumsum(last)])
    return varints(packed.tobytes()), np.diff(ends[borders], prepend=0)


def _pieces(data: bytes, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The bytes of all pieces, one after the other, in new memory."""
    size = int(sizes[0]) if len(sizes) else 0
    if (sizes == size).all():  # row i of this view begins at byte i
        return np.ndarray((len(data) - size + 1, size), np.uint8, data, strides=(1, 1))[starts].ravel()
    pieces = [data[start : start + size] for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)]
    return np.frombuffer(bytearray().join(pieces), np.uint8)


def _strings(lists: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """The byte strings of all lists in one array, and how many each list has."""
    texts = [list_values(piece, BYTES, 0, len(piece)) for piece in lists]
    counts = np.fromiter(map(len, texts), np.int64, len(texts))
    return _objects([text for row in texts for text in row]), counts


def _padded(flat: np.ndarray, counts: np.ndarray) -> np.ndarray:
    out = np.full((len(counts), counts.max(initial=0)), b"" if flat.dtype == STRING else 0, flat.dtype)
    out[np.arange(out.shape[1]) < counts[:, None]] = flat
    return out


def _objects(texts: list[bytes]) -> np.ndarray:
    out = np.empty(len(texts), object)
    out[:] = texts
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
    return _objects(list(values)) if dtype == STRING else np.array(values, dtype)


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
