"""The records of CSV files: a line each, or several where a line end is inside of quotes."""

import dataclasses
import functools
import itertools
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Any

from .. import _stream
from .._file_format import Cut, FileReader
from .._format import Reader
from ._lines import Lines

_LINE_END = re.compile(rb"\r\n?|\n")
MAX_CSV_RECORD_BYTES = 1 << 24  # of a record, which may be several lines; a longer one has a quote that nobody closed


@dataclasses.dataclass(frozen=True)
class CsvRecords(Lines):
    """The records of CSV files, as text. The first record of each file is left out if it is a header.

    A quote counts at the beginning of a field, and in a field that began with one. Several lines are one record if what stands
    after each closing quote is a delimiter or the end of the record, and if they are ``max_record_bytes`` at most. Otherwise the
    first of them is a record of its own, whose parser tells what is wrong with it: a quote too many costs the line that it is in.
    A byte order mark at the beginning of a file belongs to no record.
    """

    header: bool = False
    quotes: bool = True
    delimiter: str = ","
    max_record_bytes: int = dataclasses.field(default=MAX_CSV_RECORD_BYTES, kw_only=True)

    @property
    def name(self) -> str:
        return "CsvDataset"

    def open(self, path: str, position: Any, spec: Any, part: int | None = None, identity: str | None = None) -> Reader:
        return CsvReader(self, path, position, identity)

    def split(self, path: str, offset: int, data: memoryview, last: bool, looked: "Looked | None" = None) -> Cut:
        text = data.tobytes()
        mark = len(BOM_UTF8) if offset == 0 and text.startswith(BOM_UTF8) else 0  # as Excel writes it
        text = text[mark:]
        first = int(self.header and offset == 0)
        records: list[bytes] = []
        for lines in _pieces(text, 0, last):
            records += lines
            if len(records) > first:
                break
        if self.quotes and b'"' in text and self._any_opens(records):
            ends = [0]
            for end in self._ends_of_records(text, last, offset + mark, looked or Looked()):
                ends.append(end)
                if end >= _stream.PIECE and len(ends) > 1 + first:
                    break
            records = [text[start:end] for start, end in itertools.pairwise(ends)]
        else:
            ends = [0, *itertools.accumulate(map(len, records))]
        ends = [mark + end for end in ends[first + 1 :]]
        return self._decoded(path, offset, data, [each.rstrip(b"\r\n") for each in records[first:]], ends)

    def _any_opens(self, lines: list[bytes]) -> bool:
        opens = _patterns(self.delimiter.encode()).opens.fullmatch
        return any(b'"' in line and opens(line) for line in lines)

    def _ends_of_records(self, text: bytes, last: bool, offset: int, looked: "Looked") -> Iterator[int]:
        """Yield where each whole record ends.

        Each line is looked at twice at most: as the first of a record, and as one that goes on inside of quotes.
        """
        line = _patterns(self.delimiter.encode())
        behind = _Behind(text, last, looked.since - offset, looked.up_to - offset, line)
        end = until = 0
        for each in _lines(text, 0, last):
            begin, end = end, end + len(each)
            if end <= until:
                continue  # a line of the record before
            until = end
            if b'"' in each and line.opens.fullmatch(each):
                leaves = behind.first_leaving(end, begin + self.max_record_bytes)
                if leaves is not None:
                    until = leaves[1] if leaves[1] - begin <= self.max_record_bytes and leaves[2] else end
                else:
                    looked.since, looked.up_to = offset + end, offset + behind.at
                    if not last and len(text) - begin <= self.max_record_bytes:
                        return
            yield until


@dataclasses.dataclass
class Looked:
    """Where a file was looked at for a line that leaves the quotes that an earlier line opened: none there does."""

    since: int = 0
    up_to: int = 0


class _Behind:
    """Looks for the first line from some place on that begins inside of quotes and does not end there.

    None does between ``since`` and ``up_to``.
    """

    def __init__(self, text: bytes, last: bool, since: int, up_to: int, patterns: "_Patterns") -> None:
        self.text, self.last, self.patterns = text, last, patterns
        self.since, self.up_to = since, up_to
        self.at = 0  # the line where it looks next
        self.found: tuple[int, int, bool] | None = None

    def first_leaving(self, begin: int, most: int) -> tuple[int, int, bool] | None:
        """Return where it begins and ends, and whether it ends a record. None if there is none up to the byte ``most``."""
        if self.found is not None and self.found[0] >= begin:
            return self.found
        self.at = max(self.at, self.up_to if self.since <= begin <= self.up_to else begin)
        self.found = None
        while self.at <= most and (line := self._next_with_quote()) is not None:
            if self.patterns.stays.fullmatch(line) is None:
                self.found = self.at - len(line), self.at, self.patterns.closes.fullmatch(line) is not None
                return self.found
        return None

    def _next_with_quote(self) -> bytes | None:
        """The next whole line that has a quote, without a look at each line before it. None if there is none."""
        quote = self.text.find(b'"', self.at)
        until = quote if quote >= 0 else len(self.text)
        self.at = max(self.at, self.text.rfind(b"\n", self.at, until) + 1, self.text.rfind(b"\r", self.at, until) + 1)
        if quote < 0:
            return None
        end = _LINE_END.search(self.text, quote)
        if not self.last and (end is None or (end.end() == len(self.text) and not end[0].endswith(b"\n"))):  # LF may follow CR
            return None
        begin, self.at = self.at, len(self.text) if end is None else end.end()
        return self.text[begin : self.at]


def _lines(text: bytes, at: int, last: bool) -> Iterator[bytes]:
    return itertools.chain.from_iterable(_pieces(text, at, last))


def _pieces(text: bytes, at: int, last: bool) -> Iterator[list[bytes]]:
    """Yield the whole lines from some byte on, those of a `PIECE` at a time. They end by CR, LF or both.

    What follows the last end is a line if it is the `last` data.
    """
    while at < len(text):
        stop, lines = at, []
        while len(lines) < 2 and stop < len(text):  # the last one may go on, or LF may follow its CR
            stop = max(stop + _stream.PIECE, at + 2 * (stop - at))
            lines = text[at:stop].splitlines(keepends=True)
        if lines and (stop < len(text) or (not last and not lines[-1].endswith(b"\n"))):
            lines.pop()
        if not lines:
            return
        yield lines
        at += sum(map(len, lines))


class CsvReader(FileReader):
    """Reads records, and remembers how far it looked for the end of quotes."""

    form: CsvRecords

    def __init__(self, form: CsvRecords, path: str, position: int, identity: str | None = None) -> None:
        super().__init__(form, path, position, identity)
        self.looked = Looked()

    def _split(self, offset: int, data: memoryview, last: bool) -> Cut:
        return self.form.split(self.path, offset, data, last, self.looked)


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
