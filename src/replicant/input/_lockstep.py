"""Reading many Examples at once: NumPy walks through all of them side by side, one map entry at a time.

The records need not have their features in one order, and sizes may differ. Whatever writers rarely produce (numbers
that are not packed, unknown fields, long keys) is left to `_example`.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from ._example import FLOAT

_FIRST, _SECOND = 0x0A, 0x12  # tags of sized fields 1 and 2
_LAST_KIND_TAG = 0x1A
_MAX_SHIFT = 28
_MAX_KEY = 127


class NotPlainError(Exception):
    """Some record is not written in the usual way."""


@dataclasses.dataclass
class Places:
    """Where one feature lies in the joined records: kind of list, or 0 where it is missing or empty; first byte; end.

    For numbers this is the packed data, for byte strings the list.
    """

    kinds: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    seen: np.ndarray

    @staticmethod
    def nowhere(count: int) -> "Places":
        return Places(*(np.zeros(count, np.int64) for _ in range(3)), np.zeros(count, bool))


def find_features(data: bytes, sizes: Sequence[int], names: Sequence[str]) -> dict[str, Places]:
    """The places of the named features in records that lie one after the other in ``data``.

    Raises:
        NotPlainError: some record is not written in the usual way, or damaged.
    """
    walk = _Walk(data)
    ends = np.cumsum(np.asarray(sizes, np.int64))
    places = {name.encode(): Places.nowhere(len(ends)) for name in names}
    at = walk.tag(ends - sizes, _FIRST)
    at, stops = walk.size(at)
    _require(stops == ends)
    rows = np.flatnonzero(at < ends)
    while len(rows):
        entry = walk.entry(at[rows])
        for key, chosen in walk.by_key(entry):
            if key in places:
                _put(places[key], rows[chosen], entry, chosen)
        at[rows] = entry.stops
        _require(entry.stops <= ends[rows])
        rows = rows[entry.stops < ends[rows]]
    return {name: places[name.encode()] for name in names}


@dataclasses.dataclass
class _Entry:
    """One map entry of each record."""

    keys: np.ndarray
    key_stops: np.ndarray
    kinds: np.ndarray
    starts: np.ndarray
    stops: np.ndarray


def _put(place: Places, rows: np.ndarray, entry: _Entry, chosen: np.ndarray) -> None:
    place.kinds[rows] = entry.kinds[chosen]
    place.starts[rows] = entry.starts[chosen]
    place.stops[rows] = entry.stops[chosen]
    place.seen[rows] = True


class _Walk:
    """Reads the same kind of thing at many places of one buffer."""

    def __init__(self, data: bytes) -> None:
        self.buffer = np.frombuffer(data, np.uint8)

    def byte(self, at: np.ndarray) -> np.ndarray:
        return self.buffer.take(at, mode="clip")  # ends are compared afterwards

    def tag(self, at: np.ndarray, tag: int) -> np.ndarray:
        _require(self.byte(at) == tag)
        return at + 1

    def size(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Begin and end of what a size stands before."""
        byte = self.byte(at)
        value = (byte & 0x7F).astype(np.int64)
        at = at + 1
        more, shift = np.flatnonzero(byte >= 0x80), 7
        while len(more):
            if shift > _MAX_SHIFT:
                raise NotPlainError
            byte = self.byte(at[more])
            value[more] |= (byte & 0x7F).astype(np.int64) << shift
            at[more] += 1
            more, shift = more[byte >= 0x80], shift + 7
        return at, at + value

    def entry(self, at: np.ndarray) -> _Entry:
        at, stops = self.size(self.tag(at, _FIRST))
        keys, key_stops = self.size(self.tag(at, _FIRST))
        _require(key_stops - keys <= _MAX_KEY)
        at, feature_stops = self.size(self.tag(key_stops, _SECOND))
        _require(feature_stops == stops)
        kinds = np.zeros(len(at), np.int64)
        starts = stops.copy()
        full = np.flatnonzero(at < stops)  # a feature without any list is empty
        tags = self.byte(at[full])
        _require((tags & 7 == 2) & (tags <= _LAST_KIND_TAG) & (tags >= _FIRST))
        kinds[full] = tags >> 3
        starts[full], list_stops = self.size(at[full] + 1)
        _require(list_stops == stops[full])
        packed = np.flatnonzero((kinds >= FLOAT) & (starts < stops))
        starts[packed], packed_stops = self.size(self.tag(starts[packed], _FIRST))
        _require(packed_stops == stops[packed])
        return _Entry(keys, key_stops, kinds, starts, stops)

    def by_key(self, entry: _Entry) -> list[tuple[bytes, np.ndarray]]:
        """The keys of these entries, and which have each of them; mostly one key for all."""
        found = []
        left = np.arange(len(entry.keys))
        sizes = entry.key_stops - entry.keys
        while len(left):
            first = left[0]
            key = self.buffer[entry.keys[first] : entry.key_stops[first]]
            same = sizes[left] == len(key)
            places = entry.keys[left[same], None] + np.arange(len(key))
            same[same] = (self.byte(places) == key).all(axis=1)
            found.append((key.tobytes(), left[same]))
            left = left[~same]
        return found


def _require(holds: np.ndarray) -> None:
    if not holds.all():
        raise NotPlainError
