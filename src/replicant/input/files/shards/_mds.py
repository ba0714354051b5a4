"""MDS shards, the format of MosaicML's streaming: numbered samples, and an index of where each begins."""

import bz2
import dataclasses
import functools
import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ....errors import DatasetError, ElementError
from ....storage._retry import RemoteError
from ....storage._urls import is_url
from ...graph._blocks import Block
from ...graph._graph import UNKNOWN, Node
from ...graph._structure import flatten
from .._file_names import FileNames
from .._format import Format, NoReader, Reader, check_unchanged
from .._indexed import Index, OpenFile, facts_of
from .._limits import MAX_SHARD_BYTES, too_large
from .._stream import PIECE, WINDOW_BITS, FileStream
from .._zstd import import_zstandard
from ._mds_encodings import DamagedError, Decoder, decoder
from ._mds_index import Column, FileFacts, Shard

_WORD = np.dtype("<u4")
_Bytes = memoryview | OpenFile


@dataclasses.dataclass(frozen=True)
class Mds(Format):
    """The format of MDSDataset: what index.json says, and the columns to read."""

    columns: tuple[Column, ...]
    names: tuple[str, ...] | None = None
    skips: bool = False
    shards: Mapping[str, Shard] = dataclasses.field(default_factory=dict, compare=False)
    max_shard_bytes: int = MAX_SHARD_BYTES

    @property
    def name(self) -> str:
        return "MDSDataset"

    @property
    def label(self) -> str:
        settings = [f"columns={list(self.names)}"] if self.names else []
        settings += ['on_error="skip"'] if self.skips else []
        return f"{self.name}({', '.join(settings)})"

    @functools.cached_property
    def decoders(self) -> dict[str, Decoder]:
        """The decoders of the columns that are read.

        Raises:
            DatasetError: If a column cannot be decoded.
        """
        found: dict[str, Decoder] = {}
        for column in self.columns:
            if self.names is None or column.name in self.names:
                try:
                    its = decoder(column.encoding)
                except DatasetError as error:
                    raise DatasetError(f"{self.name}: column {column.name!r} {error}") from error
                if its.size != column.size:
                    raise DatasetError(
                        f"{self.name}: column {column.name!r} is encoded as {column.encoding!r}, so its values have "
                        f"{its.size or 'any number of'} bytes, but index.json says {column.size}. Copy or write the folder again."
                    )
                found[column.name] = its
        return found

    def spec_of(self, paths: Iterator[str]) -> Any:
        if not self.shards:
            return None
        specs = {name: its.spec for name, its in self.decoders.items()}
        if None not in specs.values():
            return specs
        return next(filter(None, map(self._spec_of_first, paths)), None)

    @functools.cached_property
    def spec(self) -> Any:
        """The spec of the samples of all shards."""
        return self.spec_of(iter(self.shards))

    def _spec_of_first(self, path: str) -> Any:
        """The spec of the first sample of a shard that can be read; None if there is none."""
        try:
            reader = MdsReader(self, path, 0, None)
        except DatasetError as error:
            if not self._left_out(error):
                raise
            return None
        try:
            while reader.next < reader.shard.samples:
                try:
                    sample = reader.next_sample()
                    return {name: its.spec_of(sample[name], f"column {name!r}") for name, its in self.decoders.items()}
                except DatasetError as error:
                    if self._left_out(error):
                        if reader.held is None:
                            return None
                    elif not isinstance(error, ElementError):
                        raise
                    else:
                        where = f"the first sample of {path!r} says what columns hold, and cannot be used"
                        raise ElementError(f"{self.name}: {where}: {error}") from error
        finally:
            reader.close()
        return None

    def _left_out(self, error: DatasetError) -> bool:
        """Whether what could not be read is left out."""
        return self.skips and not isinstance(error.__cause__, RemoteError)

    def cardinality(self, node: Node) -> int:
        if self.skips or not isinstance(node, FileNames):
            return 0 if node.cardinality == 0 else UNKNOWN
        return sum(self.shards[path].samples for path in node.tables[0])

    def num_elements(self, path: str, part: int | None) -> int | None:
        return None if self.skips else self.shards[path].samples

    def open(self, path: str, position: Any, spec: Any, part: int | None = None, identity: str | None = None) -> Reader:
        try:
            reader = MdsReader(self, path, position, spec)
        except DatasetError as error:
            if not self._left_out(error):
                raise
            return NoReader(self.shards[path].samples - position, position)
        try:
            check_unchanged(self.name, path, identity, reader.identity)
        except DatasetError:
            reader.close()
            raise
        return reader

    def has_index(self, path: str) -> bool:
        return not self.skips and not is_url(path) and not self.shards[path].compression

    def index(self, path: str) -> Index:
        return MdsIndex(self, path)

    def offsets(self, path: str, data: _Bytes) -> np.ndarray:
        """Return where each sample of a shard begins, and where the last one ends.

        Raises:
            DatasetError: If the shard is not what index.json says.
        """
        shard = self.shards[path]
        if len(data) != shard.raw.size:
            raise self.damaged(path, f"it has {len(data)} bytes, and index.json says {shard.raw.size}")
        begin = (shard.samples + 2) * _WORD.itemsize
        count = int.from_bytes(data[: _WORD.itemsize], "little")
        if count != shard.samples or begin > len(data):
            raise self.damaged(path, f"it has {count} samples at byte 0, and index.json says {shard.samples}")
        offsets = np.frombuffer(data[_WORD.itemsize : begin], _WORD).astype(np.int64)
        wrong = np.flatnonzero(np.diff(offsets, prepend=begin) < 0)
        if len(wrong) or offsets[-1] != len(data):
            at = int(wrong[0]) if len(wrong) else shard.samples
            told = _WORD.itemsize * (at + 1)
            raise self.damaged(path, f"byte {told} says that sample {at} begins, or the last one ends, at {offsets[at]}")
        return offsets

    def damaged(self, path: str, what: str) -> DatasetError:
        """Return the error of a shard that cannot be read."""
        return DatasetError(f"{self.name}: {path!r} is damaged: {what}. Copy or write the file again.")

    def not_decompressed(self, shard: Shard, error: Exception) -> DatasetError:
        """Return the error of a shard that another library cannot decompress."""
        return self.damaged(shard.file.path, f"it cannot be decompressed ({error})")

    def sample(self, path: str, number: int, begin: int, data: bytes) -> dict[str, Any]:
        """Return the columns of a sample.

        Raises:
            ElementError: If its bytes are damaged.
        """
        try:
            return self._decoded(data)
        except DamagedError as error:
            raise ElementError(
                f"{self.name}: sample {number} of {path!r}, at byte {begin}, is damaged: {error}. Copy or write the file again."
            ) from error

    def _decoded(self, data: bytes) -> dict[str, Any]:
        head = sum(column.size is None for column in self.columns) * _WORD.itemsize
        if len(data) < head:
            raise DamagedError(f"it has {len(data)} bytes, and the sizes of its columns alone take {head}")
        sizes, at, found = iter(np.frombuffer(data[:head], _WORD).tolist()), head, {}
        for column in self.columns:
            size = next(sizes) if column.size is None else column.size
            if at + size > len(data):
                raise DamagedError(f"column {column.name!r} ends {at + size - len(data)} bytes behind it")
            if (its := self.decoders.get(column.name)) is not None:
                try:
                    found[column.name] = its.decode(data[at : at + size])
                except DamagedError as error:
                    raise DamagedError(f"column {column.name!r}: {error}") from error
            at += size
        if at != len(data):
            raise DamagedError(f"its columns have {at} bytes, and it has {len(data)}")
        return found

    def fitted(self, path: str, number: int, sample: dict[str, Any], spec: Any) -> dict[str, Any]:
        """Return a sample in the dtypes of all samples.

        Raises:
            ElementError: If it has other shapes or dtypes than the first one.
        """
        try:
            return {name: its.checked(sample[name], spec[name], f"column {name!r}") for name, its in self.decoders.items()}
        except ElementError as error:
            text = str(error).partition(". Give `output_signature`")[0].removesuffix(".")
            raise ElementError(
                f"{self.name}: sample {number} of {path!r} does not fit the first sample: {text}. Leave the column out: name "
                "others in `columns`."
            ) from error


