"""The examples in the files of a folder."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ....errors import DatasetError, ElementError
from ...graph._blocks import Block, Boxed, Column
from ...graph._graph import Node
from ...graph._structure import flatten
from .._file_format import FileReader
from .._format import Format, Reader
from .._small_files import is_missing
from ..records._array_record import ArrayRecordFile
from ..records._example_values import Stored, stored_values
from ..records._tfrecord import Records
from ._columns import WrongExample, column_of
from ._decode import decoded
from ._features import METHOD, Steps, leaves_of, spec_of
from ._one_by_one import stored_one_by_one
from ._steps import steps_of

_AHEAD = 256  # examples whose values are found at once


class _TFRecords(Records):
    """TFRecord files, under the name of the function that reads them."""

    @property
    def name(self) -> str:
        return METHOD


@dataclasses.dataclass(frozen=True)
class Examples(Format):
    """The format of `tfds_folder`.

    Args:
        title: The dataset and the split, for positions.
        features: The features, in the structure of an element.
        lengths: How many examples each file has, as dataset_info.json says.
        file_format: "tfrecord" or "array_record".
        max_record_bytes: The most bytes that a record may have.
        make_dataset: Makes a dataset of the steps of an example.
        start: The number of the first example to read of each file.
        stop: The number of the example to stop at; None reads all.
    """

    title: str
    features: Any
    lengths: Mapping[str, int]
    file_format: str
    max_record_bytes: int
    make_dataset: Callable[[Node], Any] = dataclasses.field(compare=False)
    start: int = 0
    stop: int | None = None

    def part(self, start: int, stop: int) -> "Examples":
        """Return the format that reads these examples of a file."""
        return dataclasses.replace(self, start=start, stop=stop)

    @property
    def name(self) -> str:
        return METHOD

    @property
    def label(self) -> str:
        return f"{self.name}({self.title})"

    @functools.cached_property
    def leaves(self) -> list[Any]:
        """The features in the order of an element's leaves."""
        return leaves_of(self.features)

    @functools.cached_property
    def stored(self) -> dict[str, int]:
        """The names in an Example that are read, and the kind of list of each."""
        return {name: kind for each in self.leaves for name, kind in each.stored.items()}

    @functools.cached_property
    def structure(self) -> Any:
        """The structure of an element."""
        return flatten(self.features)[1]

    @functools.cached_property
    def spec(self) -> Any:
        """The spec of the examples."""
        return spec_of(self.features)

    def spec_of(self, paths: Iterator[str]) -> Any:
        return self.spec

    def open(self, path: str, position: Any, spec: Any, part: int | None = None, identity: str | None = None) -> Reader:
        number, begin, passed = position or (0, 0, self.start)
        return ExampleReader(self, path, self._opened(path, begin, identity), number, passed)

    def columns(self, path: str, number: int, records: list[bytes]) -> list[Column]:
        """Return the columns of records, of which the first is record ``number`` of a file. What is encoded stays so.

        Raises:
            WrongExample: If one is not an Example, or has other values than its features say.
        """
        stored = stored_values(records, self.stored)
        if stored is None:
            stored = stored_one_by_one(records, self.stored)
        return [self._column(each, stored, len(records), path, number) for each in self.leaves]

    def _column(self, feature: Any, stored: Mapping[str, Stored], count: int, path: str, number: int) -> Column:
        if not isinstance(feature, Steps):
            return column_of(feature, stored, count)

        def dataset(row: int) -> Any:
            return self.make_dataset(steps_of(feature, stored, row, lambda error: self.error(path, number + row, error)))

        return Boxed.of([dataset(row) for row in range(count)])

    def error(self, path: str, number: int, wrong: WrongExample | None) -> ElementError:
        """Return the error of an example."""
        return ElementError(f"{METHOD}: example {number} of {path!r} is wrong: {wrong}. Copy or write the file again.")

    def _opened(self, path: str, position: int, identity: str | None) -> FileReader | ArrayRecordFile:
        try:
            if self.file_format == "array_record":
                return ArrayRecordFile(METHOD, path, self.max_record_bytes).at(position)
            return FileReader(_TFRecords(max_record_bytes=self.max_record_bytes), path, position, identity)
        except DatasetError as error:
            if is_missing(error):
                raise DatasetError(
                    f"{METHOD}: {path!r} is missing, which should have {self.lengths[path]} examples of {self.title}. Copy the "
                    "folder again."
                ) from error.__cause__
            raise


