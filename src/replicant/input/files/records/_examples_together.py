"""Reads many Examples at once: NumPy walks through all of them side by side, one map entry at a time.

The order of the features and the sizes may differ between records. Whatever writers rarely produce (numbers that are not packed,
unknown fields, long keys) is left to `_example`.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from ._example import BYTES, DTYPES, FLOAT, varint

_FIRST, _SECOND = 0x0A, 0x12  # tags of sized fields 1 and 2
_LAST_KIND_TAG = 0x1A
_MAX_SHIFT = 28
_MAX_KEY = 127
_MAX_HEADS = 3


class NotPlainError(Exception):
    """A record is not written in the usual way."""


@dataclasses.dataclass
class Places:
    """Where one feature lies in the joined records: the kind of list (0 if it is missing or has no type), first byte and end.

    For numbers this is the packed data, for byte strings the list. ``values`` says where its only string begins, or is -1.
    """

    kinds: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    values: np.ndarray

    @staticmethod
    def nowhere(count: int) -> "Places":
        return Places(*np.zeros((4, count), np.int64))

    def put(self, rows: np.ndarray, group: "_Group") -> None:
        """Store what a group says about these records."""
        self.kinds[rows] = group.kinds
        self.starts[rows] = group.starts
        self.stops[rows] = group.stops
        self.values[rows] = group.values


def find_features(data: bytes, sizes: Sequence[int], names: Sequence[str]) -> dict[str, Places]:
    """Return the places of the named features in records that lie one after the other in ``data``.

    Raises:
        NotPlainError: If a record is damaged, or not written in the usual way.
    """
    if not data:
        raise NotPlainError
    walk = _Walk(data)
    ends = np.cumsum(np.asarray(sizes, np.int64))
    places = {name.encode(): Places.nowhere(len(ends)) for name in names}
    at = walk.tag(ends - sizes, _FIRST)
    at, stops = walk.size(at)
    _require(stops == ends)
    rows = np.flatnonzero(at < ends)
    while len(rows):
        for chosen, group in walk.entries(at[rows]):
            if group.key in places:
                places[group.key].put(rows[chosen], group)
            at[rows[chosen]] = group.stops
        _require(at[rows] <= ends[rows])
        rows = rows[at[rows] < ends[rows]]
    return {name: places[name.encode()] for name in names}


@dataclasses.dataclass
class _Group:
    """Map entries of several records that have the same key, with the facts that `Places` holds."""

    key: bytes
    kinds: np.ndarray | int
    starts: np.ndarray
    stops: np.ndarray
    values: np.ndarray | int


class _Walk:
    """Reads the same kind of thing at many places of one buffer."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.buffer = np.frombuffer(data, np.uint8)

    def byte(self, at: np.ndarray) -> np.ndarray:
        return self.buffer.take(at, mode="clip")  # the ends are checked afterwards

    def tag(self, at: np.ndarray, tag: int) -> np.ndarray:
        _require(self.byte(at) == tag)
        return at + 1

    def size(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the beginning and end of the data that follows a size."""
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

    def entries(self, at: np.ndarray) -> Iterator[tuple[np.ndarray, _Group]]:
        """Yield one map entry of each record, in groups, each with the numbers of its records.

        Usually many entries have the same bytes before their values. What is left after a few such groups is read field by field.
        """
        left = np.arange(len(at))
        for _ in range(_MAX_HEADS):
            head = Head.at(self.data, int(at[left[0]]))
            alike = (self.byte(at[left, None] + np.arange(len(head.data))) == head.data).all(axis=1)
            begins = at[left[alike]]
            values = begins + head.value if head.value else -1
            yield left[alike], _Group(head.key, head.kind, begins + head.start, begins + head.stop, values)
            left = left[~alike]
            if not len(left):
                return
            if len(begins) < len(left):
                break
        for chosen, group in self._read(at[left]):
            yield left[chosen], group

    def _read(self, at: np.ndarray) -> Iterator[tuple[np.ndarray, _Group]]:
        """Do the same, field by field."""
        at, stops = self.size(self.tag(at, _FIRST))
        keys, key_stops = self.size(self.tag(at, _FIRST))
        _require(key_stops - keys <= _MAX_KEY)
        at, feature_stops = self.size(self.tag(key_stops, _SECOND))
        _require(feature_stops == stops)
        kinds = np.zeros(len(at), np.int64)
        starts = stops.copy()
        full = np.flatnonzero(at < stops)  # a feature without a list is empty
        tags = self.byte(at[full])
        _require((tags & 7 == 2) & (tags <= _LAST_KIND_TAG) & (tags >= _FIRST))
        kinds[full] = tags >> 3
        starts[full], list_stops = self.size(at[full] + 1)
        _require(list_stops == stops[full])
        packed = np.flatnonzero((kinds >= FLOAT) & (starts < stops))
        starts[packed], packed_stops = self.size(self.tag(starts[packed], _FIRST))
        _require(packed_stops == stops[packed])
        values = np.full(len(at), -1)
        texts = np.flatnonzero((kinds == BYTES) & (starts < stops))
        value_starts, value_stops = self.size(self.tag(starts[texts], _FIRST))
        values[texts] = np.where(value_stops == stops[texts], value_starts, -1)
        for key, chosen in self._by_key(keys, key_stops):
            yield chosen, _Group(key, kinds[chosen], starts[chosen], stops[chosen], values[chosen])

    def _by_key(self, keys: np.ndarray, key_stops: np.ndarray) -> Iterator[tuple[bytes, np.ndarray]]:
        """Yield the different keys, and which entries have each of them. Usually all have the same key."""
        left = np.arange(len(keys))
        sizes = key_stops - keys
        while len(left):
            first = left[0]
            key = self.buffer[keys[first] : key_stops[first]]
            same = sizes[left] == len(key)
            places = keys[left[same], None] + np.arange(len(key))
            same[same] = (self.byte(places) == key).all(axis=1)
            yield key.tobytes(), left[same]
            left = left[~same]


@dataclasses.dataclass
class Head:
    """The bytes before the values of one map entry; places are relative to its first byte.

    Everything between these bytes and ``stop`` belongs to the values.
    """

    data: np.ndarray
    key: bytes
    kind: int
    start: int
    stop: int
    value: int  # where the only string begins; 0 if there are several or none

    @staticmethod
    def at(data: bytes, begin: int) -> "Head":
        """Return the head of the entry that begins at `begin`.

        Raises:
            NotPlainError: If the entry is not written in the usual way.
        """
        try:
            at, stop = _sized(data, begin, _FIRST)
            key, key_stop = _sized(data, at, _FIRST)
            at, feature_stop = _sized(data, key_stop, _SECOND)
            kind, start, value = 0, stop, begin
            head_stop = at
            if at < stop:
                kind = data[at] >> 3
                start, list_stop = _sized(data, at, kind << 3 | 2)
                if kind not in DTYPES or list_stop != stop:
                    raise NotPlainError
                head_stop = start
            if kind and start < stop:
                first, first_stop = _sized(data, start, _FIRST)
                if first_stop == stop:
                    head_stop = first
                    start, value = (start, first) if kind == BYTES else (first, begin)
                elif kind != BYTES:
                    raise NotPlainError
        except IndexError as error:
            raise NotPlainError from error
        if feature_stop != stop or key_stop - key > _MAX_KEY:
            raise NotPlainError
        head = np.frombuffer(data[begin:head_stop], np.uint8)
        return Head(head, data[key:key_stop], kind, start - begin, stop - begin, value - begin)


def first_entry(record: bytes) -> int:
    """Return where the entries of a record begin, which extend to its end.

    Raises:
        NotPlainError: If they do not.
    """
    try:
        at, stop = _sized(record, 0, _FIRST)
    except IndexError as error:
        raise NotPlainError from error
    if stop != len(record):
        raise NotPlainError
    return at


def _sized(data: bytes, at: int, tag: int) -> tuple[int, int]:
    """The beginning and end of a sized field with this tag."""
    if data[at] != tag:
        raise NotPlainError
    size, at = varint(data, at + 1)
    return at, at + size


def _require(holds: np.ndarray) -> None:
    if not holds.all():
        raise NotPlainError
