"""The values of features in several Examples as columns: one row per example."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...graph._blocks import Boxed, Column, Dense
from ...graph._structure import STRING
from ..columns._lists import Lists
from ..records._example_values import Stored, objects
from ._features import Feature, row_lengths


class WrongExample(Exception):
    """An example does not have what its features say.

    Args:
        row: The number of the example, among those that are looked at.
        path: The feature; "" if it is the example as a whole.
        what: What is wrong with it, as the end of a sentence.
    """

    def __init__(self, row: int, path: str, what: str) -> None:
        super().__init__(f"its feature {path!r} {what}" if path else f"it {what}")
        self.row = row


def column_of(feature: Feature, stored: Mapping[str, Stored], count: int) -> Column:
    """Return the values of a feature in ``count`` examples; of one that is encoded, the byte strings.

    Raises:
        WrongExample: If an example has too few or too many values.
    """
    if feature.is_ragged:
        return _ragged(feature, stored)
    if feature.encoding:
        return _encoded(feature, stored)
    part, shape = stored[feature.path], feature.shape
    known = math.prod(size for size in shape if size is not None)
    if None not in shape:
        return _dense(feature, part, known)
    _check(feature, part.counts % known == 0 if known else part.counts == 0, part.counts, f"a multiple of {known}")
    values, sizes = _cast(part.flat, feature.dtype), part.counts // max(known, 1)
    if shape[0] is None:
        return Lists(np.arange(count), values.reshape(int(sizes.sum()), *shape[1:]), np.append(0, np.cumsum(sizes)))
    pieces = _pieces(values, part.counts)
    return Boxed.of([piece.reshape(_filled(shape, size)) for piece, size in zip(pieces, sizes.tolist(), strict=True)])


def _pieces(values: Any, sizes: Any) -> list[Any]:
    """The values cut into pieces of these sizes."""
    ends = np.append(0, np.cumsum(sizes, dtype=np.int64)).tolist()
    return [values[a:b] for a, b in itertools.pairwise(ends)]


def _filled(shape: tuple[int | None, ...], size: int) -> tuple[int, ...]:
    return tuple(size if each is None else each for each in shape)


def _check(feature: Feature, right: np.ndarray, counts: np.ndarray, needed: str) -> None:
    if not right.all():
        row = int(np.argmin(right))
        raise WrongExample(row, feature.path, f"has {counts[row]} values, and its shape {feature.shape} needs {needed}")


def _dense(feature: Feature, part: Stored, known: int) -> Column:
    """A column of values that all have one shape."""
    if not (part.there.all() or feature.optional):
        raise WrongExample(int(np.argmin(part.there)), feature.path, "is missing")
    _check(feature, (part.counts == known) | ~part.there, part.counts, str(known))
    values = _cast(part.flat, feature.dtype)
    if not part.there.all():
        filled = np.full((len(part.there), known), feature.default, object if feature.dtype == STRING else part.flat.dtype)
        filled[part.there] = part.flat.reshape(-1, known) if known else filled[part.there]
        values = _cast(filled.ravel(), feature.dtype)
    return Dense(values.reshape(len(part.there), *feature.shape)) if feature.shape or feature.dtype != STRING else Boxed(values)


def _cast(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Numbers as they are stored, in the dtype of their feature. Whole numbers keep their last bits, as in TensorFlow."""
    return values if values.dtype == dtype else values.astype(dtype)


def _encoded(feature: Feature, stored: Mapping[str, Stored]) -> Column:
    """A column of byte strings, or of lists of them, each with its shape if that is stored."""
    items, counts = _items(feature, stored)
    if not feature.lengths:
        if not (counts == 1).all():
            row = int(np.argmin(counts == 1))
            raise WrongExample(row, feature.path, f"has {counts[row]} values instead of one" if counts[row] else "is missing")
        return Boxed(items)
    length = feature.lengths[0]
    if length is not None:
        _check(feature, counts == length, counts, str(length))
    return Boxed.of(_split(items, counts))


def _split(items: np.ndarray, counts: np.ndarray) -> list[list[Any]]:
    """The items of each example as a list."""
    return _pieces(items.tolist(), counts)


def _items(feature: Feature, stored: Mapping[str, Stored]) -> tuple[np.ndarray, np.ndarray]:
    """The byte strings of an encoded feature, with their shapes if these are stored, and how many each example has."""
    flat = "/ragged_flat_values" if feature.is_ragged else ""
    if not feature.has_own_shape:
        part = stored[f"{feature.path}{flat}"]
        return part.flat, part.counts
    part, shapes = stored[f"{feature.path}/value{flat}"], stored[f"{feature.path}/shape{flat}"]
    rank = len(feature.item)
    _check(feature, shapes.counts == rank * part.counts, shapes.counts, f"{rank} sizes of each item")
    pairs = zip(part.flat.tolist(), map(tuple, shapes.flat.reshape(-1, rank).tolist()), strict=True)
    return objects(list(pairs)), part.counts


def _ragged(feature: Feature, stored: Mapping[str, Stored]) -> Column:
    """A column of lists of lists."""
    name = f"{feature.path}/value" if feature.has_own_shape else feature.path
    lists = _split(*_items(feature, stored)) if feature.encoding else _plain_items(feature, stored[f"{name}/ragged_flat_values"])
    levels = [_split(stored[each].flat, stored[each].counts) for each in row_lengths(name, feature)]
    return Boxed.of([_nested(feature, row, each, [level[row] for level in levels]) for row, each in enumerate(lists)])


def _plain_items(feature: Feature, part: Stored) -> list[list[Any]]:
    """The items of each example: numbers of Python or byte strings, or arrays if they have a shape."""
    known = math.prod(size or 0 for size in feature.item)  # all are known
    _check(feature, part.counts % known == 0 if known else part.counts == 0, part.counts, f"a multiple of {known}")
    sizes = part.counts // max(known, 1)
    values = _cast(part.flat, feature.dtype).reshape(int(sizes.sum()), *feature.item)
    pieces = _pieces(values, sizes)
    return [list(piece) if feature.item else piece.tolist() for piece in pieces]


def _nested(feature: Feature, row: int, items: list[Any], levels: list[list[int]]) -> list[Any]:
    """The items of one example in lists, whose lengths are those of ``levels``, the outermost first."""
    for lengths, expected in zip(reversed(levels), reversed(feature.lengths), strict=False):
        if min(lengths, default=0) < 0 or sum(lengths) != len(items):
            raise WrongExample(row, feature.path, f"has lists of the lengths {lengths[:20]} for {len(items)} items")
        if expected is not None and {*lengths} - {expected}:
            raise WrongExample(row, feature.path, f"has lists of the lengths {lengths[:20]} instead of {expected} each")
        items = _pieces(items, lengths)
    if feature.lengths[0] is not None and len(items) != feature.lengths[0]:
        raise WrongExample(row, feature.path, f"has {len(items)} lists instead of {feature.lengths[0]}")
    return items
