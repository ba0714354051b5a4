"""The fields of a record of CSV, and their values."""

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....errors import ArgumentError, ArgumentTypeError, ElementError
from ...graph._structure import STRING, as_leaf
from ._csv_records import MAX_CSV_RECORD_BYTES

_TYPES = {"int32": np.int32, "int64": np.int64, "float32": np.float32, "float64": np.float64}
_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*")
_INFINITE = re.compile(r"\s*[+-]?inf(inity)?\s*", re.IGNORECASE)
_HEXADECIMAL = re.compile(r"\s*[+-]?0[xX].*")
_QUOTED = re.compile(r'"[^"]*+(?:""[^"]*+)*+"')
_SHOWN = 200  # characters of a record in a message


@dataclasses.dataclass(frozen=True)
class Column:
    """The dtype of a column, and what stands for an empty field; None: there must be none."""

    dtype: np.dtype
    default: Any = None

    def value(self, text: str, na_value: str, number: int) -> Any:
        """Return the value of a field.

        Raises:
            ElementError: If it is empty and must not be, or does not have the dtype.
        """
        if not text or text == na_value:
            if self.default is None:
                raise ElementError(f"field {number} is empty, but it has no default")
            return self.default
        if self.dtype == STRING:
            return text
        try:
            if self.dtype.kind == "i":
                return _whole(text, self.dtype)
            value = None
            if "_" not in text:
                value = self.dtype.type(float.fromhex(text) if _HEXADECIMAL.fullmatch(text) else text)
                if abs(value) != np.inf or _INFINITE.fullmatch(text):
                    return value
        except OverflowError:
            value = np.inf
        except ValueError:
            value = None
        raise ElementError(f"field {number} is {text!r}, which is {'not' if value is None else 'beyond'} {self.dtype.name}")


def _whole(text: str, dtype: np.dtype) -> Any:
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(text)
    number, limits = int(text), np.iinfo(dtype)
    if not limits.min <= number <= limits.max:
        raise OverflowError(text)
    return dtype.type(number)


@dataclasses.dataclass(frozen=True)
class CsvParser:
    """Makes a tuple of values of a record."""

    columns: tuple[Column, ...]
    delimiter: str = ","
    quotes: bool = True
    na_value: str = ""
    selected: tuple[int, ...] | None = None
    excluded: frozenset[int] | None = None
    max_record_bytes: int = MAX_CSV_RECORD_BYTES

    __qualname__ = "CsvDataset"  # the name in the pipeline's description

    def __call__(self, record: str) -> tuple[Any, ...]:
        """Return the values of the selected fields.

        Raises:
            ElementError: If the record is not CSV, or does not have the expected fields.
        """
        try:
            texts = self._chosen(fields(record, self.delimiter, self.quotes, self.max_record_bytes))
            with np.errstate(over="ignore"):  # which is told below, with the record
                return tuple(c.value(text, self.na_value, i) for i, (c, text) in enumerate(zip(self.columns, texts, strict=True)))
        except ElementError as error:
            raise ElementError(f"CsvDataset: {error}. The record is: {shown(record)}.") from None

    def _chosen(self, texts: list[str]) -> list[str]:
        if self.selected is not None:
            if self.selected and self.selected[-1] >= len(texts):
                raise ElementError(f"there are {len(texts)} fields, but column {self.selected[-1]} is selected")
            return [texts[i] for i in self.selected]
        if self.excluded is not None:
            texts = [text for i, text in enumerate(texts) if i not in self.excluded]
        if len(texts) != len(self.columns):
            raise ElementError(f"there are {len(texts)} fields, expected {len(self.columns)}")
        return texts


def shown(record: str) -> str:
    """Return the beginning of a record, for messages."""
    return repr(record[:_SHOWN])


def fields(record: str, delimiter: str, quotes: bool, most: int = MAX_CSV_RECORD_BYTES) -> list[str]:
    """Return the fields of a record, which has ``most`` bytes at most.

    Raises:
        ElementError: If quotes stand where they may not.

    >>> fields('1,"a ""b"", c",', ",", quotes=True)
    ['1', 'a "b", c', '']
    """
    if not quotes or '"' not in record:
        return record.split(delimiter)
    whole, one = _patterns(delimiter)
    if whole.fullmatch(record) is None:
        raise ElementError(_misplaced(record, delimiter, most))
    return [field[1:-1].replace('""', '"') if field[:1] == '"' else field for field in one.findall(record)]


@functools.lru_cache(maxsize=8)
def _patterns(delimiter: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """The patterns of a record, and of each of its fields with the delimiter before it."""
    d = re.escape(delimiter)
    field = rf'(?:"[^"]*+(?:""[^"]*+)*+"|[^"{d}]*+)'
    return re.compile(rf"{field}(?:{d}{field})*+"), re.compile(rf"(?:\A|{d})({field})")


def _misplaced(record: str, delimiter: str, most: int) -> str:
    """What is wrong with the quotes of a record."""
    number = at = 0
    while True:
        stop = record.find(delimiter, at)
        if record.startswith('"', at):
            match = _QUOTED.match(record, at)
            if match is None:
                return (
                    f"the quotes of field {number} are not closed: the file ends, max_record_bytes ({most:,} bytes) are over, "
                    "or a quote follows that stands neither before a delimiter nor at the end of a line. Write a quote "
                    "that belongs to the text twice in a quoted field, or give use_quote_delim=False"
                )
            stop = match.end()
            if not record.startswith(delimiter, stop):
                return f"field {number} goes on after its quotes"
        elif '"' in record[at : stop if stop >= 0 else len(record)]:
            return f"there are quotes inside of field {number}, which is not quoted"
        number, at = number + 1, stop + 1


def columns(method: str, record_defaults: Sequence[Any]) -> tuple[Column, ...]:
    """Return the columns that are described by dtypes or default values.

    Raises:
        ArgumentError: If there is none.
        ArgumentTypeError: If something is neither.
    """
    made = tuple(_column(method, each) for each in record_defaults)
    if not made:
        raise ArgumentError(f"{method}: record_defaults must name at least one column. Received: {record_defaults!r}.")
    return made


def _column(method: str, given: Any) -> Column:
    if given in (str, "string", "str", np.str_) if isinstance(given, str | type) else False:
        return Column(STRING)
    if isinstance(given, np.dtype | type) or (isinstance(given, str) and given in _TYPES):
        dtype = np.dtype(given)
        if dtype.name in _TYPES:
            return Column(dtype)
    else:
        leaf = as_leaf(given, lambda: f"{method}: a default")
        dtype = STRING if isinstance(leaf, str | bytes) else leaf.dtype
        if (dtype == STRING or dtype.name in _TYPES) and np.size(leaf) <= 1:
            values = [leaf] if isinstance(leaf, str | bytes) else list(np.ravel(leaf))
            return Column(dtype, values[0] if values else None)
    raise ArgumentTypeError(
        f"{method}: each of record_defaults must be a dtype (int32, int64, float32, float64 or str), for a column without empty "
        f"fields, or one default value. Received: {given!r}."
    )


def inferred(texts: Sequence[str], na_value: str) -> Column:
    """Return the narrowest column that holds these fields. An empty field is 0 or an empty string."""
    filled = [text for text in texts if text not in ("", na_value)]
    for kind in _TYPES.values():
        column = Column(np.dtype(kind), kind(0))
        if filled and all(_holds(column, text) for text in filled):
            return column
    return Column(STRING, "")


def _holds(column: Column, text: str) -> bool:
    try:
        with np.errstate(over="ignore"):
            value = column.value(text, "", 0)
    except ElementError:
        return False
    return bool(value < np.inf)
