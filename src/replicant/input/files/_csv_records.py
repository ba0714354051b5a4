"""The records of CSV files: a line each, or several where a line end is inside of quotes."""

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Sequence

from ._files import Cut
from ._lines import Lines

MAX_RECORD_BYTES = 1 << 24  # of a record of several lines; a longer one has a quote that nobody closed


@dataclasses.dataclass(frozen=True)
class CsvRecords(Lines):
    """The records of CSV files, as text. The first record of each file is left out if it is a header.

    A quote counts at the beginning of a field, and in a field that began with one. Several lines are one record if what stands
    after each closing quote is a delimiter or the end of the record, and if they are ``MAX_RECORD_BYTES`` at most. Otherwise the
    first of them is a record of its own, whose parser tells what is wrong with it: a quote too many costs the line that it is in.
    """

    header: bool = False
    quotes: bool = True
    delimiter: str = ","

    @property
    def name(self) -> str:
        return "CsvDataset"

    def split(self, path: str, offset: int, data: memoryview, last: bool) -> Cut:
        text = data.tobytes()
        lines = text.splitlines(keepends=True)  # CR, LF or both
        if lines and not last and not lines[-1].endswith(b"\n"):  # LF may follow CR
            lines.pop()
        ends = [0, *itertools.accumulate(map(len, lines))]
        if self.quotes and b'"' in text:
            ends = [0, *self._ends_of_records(lines, ends, None if last else len(text))]
            lines = [text[start:end] for start, end in itertools.pairwise(ends)]
        first = int(self.header and offset == 0)
        return self._decoded(path, offset, data, [line.rstrip(b"\r\n") for line in lines[first:]], ends[first + 1 :])

    def _ends_of_records(self, lines: list[bytes], ends: Sequence[int], more_at: int | None) -> Iterator[int]:
        """Yield where each whole record ends. ``more_at`` is where more data follows, None if there is none.

        Each line is looked at twice at most: as the first of a record, and as one that goes on inside of quotes.
        """
        line = _patterns(self.delimiter.encode())
        not_within = (i for i, each in enumerate(lines) if b'"' in each and line.stays.fullmatch(each) is None)
        number, leaves = 0, -1
        while number < len(lines):
            if b'"' in lines[number] and line.opens.fullmatch(lines[number]):
                while leaves <= number:
                    leaves = next(not_within, len(lines))
                if leaves < len(lines):
                    short = ends[leaves + 1] - ends[number] <= MAX_RECORD_BYTES
                    number = leaves if short and line.closes.fullmatch(lines[leaves]) else number
                elif more_at is not None and more_at - ends[number] <= MAX_RECORD_BYTES:
                    return
            number += 1
            yield ends[number]


@dataclasses.dataclass(frozen=True)
class _Patterns:
    """What a line is, with its end."""

    opens: re.Pattern[bytes]  # one that begins a record, and ends inside of quotes
    stays: re.Pattern[bytes]  # one that begins and ends inside of quotes
    closes: re.Pattern[bytes]  # one that begins inside of quotes, and ends a record


@functools.lru_cache(maxsize=8)
def _patterns(delimiter: bytes) -> _Patterns:
    d = re.escape(delimiter)
    within = rb'[^"]*+(?:""[^"]*+)*+'
    unquoted = rb'(?!")' + (rb"[^%s]*+" % d if len(delimiter) == 1 else rb"(?:(?!%s)[\s\S])*+" % d)
    field = rb'(?:"%s"(?=%s|[\r\n]|\Z)|%s)' % (within, d, unquoted)
    opens = rb'(?:%s%s)*+"%s' % (field, d, within)
    return _Patterns(
        opens=re.compile(opens),
        stays=re.compile(rb'%s(?:"%s%s)?+' % (within, d, opens)),
        closes=re.compile(rb'%s"(?:%s%s)*+[\r\n]*+' % (within, d, field)),
    )
