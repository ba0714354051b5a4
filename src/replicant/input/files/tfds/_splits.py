"""Splits: which examples of which files ``train[:10%]+test`` are. The rules are those of ``tfds.core.ReadInstruction``."""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence

from ....errors import ArgumentError

_SUM = re.compile(r"\s*\+\s*")
_PART = re.compile(r"(?P<name>[\w-]+)(\[(?P<slice>[\d\w%:.-]+)\])?", re.ASCII)
_BOUND = re.compile(r"((?P<value>-?[\d_.]+)(?P<unit>%|shard)?)?", re.ASCII)
_EXAMPLES = (
    "Write a split such as 'train', 'train[:10%]', 'train[5:20]', 'train[1shard:]', 'train+test' or 'all': see "
    "https://www.tensorflow.org/datasets/splits"
)


@dataclasses.dataclass(frozen=True)
class Split:
    """A split of the folder: the files and how many examples each has."""

    name: str
    files: tuple[str, ...]
    lengths: tuple[int, ...]

    @property
    def num_examples(self) -> int:
        """The number of examples."""
        return sum(self.lengths)

    @property
    def num_shards(self) -> int:
        """The number of files."""
        return len(self.files)


@dataclasses.dataclass(frozen=True)
class FileSlice:
    """Examples ``start`` to ``stop`` of a file."""

    file: str
    start: int
    stop: int


def slices_of(method: str, split: str, splits: Mapping[str, Split]) -> list[FileSlice]:
    """Return what to read of each file, in order.

    Raises:
        ArgumentError: If there is no such split, it is not written as TFDS knows it, or it has no examples.
    """
    if split in splits:
        found = _files_between(splits[split], 0, splits[split].num_examples)
    else:
        found = [each for part in _SUM.split(split) for each in _slices_of_part(method, split, part, splits)]
    if not found:
        known = ", ".join(f"{each.name} ({each.num_examples})" for each in splits.values())
        raise ArgumentError(f"{method}: the split {split!r} has no examples. The numbers of examples are: {known or 'none'}.")
    return found


def _slices_of_part(method: str, split: str, part: str, splits: Mapping[str, Split]) -> list[FileSlice]:
    """The slices of one summand."""
    found = _PART.fullmatch(part)
    if found is None:
        raise ArgumentError(f"{method}: {part!r} in the split {split!r} cannot be read. {_EXAMPLES}.")
    name, bounds = found["name"], found["slice"]
    if name == "all":
        if bounds is not None:
            raise ArgumentError(f"{method}: {part!r}: 'all' cannot be cut. Cut each split, and add them: 'train[:10]+test[:10]'.")
        return [each for its in splits.values() for each in _files_between(its, 0, its.num_examples)]
    if name not in splits:
        raise ArgumentError(f"{method}: there is no split {name!r}. The splits are {list(splits)}.")
    its = splits[name]
    return _files_between(its, *_range(method, part, bounds, its)) if bounds is not None else _files_between(its, 0, None)


@dataclasses.dataclass(frozen=True)
class _Bound:
    """One end of a slice, as it is written; ``value`` is None where nothing is."""

    value: str | None
    unit: str | None


def _range(method: str, part: str, bounds: str, split: Split) -> tuple[int, int]:
    """The numbers of the first example of a slice, and of the one behind it."""
    ends = [_bound(method, part, text) for text in bounds.split(":")]
    if len(ends) == 1 and ends[0].unit == "shard" and ends[0].value is not None:  # train[2shard]
        ends.append(_Bound(str(_number(method, part, ends[0].value, "shard") + 1), "shard"))
    elif len(ends) != 2 or all(end.value is None for end in ends):
        raise ArgumentError(f"{method}: {part!r} is not a slice: a slice has two ends, at least one of them written. {_EXAMPLES}.")
    units = {end.unit for end in ends if end.unit is not None}
    if len(units) > 1:
        raise ArgumentError(f"{method}: {part!r} has its ends in {' and '.join(sorted(units))}. Write both in the same unit.")
    unit = units.pop() if units else ""
    start, stop = (None if end.value is None else _number(method, part, end.value, unit) for end in ends)
    return _absolute(method, part, start, stop, unit, split)


def _bound(method: str, part: str, text: str) -> _Bound:
    found = _BOUND.fullmatch(text)
    if found is None:
        raise ArgumentError(f"{method}: {text!r} in {part!r} is not a number of examples, percent or shards. {_EXAMPLES}.")
    return _Bound(found["value"], found["unit"])


def _number(method: str, part: str, text: str, unit: str) -> float:
    try:
        number = float(text) if unit == "%" else int(text)
    except ValueError:
        whole = "number" if unit == "%" else "whole number"
        raise ArgumentError(f"{method}: {text!r} in {part!r} is not a {whole}. {_EXAMPLES}.") from None
    if unit == "%" and abs(number) > 100:
        raise ArgumentError(f"{method}: {part!r} has {number:g} percent. Percents are -100 to 100.")
    return number


def _absolute(  # noqa: PLR0917 - the parts of a slice
    method: str, part: str, start: float | None, stop: float | None, unit: str, split: Split
) -> tuple[int, int]:
    """The slice in numbers of examples. Percents are rounded to the nearest, and of two that are as near, to the even one."""
    size = split.num_examples
    if unit == "%":
        first, last = (None if end is None else round(end * size / 100.0) for end in (start, stop))
    elif unit == "shard":
        first, last = _of_shards(start, stop, split.lengths)
    else:
        first, last = (None if end is None else int(end) for end in (start, stop))
    first, last = (0 if first is None else first), (size if last is None else last)
    if abs(first) > size or abs(last) > size:
        raise ArgumentError(f"{method}: {part!r} is {first}:{last}, but {split.name!r} has {size} examples.")
    first, last = (end + size if end < 0 else end for end in (first, last))
    if first > last:
        raise ArgumentError(f"{method}: {part!r} begins at example {first} and ends before it, at {last}.")
    return first, last


def _of_shards(start: float | None, stop: float | None, lengths: Sequence[int]) -> tuple[int | None, int | None]:
    """The ends in numbers of examples. Those of shards that are not there are the last one, as for lists."""
    last = stop
    if last is not None and last <= 0:
        last += len(lengths)
    first = None if start is None else sum(lengths[: int(start)])
    return first, None if last is None else sum(lengths[: int(last)])


def _files_between(split: Split, start: int, stop: int | None) -> list[FileSlice]:
    """The slices of files that are examples ``start`` to ``stop`` of all files, one after the other."""
    stop = split.num_examples if stop is None else stop
    ends = itertools.accumulate(split.lengths, initial=0)
    found: list[FileSlice] = []
    for file, length, begin in zip(split.files, split.lengths, ends, strict=False):
        first, last = max(start - begin, 0), min(stop - begin, length)
        if first < last:
            found.append(FileSlice(file, first, last))
    return found
