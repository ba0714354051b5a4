"""The values of features in many Examples, read at once where all are written in the usual way."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from ._example import BYTES, FLOAT, WireError, list_values, varints
from ._examples_alike import Uniform
from ._examples_together import NotPlainError, Places, find_features


@dataclasses.dataclass(frozen=True)
class Stored:
    """The values of one feature in several Examples.

    ``flat`` has those of all Examples, one after the other, in the type in which they are stored. ``counts`` is how many each
    Example has, and ``there`` whether it has the feature at all.
    """

    flat: np.ndarray
    counts: np.ndarray
    there: np.ndarray


def stored_values(records: list[bytes], kinds: Mapping[str, int]) -> dict[str, Stored] | None:
    """Return the values of these features, which are lists of these kinds.

    Returns None if something is unusual or wrong in one of the records: reading them one by one finds out what.
    """
    data, sizes = b"".join(records), list(map(len, records))
    return _uniform(data, sizes, kinds) or _side_by_side(data, sizes, kinds)


def _uniform(data: bytes, sizes: list[int], kinds: Mapping[str, int]) -> dict[str, Stored] | None:
    """The features of records that have the same layout."""
    if not data or sizes.count(sizes[0]) != len(sizes):
        return None
    try:
        records = Uniform(data, sizes[0])
        tables = {name: records.values(name, kind) for name, kind in kinds.items()}
    except NotPlainError:
        return None
    there = np.ones(len(sizes), bool)
    return {name: Stored(table.ravel(), np.full(len(sizes), table.shape[1]), there) for name, table in tables.items()}


def _side_by_side(data: bytes, sizes: list[int], kinds: Mapping[str, int]) -> dict[str, Stored] | None:
    """The features of records with different layouts."""
    out: dict[str, Stored] = {}
    try:
        places = find_features(data, sizes, list(kinds))
        for name, kind in kinds.items():
            stored = _gathered(data, places[name], kind)
            if stored is None:
                return None
            out[name] = stored
    except (NotPlainError, WireError):
        return None
    return out


def _gathered(data: bytes, places: Places, kind: int) -> Stored | None:
    """The feature of all records, or None if it is of another kind in one of them."""
    there = places.kinds != 0
    if not (places.kinds[there] == kind).all():
        return None
    single = kind == BYTES and bool((places.values[there] >= 0).all())
    starts, stops = (places.values if single else places.starts)[there], places.stops[there]
    if kind != BYTES:
        flat, counts = _numbers(kind, data, starts, stops)
    else:
        pieces = [data[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        flat, counts = (objects(pieces), np.ones(len(pieces), np.int64)) if single else _strings(pieces)
    all_counts = np.zeros(len(there), np.int64)
    all_counts[there] = counts
    return Stored(flat, all_counts, there)


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
    return objects([text for row in texts for text in row]), counts


def objects(values: list) -> np.ndarray:
    """Return an array of these objects."""
    out = np.empty(len(values), object)
    out[:] = values
    return out