class MdsReader(Reader):
    """Holds one shard, once its first sample is asked for. The position is the number of the next sample.

    Raises:
        DatasetError: If the file cannot be opened.
    """

    def __init__(self, form: Mds, path: str, position: int, spec: Any) -> None:
        self.form, self.path, self.next, self.spec = form, path, position, spec
        self.shard = form.shards[path]
        self.stream = FileStream(form.name, path, "")
        self.held: tuple[memoryview, np.ndarray] | None = None

    @property
    def identity(self) -> str:
        facts, stated = self.stream.identity, self.shard.raw
        mark = "".join(f", {name} {value}" for name, value in sorted(stated.hashes.items()))
        return f"{self.shard.samples} samples in {stated.size} bytes{mark}{f', {facts}' if facts else ''}"

    @property
    def position(self) -> int:
        return self.next

    def next_sample(self) -> dict[str, Any]:
        """Return the next sample, which must exist.

        Raises:
            DatasetError: If the shard is damaged.
            ElementError: If the sample is damaged. Whoever asks again gets the one behind it.
        """
        if self.held is None:
            data = _whole(self.form, self.shard, self.stream)
            self.held = data, self.form.offsets(self.path, data)
        data, offsets = self.held
        begin, end = offsets[self.next : self.next + 2].tolist()
        self.next += 1
        return self.form.sample(self.path, self.next - 1, begin, bytes(data[begin:end]))

    def pull(self, limit: int) -> Block | None:
        made: list[list[Any]] = []
        structure: Any = None
        while len(made) < limit and self.next < self.shard.samples:
            number = self.next
            try:
                leaves, structure = flatten(self.form.fitted(self.path, number, self.next_sample(), self.spec))
            except DatasetError as error:
                if self.form.skips and not isinstance(error.__cause__, RemoteError):
                    lost = 1 if self.held is not None else self.shard.samples - number
                    self.num_skipped, self.next = self.num_skipped + lost, number + lost
                elif made:
                    self.next = number  # whoever asks again gets to it
                    break
                else:
                    raise
            else:
                made.append(leaves)
        return Block.of_elements(structure, made) if made else None

    def skip(self, count: int) -> int:
        if self.form.skips:
            return Reader.skip(self, count)
        skipped = min(count, self.shard.samples - self.next)
        self.next += skipped
        return skipped

    def close(self) -> None:
        self.stream.close()


