"""Megatron's indexed datasets: sequences of token ids in a ``.bin`` file, and where each of them is in an ``.idx`` file."""

import dataclasses
from typing import Any

import numpy as np

from ....errors import DatasetError
from ....storage._counts import current_counts
from ....storage._urls import is_url
from ...graph._blocks import Block, Boxed
from ...graph._structure import TensorSpec, flatten
from .._indexed import Index, OpenFile
from .._limits import MAX_RECORD_BYTES, too_large
from .._numbered import Numbered, NumberedFormat
from .._url_file import opened
from ._rows import FileBytes

_MAGIC = b"MMIDIDX\x00\x00"
_HEAD_BYTES = 34  # the mark, the version, the code of the dtype, and the numbers of sequences and documents
_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2", 9: "<u4", 10: "<u8"}
_AHEAD = 4096  # sequences whose places are read at once
_MOST_AT_ONCE = 1 << 24  # bytes that are read in one piece, if a sequence has no more
_ONE_LEAF = flatten(0)[1]


@dataclasses.dataclass(frozen=True)
class IndexHead:
    """What the head of an ``.idx`` file says: the dtype of token ids, and the number of sequences."""

    dtype: np.dtype
    count: int


@dataclasses.dataclass(frozen=True)
class Megatron(NumberedFormat):
    """The format of MegatronDataset."""

    max_record_bytes: int = MAX_RECORD_BYTES

    @property
    def name(self) -> str:
        return "MegatronDataset"

    def opened(self, path: str) -> "MegatronReader":
        prefix = prefix_of(path)
        index = opened(self.name, f"{prefix}.idx")
        try:
            head = self.head(index)
            return MegatronReader(self, path, index, opened(self.name, f"{prefix}.bin"), head)
        except BaseException:
            index.close()
            raise

    def head(self, index: FileBytes) -> IndexHead:
        """Return what the head of an index says.

        Raises:
            DatasetError: If it is not an index, or damaged.
        """
        data = index[:_HEAD_BYTES]
        if len(data) < _HEAD_BYTES or not data.startswith(_MAGIC):
            raise self.wrong(index, f"begins with {data[:9]!r} instead of {_MAGIC!r}. Pass the prefix of a .bin and an .idx file")
        version, code, count, documents = (int.from_bytes(data[a:b], "little") for a, b in ((9, 17), (17, 18), (18, 26), (26, 34)))
        if version != 1:
            raise self.wrong(index, f"has the version {version} of the format, and 1 is read")
        if code in (6, 7):
            raise self.wrong(
                index,
                f"has the dtype number {code}, a floating-point one, of which versions of Megatron say different things. Token ids "
                "are whole numbers: write them as such",
            )
        if code not in _DTYPES:
            raise self.wrong(index, f"has the dtype number {code}, and {sorted(_DTYPES)} are read")
        rest = len(index) - (_HEAD_BYTES + 12 * count + 8 * documents)
        if rest not in (0, count):  # a byte for each sequence says its mode, in datasets of several modes
            raise self.wrong(
                index,
                f"has {len(index)} bytes, and its head says {count} sequences and {documents} limits of documents, which take "
                f"{_HEAD_BYTES + 12 * count + 8 * documents}. Copy or write the files again",
            )
        return IndexHead(np.dtype(_DTYPES[code]), count)

    def wrong(self, file: FileBytes, what: str) -> DatasetError:
        """Return the error of a file that cannot be read."""
        return DatasetError(f"{self.name}: {file.path!r} {what}.")

    def places(self, index: FileBytes, head: IndexHead, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return where sequences begin, and how many bytes they have."""
        lengths, begins = np.empty(stop - start, "<i4"), np.empty(stop - start, "<i8")
        if stop > start:
            index.fill(lengths.view(np.uint8), _HEAD_BYTES + 4 * start)
            index.fill(begins.view(np.uint8), _HEAD_BYTES + 4 * head.count + 8 * start)
        return begins.astype(np.int64), lengths.astype(np.int64) * head.dtype.itemsize

    def check_places(self, data: FileBytes, begins: np.ndarray, sizes: np.ndarray, first: int) -> None:
        """Check that sequences, of which the first has this number, lie in the file, and are not too large.

        Raises:
            DatasetError: If one does not.
        """
        wrong = np.flatnonzero((begins < 0) | (sizes < 0) | (begins > len(data) - sizes))
        if len(wrong):
            at = int(wrong[0])
            raise self.wrong(
                data,
                f"has {len(data)} bytes, and its .idx file says that sequence {first + at} has {sizes[at]} from byte "
                f"{begins[at]} on. "
                "Copy or write the files again",
            )
        if len(large := np.flatnonzero(sizes > self.max_record_bytes)):
            raise too_large(
                self.name, data.path, int(begins[large[0]]), self.max_record_bytes, size=int(sizes[large[0]]), what="sequence"
            )

    def has_index(self, path: str) -> bool:
        return not self.skips and not is_url(path)

    def index(self, path: str) -> Index:
        return MegatronIndex(self, path)


def prefix_of(path: str) -> str:
    """Return the path without the ending of either file.

    >>> prefix_of("a/text_document.bin"), prefix_of("a/text_document")
    ('a/text_document', 'a/text_document')
    """
    return path.removesuffix(".idx") if path.endswith(".idx") else path.removesuffix(".bin")


class MegatronReader(Numbered):
    """Reads the sequences of two files. Those that lie one behind the other are read in one piece."""

    def __init__(self, form: Megatron, path: str, index: FileBytes, data: FileBytes, head: IndexHead) -> None:
        self.form, self.path, self.index, self.data, self.head = form, path, index, data, head
        self.size = head.count
        self.spec = TensorSpec((None,), head.dtype)
        self.counts = current_counts()
        self.first, self.begins, self.sizes = 0, np.empty(0, np.int64), np.empty(0, np.int64)

    @property
    def identity(self) -> str:
        facts = [str(file.identity) for file in (self.index, self.data) if file.identity]
        return ", ".join([f"{self.size} sequences of {self.head.dtype} in {len(self.data)} bytes", *facts])

    def run(self, start: int, stop: int) -> Block:
        if not self.first <= start < self.first + len(self.begins):
            ahead = min(start + _AHEAD, self.size)
            begins, sizes = self.form.places(self.index, self.head, start, ahead)
            self.first, self.begins, self.sizes = start, begins, sizes
        chosen = slice(start - self.first, stop - self.first)
        begins, sizes = self.begins[chosen], self.sizes[chosen]
        together = _together(begins, sizes)
        begins, sizes = begins[:together], sizes[:together]
        self.form.check_places(self.data, begins, sizes, start)
        rows = _sequences(self.data, begins, sizes, self.head.dtype)
        if isinstance(self.data, OpenFile):
            self.counts.add("file_bytes", int(sizes.sum()))
        return Block(_ONE_LEAF, [Boxed.of(rows)], len(rows))

    def close(self) -> None:
        self.index.close()
        self.data.close()


def _together(begins: np.ndarray, sizes: np.ndarray) -> int:
    """How many of the sequences lie one behind the other, and are read in one piece."""
    ends = begins + sizes
    apart = np.flatnonzero((begins[1:] != ends[:-1]) | (ends[1:] - begins[0] > _MOST_AT_ONCE))
    return int(apart[0]) + 1 if len(apart) else len(begins)


def _sequences(data: FileBytes, begins: np.ndarray, sizes: np.ndarray, dtype: np.dtype) -> list[np.ndarray]:
    """Sequences that lie one behind the other."""
    tokens = np.empty(int(sizes.sum()) // dtype.itemsize, dtype)
    if len(tokens):
        data.fill(tokens.view(np.uint8), int(begins[0]))
    ends = np.cumsum(sizes) // dtype.itemsize
    return np.split(tokens.astype(dtype.newbyteorder("="), copy=False), ends[:-1])


class MegatronIndex(Index):
    """The sequences of two files on this machine. Their places are in memory, 16 bytes for each."""

    def __init__(self, form: Megatron, path: str) -> None:
        self.form, self.path = form, path
        reader = form.opened(path)
        try:
            self.spec, self.head, self._identity = reader.spec, reader.head, reader.identity
            self.begins, self.sizes = form.places(reader.index, reader.head, 0, reader.size)
            self.facts = reader.data.facts if isinstance(reader.data, OpenFile) else None
        finally:
            reader.close()

    @property
    def size(self) -> int:
        return self.head.count

    @property
    def identity(self) -> str:
        return self._identity

    def read(self, numbers: np.ndarray) -> list[Any]:
        found: list[Any] = []
        with OpenFile(self.form.name, f"{prefix_of(self.path)}.bin", self.facts) as data:
            for number in numbers.tolist():
                begins, sizes = self.begins[number : number + 1], self.sizes[number : number + 1]
                self.form.check_places(data, begins, sizes, number)
                found += _sequences(data, begins, sizes, self.head.dtype)
        current_counts().add("file_bytes", int(self.sizes[numbers].sum()))
        return found

    def block(self, numbers: np.ndarray) -> Block:
        return Block(_ONE_LEAF, [Boxed.of(self.read(numbers))], len(numbers))
