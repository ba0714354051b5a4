"""ArrayRecord files, which the package ``array_record`` reads."""

import dataclasses
import functools
import importlib
from typing import Any

import numpy as np

from ...._whole_file import open_regular
from ....errors import ConfigurationError, DatasetError, ElementError
from ....storage._counts import current_counts
from ....storage._urls import is_url
from ...graph._blocks import Block, Boxed
from ...graph._structure import flatten
from .._file_names import STRING_SPEC
from .._indexed import Facts, Index, facts_of
from .._limits import MAX_RECORD_BYTES, too_large
from .._numbered import Numbered, NumberedFormat
from .._remedies import if_compressed, if_not_opened
from ._example_values import objects

_AHEAD = 256  # records that are read at once
_MOST_OPEN = 64  # files of which any records are read
_AT_RANDOM = "readahead_buffer_size:0,max_parallelism:0"  # what the package advises for that
_ONE_LEAF = flatten(0)[1]


class ArrayRecordFile:
    """A file whose records are read by their numbers.

    Args:
        method: For messages.
        path: The path.
        most: The most bytes of a record.
        options: For the package.

    Raises:
        ConfigurationError: If the package is not installed.
        DatasetError: If the file cannot be opened.
    """

    identity = None  # the file is on this machine

    def __init__(self, method: str, path: str, most: int, options: str = "") -> None:
        module = _imported(method)
        if is_url(path):
            raise DatasetError(
                f"{method}: {path!r} is an ArrayRecord file, which can only be read from a disk of this machine. Copy it to one."
            )
        try:
            with open_regular(path) as file:
                head = file.read(6)
        except OSError as error:
            raise DatasetError(f"{method}: cannot open {path!r}: {error.strerror}. {if_not_opened(path, error)}") from error
        self.method, self.path, self._most, self.position = method, path, most, 0
        if (remedy := if_compressed(head, ())) is not None:
            raise DatasetError(f"{method}: {path!r} is not an ArrayRecord file. {remedy}")
        self._file: Any = self._answer(module.ArrayRecordReader, path, options)
        if not self._file.ok():  # only then does `close` say what is wrong; `num_records` says 0
            self._answer(self._file.close)
        self.size: int = self._answer(self._file.num_records)

    def at(self, position: int) -> "ArrayRecordFile":
        """Return the file, which goes on at a record."""
        self.position = position
        return self

    def read(self, limit: int) -> np.ndarray:
        """Return the next records, at most ``limit``; none at the end.

        Raises:
            DatasetError: If the file is damaged here, or a record has too many bytes.
        """
        stop = min(self.position + limit, self.size)
        if stop <= self.position:
            return objects([])
        found = self.records(self.position, stop)
        self.position = stop
        return found

    def records(self, start: int, stop: int) -> np.ndarray:
        """Return the records from ``start`` on, up to ``stop``.

        Raises:
            DatasetError: As `read`.
        """
        return self._checked(range(start, stop), self._answer(self._file.read, start, stop))

    def chosen(self, numbers: np.ndarray) -> np.ndarray:
        """Return the records with these numbers.

        Raises:
            DatasetError: As `read`.
        """
        chosen = numbers.tolist()
        return self._checked(chosen, self._answer(self._file.read, chosen))

    def _checked(self, numbers: range | list[int], found: list[bytes]) -> np.ndarray:
        for number, record in zip(numbers, found, strict=True):
            if len(record) > self._most:
                raise too_large(self.method, self.path, number, self._most, size=len(record))
        return objects(found)

    def _answer(self, call: Any, *args: Any) -> Any:
        try:
            return call(*args)
        except (RuntimeError, ValueError, IndexError) as error:
            raise DatasetError(f"{self.method}: {self.path!r} is damaged: {error}. Copy or write the file again.") from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclasses.dataclass(frozen=True)
class ArrayRecords(NumberedFormat):
    """The format of ArrayRecordDataset."""

    max_record_bytes: int = MAX_RECORD_BYTES

    @property
    def name(self) -> str:
        return "ArrayRecordDataset"

    def opened(self, path: str) -> "ArrayRecordReader":
        return ArrayRecordReader(self, path)

    def has_index(self, path: str) -> bool:
        return not self.skips and not is_url(path)

    def index(self, path: str) -> Index:
        return ArrayRecordIndex(self, path)


class ArrayRecordReader(Numbered):
    """Reads records in their order, some of them ahead."""

    spec = STRING_SPEC

    def __init__(self, form: ArrayRecords, path: str) -> None:
        self.form, self.path = form, path
        self.file = ArrayRecordFile(form.name, path, form.max_record_bytes)
        self.size, self.facts = self.file.size, facts_of(path)
        self.counts = current_counts()
        self.first, self.held = 0, objects([])

    @property
    def identity(self) -> str:
        return _identity(self.size, self.facts)

    def run(self, start: int, stop: int) -> Block:
        if not self.first <= start < self.first + len(self.held):
            self.first, self.held = start, self._read(start, min(max(stop, start + 1), start + _AHEAD, self.size))
            self.counts.add("file_bytes", sum(map(len, self.held)))
        records = self.held[start - self.first : stop - self.first]
        return Block(_ONE_LEAF, [Boxed(records)], len(records))

    def _read(self, start: int, stop: int) -> np.ndarray:
        """These records, or those before one that cannot be read."""
        try:
            return self.file.records(start, stop)
        except DatasetError as error:
            if stop - start > 1:
                return self._read(start, start + (stop - start) // 2)
            raise ElementError(str(error).replace(f"{self.path!r} is", f"record {start} of {self.path!r} is", 1)) from error

    def close(self) -> None:
        self.file.close()


class ArrayRecordIndex(Index):
    """The records of a file. Some files stay open, because opening one takes as long as many reads."""

    spec = STRING_SPEC

    def __init__(self, form: ArrayRecords, path: str) -> None:
        self.form, self.path, self.facts = form, path, facts_of(path)
        self._size = _open(form, path, self.facts).size

    @property
    def size(self) -> int:
        return self._size

    @property
    def identity(self) -> str:
        return _identity(self._size, self.facts)

    def read(self, numbers: np.ndarray) -> list[Any]:
        if (now := facts_of(self.path)) != self.facts:
            raise DatasetError(
                f"{self.form.name}: {self.path!r} has changed since its index was made. Put the file back as it was, or make the "
                "dataset again."
            )
        found = _open(self.form, self.path, now).chosen(numbers)
        current_counts().add("file_bytes", sum(map(len, found)))
        return found.tolist()

    def block(self, numbers: np.ndarray) -> Block:
        return Block(_ONE_LEAF, [Boxed(objects(self.read(numbers)))], len(numbers))


@functools.lru_cache(maxsize=_MOST_OPEN)
def _open(form: ArrayRecords, path: str, facts: Facts | None) -> ArrayRecordFile:
    """An open file with these facts, which closes once nothing refers to it."""
    del facts
    return ArrayRecordFile(form.name, path, form.max_record_bytes, _AT_RANDOM)


def _identity(size: int, facts: Facts | None) -> str:
    return f"{size} records in {facts[0] if facts else 0} bytes"


def _imported(method: str) -> Any:
    try:
        return importlib.import_module("array_record.python.array_record_module")
    except ImportError as error:
        raise ConfigurationError(
            f"{method} reads ArrayRecord files with the package array_record, which cannot be imported ({error}). Run: pip install "
            "'replicant-jax[array-record]'."
        ) from error