def _whole(form: Mds, shard: Shard, stream: FileStream) -> memoryview:
    """The contents of a shard, decompressed and compared with what index.json says."""
    if shard.raw.size > form.max_shard_bytes:
        raise too_large(
            form.name, shard.file.path, 0, form.max_shard_bytes, size=shard.raw.size, what="shard", argument="max_shard_bytes"
        )
    data, piece = bytearray(), memoryview(bytearray(PIECE))
    stream.skip(0)  # to the beginning, if a store did not answer before
    while len(data) <= shard.file.size and (count := stream.read_into(piece)):
        data += piece[:count]
    if len(data) != shard.file.size:
        more = " or more" if len(data) > shard.file.size else ""
        raise form.damaged(shard.file.path, f"it has {len(data)}{more} bytes, and index.json says {shard.file.size}")
    _check_hashes(form, shard.file, lambda digest: digest.update(data))
    if not shard.compression:
        return memoryview(data)
    raw = _decompressed(form, shard, data)
    if len(raw) != shard.raw.size:
        raise form.damaged(shard.file.path, f"it holds {len(raw)} bytes once decompressed, and index.json says {shard.raw.size}")
    _check_hashes(form, dataclasses.replace(shard.raw, path=shard.file.path), lambda digest: digest.update(raw))
    return memoryview(raw)


def _decompressed(form: Mds, shard: Shard, data: bytearray) -> bytearray:
    """The decompressed bytes, at most one more than there should be."""
    raw, most = bytearray(), shard.raw.size + 1
    errors: tuple[type[Exception], ...] = (zlib.error, OSError, EOFError)
    if shard.compression == "zstd":
        errors = (import_zstandard(form.name).ZstdError,)
    try:
        read = _decompressing(form, shard.compression, bytes(data))
        while piece := read(min(PIECE, most - len(raw))) if len(raw) < most else b"":
            raw += piece
    except errors as error:
        raise form.not_decompressed(shard, error) from error
    return raw


def _decompressing(form: Mds, compression: str, data: bytes) -> Callable[[int], bytes]:
    """What returns the next decompressed bytes, so many at most; none at the end."""
    if compression == "zstd":
        return import_zstandard(form.name).ZstdDecompressor().stream_reader(data, read_across_frames=True).read
    expand = zlib.decompressobj(WINDOW_BITS["GZIP"]) if compression == "gz" else bz2.BZ2Decompressor()
    rest = data

    def read(size: int) -> bytes:
        nonlocal rest
        piece = b"" if expand.eof else expand.decompress(rest, size)
        rest = b"" if isinstance(expand, bz2.BZ2Decompressor) else expand.unconsumed_tail
        return piece

    return read


def _check_hashes(form: Mds, file: FileFacts, feed: Callable[[Any], None]) -> None:
    """Compare the digests that index.json states, as far as hashlib has their algorithms."""
    for name, stated in file.hashes.items():
        if name in hashlib.algorithms_guaranteed and not name.startswith("shake_"):
            digest = hashlib.new(name, usedforsecurity=False)
            feed(digest)
            if digest.hexdigest() != stated.lower():
                raise form.damaged(file.path, f"its {name} is {digest.hexdigest()}, and index.json says {stated}")


class MdsIndex(Index):
    """The samples of a shard that lies on this machine, uncompressed. Its digests are compared before the first one is read."""

    def __init__(self, form: Mds, path: str) -> None:
        self.form, self.path, self.shard = form, path, form.shards[path]
        self.facts = facts_of(path)
        self.offsets: np.ndarray | None = None

    @property
    def size(self) -> int:
        return self.shard.samples

    @property
    def identity(self) -> str:
        return f"{self.shard.samples} {self.shard.raw.size} {sorted(self.shard.raw.hashes.items())}"

    def read(self, numbers: np.ndarray) -> list[Any]:
        with OpenFile(self.form.name, self.path, self.facts) as file:
            if self.offsets is None:
                self.offsets = self._checked(file)
            spans = zip(numbers.tolist(), self.offsets[numbers].tolist(), self.offsets[numbers + 1].tolist(), strict=True)
            samples = [(number, self.form.sample(self.path, number, begin, file[begin:end])) for number, begin, end in spans]
        return [self.form.fitted(self.path, number, sample, self.form.spec) for number, sample in samples]

    def _checked(self, file: OpenFile) -> np.ndarray:
        offsets = self.form.offsets(self.path, file)

        def feed(digest: Any) -> None:
            for begin in range(0, len(file), PIECE):
                digest.update(file[begin : begin + PIECE])

        _check_hashes(self.form, self.shard.raw, feed)
        return offsets
