"""Reads Examples of the same layout: they have the same size, and the same bytes around their values.

Writers of numbers and of images of one size produce these. The first record shows where everything is, and one comparison per
gap between the values shows that it holds for all records.
"""

import dataclasses
import struct

import numpy as np

from ._example import BYTES, FLOAT, varints
from ._examples_together import Head, NotPlainError, first_entry


@dataclasses.dataclass
class _Layout:
    """Where things are in each record: the fixed bytes, each run with its place, and the entry of each key."""

    size: int
    fixed: list[tuple[slice, np.ndarray]]
    entries: dict[bytes, tuple[int, Head]]

    @staticmethod
    def of(record: bytes) -> "_Layout":
        """Return the layout of this record.

        Raises:
            NotPlainError: If the record is not written in the usual way.
        """
        at, begin, fixed, entries = first_entry(record), 0, [], {}
        while at < len(record):
            head = Head.at(record, at)
            fixed.append(slice(begin, at + len(head.data)))
            entries[head.key] = at, head  # the last one counts
            begin = at = at + head.stop
        if at != len(record):
            raise NotPlainError
        fixed = fixed or [slice(0, at)]
        return _Layout(len(record), [(place, np.frombuffer(record[place], np.uint8)) for place in fixed], entries)

    def fits(self, table: np.ndarray) -> bool:
        """Return whether all records, which are the rows of ``table``, have this layout."""
        return table.shape[1] == self.size and all((table[:, place] == data).all() for place, data in self.fixed)


class Uniform:
    """Records of the same layout, one after the other in ``data``.

    Raises:
        NotPlainError: If their layouts differ, or they are not written in the usual way.
    """

    _last = _Layout(0, [], {})  # the next batch usually has the same layout

    def __init__(self, data: bytes, size: int) -> None:
        self.data, self.size = data, size
        self.table = np.frombuffer(data, np.uint8).reshape(-1, size)
        layout = Uniform._last
        if not layout.fits(self.table):
            layout = _Layout.of(data[:size])
            if not layout.fits(self.table):
                raise NotPlainError
            Uniform._last = layout
        self.entries = layout.entries

    def values(self, name: str, kind: int) -> np.ndarray:
        """Return the feature's values in new memory, one row for each record.

        Raises:
            NotPlainError: If it is missing or of another kind, or the number or length of its values differs between records.
        """
        at, head = self.entries.get(name.encode(), (0, None))
        if head is None or head.kind != kind:
            raise NotPlainError
        if kind == BYTES:
            return self._strings(at, head)
        packed = self.table[:, at + head.start : at + head.stop]
        if kind == FLOAT:
            if packed.shape[1] % 4:
                raise NotPlainError
            return packed.copy().view("<f4")
        last = packed < 0x80  # the last byte of a number
        if last.all():
            return packed.astype(np.int64)
        if not (last == last[0]).all() or not last[0, -1]:
            raise NotPlainError
        return varints(packed.tobytes()).reshape(len(packed), -1)

    def _strings(self, at: int, head: Head) -> np.ndarray:
        if not head.value:  # there are several, or none
            raise NotPlainError
        cut = struct.Struct(f"{at + head.value}x{head.stop - head.value}s{self.size - at - head.stop}x")
        out = np.empty((len(self.table), 1), object)
        out[:, 0] = [text for (text,) in cut.iter_unpack(self.data)]
        return out