class ExampleReader(Reader):
    """Reads one file. It holds some records, and the values of those up to the first wrong one.

    The position is that of the first record that is held (its number, and where it is), and how many of them were passed.
    """

    def __init__(self, form: Examples, path: str, file: FileReader | ArrayRecordFile, number: int, passed: int) -> None:
        self.form, self.path, self.file = form, path, file
        self.number, self.begin = number, file.position
        self.records: list[bytes] = []
        self.index = 0  # of the next record, in those that are held
        self.to_skip = passed  # records, before anything else is read
        self.first, self.columns, self.stop = 0, list[Column](), 0  # the values of records `first` to `stop`
        self.wrong: WrongExample | None = None  # the record after these
        self.failure: DatasetError | None = None

    @property
    def identity(self) -> str | None:
        return self.file.identity

    @property
    def position(self) -> Any:
        return [self.number, self.begin, self.index + self.to_skip]

    def pull(self, limit: int) -> Block | None:
        self._settle()
        while self.index < len(self.records) or self._hold_more():
            if self.index >= self.stop:
                self._find_values()
            if self.index < self.stop:
                return self._decoded(self.index, min(self.stop, self.index + limit))
            self.index += 1  # whoever asks again gets the next one
            raise self.form.error(self.path, self.number + self.index - 1, self.wrong)
        return None

    def skip(self, count: int) -> int:
        self._settle()
        return self._pass_over(count)

    def _settle(self) -> None:
        to_skip, self.to_skip = self.to_skip, 0
        if to_skip:
            self._pass_over(to_skip)

    def _pass_over(self, count: int) -> int:
        """Move ahead by up to ``count`` records without looking into them, and return how many there were."""
        passed = 0
        while passed < count and (self.index < len(self.records) or self._hold_more()):
            step = min(count - passed, len(self.records) - self.index)
            passed, self.index = passed + step, self.index + step
        return passed

    def _hold_more(self) -> bool:
        """Hold the next records, if there are any.

        Raises:
            DatasetError: If the file is damaged, or has other records than dataset_info.json says.
        """
        if self.failure is not None:
            raise self.failure
        begin, number, expected = self.file.position, self.number + len(self.records), self.form.lengths[self.path]
        stop = expected if self.form.stop is None else self.form.stop
        if number >= stop:
            return False
        records = self.file.read(min(_AHEAD, stop - number)).tolist()
        end = number + len(records)
        if not records:
            self.failure = self._miscounted(f"{end}", expected)
        elif end == expected and len(self.file.read(1)):
            self.failure = self._miscounted(f"more than {expected}", expected)
        if self.failure is not None:
            raise self.failure
        self.number, self.begin, self.records, self.index, self.stop = number, begin, records, 0, 0
        return True

    def _miscounted(self, found: str, expected: int) -> DatasetError:
        return DatasetError(
            f"{METHOD}: {self.path!r} has {found} examples, and dataset_info.json says {expected} ('shardLengths'). Copy the "
            "folder again."
        )

    def _find_values(self) -> None:
        """Find the values of the records from the next one on, up to one that is wrong."""
        self.first, self.stop, self.wrong = self.index, len(self.records), None
        while self.first < self.stop:
            try:
                self.columns = self.form.columns(self.path, self.number + self.first, self.records[self.first : self.stop])
            except WrongExample as error:
                self.stop, self.wrong = self.first + error.row, error
            else:
                break

    def _decoded(self, start: int, stop: int) -> Block:
        """These examples, as far as they can be decoded, but at least the first.

        Raises:
            ElementError: If the first cannot be. Whoever asks again gets the next one.
        """
        chosen = slice(start - self.first, stop - self.first)
        columns = [column.with_refs(column.refs[chosen]) for column in self.columns]
        try:
            made = [decoded(each, column) for each, column in zip(self.form.leaves, columns, strict=True)]
        except WrongExample as error:
            if error.row:
                return self._decoded(start, start + error.row)
            self.index += 1
            raise self.form.error(self.path, self.number + start, error) from error
        self.index = stop
        return Block(self.form.structure, made, stop - start)

    def close(self) -> None:
        self.file.close()
