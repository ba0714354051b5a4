"""Tar files whose members are samples, in the manner of WebDataset."""

import dataclasses
import functools
import hashlib
import math
import re
import tarfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from ....errors import DatasetError
from ....storage._retry import RemoteError
from ....storage._urls import is_url
from ...graph._blocks import Block
from ...graph._graph import UNKNOWN, Node
from ...graph._structure import STRING, TensorSpec, flatten
from .._files import Cut, FileFormat, FileReader, Reader
from .._indexed import Index, OpenFile, facts_of
from .._limits import too_large
from .._remedies import HEAD, if_compressed
from .._stream import WINDOW_BITS

_BLOCK = tarfile.BLOCKSIZE
_NUL = bytes(_BLOCK)
KEY = "__key__"
# The header of a file as GNU tar and Python write it, from byte 100 on: mode, owner, group, size, time, checksum, type, ..., device
# and no further part of the name. `tarfile` reads it and all others, but takes four times as long.
_PLAIN = re.compile(
    rb"(?:[0-7]{7}\0){3}([0-7]{11})\0[0-7]{11}\0([0-7]{6})\0 0.{100}ustar.{67}(?:(?:[0-7]{7}\0){2}|\0{16})\0", re.DOTALL
)
_DIGITS = 20  # of a size in bytes, at most
_PAX_LENGTH = re.compile(rb"([0-9]{1,20}) ")
_MOST_ABOUT_NEXT = 1 << 20  # bytes of a header about the next member, as libarchive takes them
_OF_NEXT = {tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE}  # headers about the next member
_META = re.compile("__[^/]*__(/|$)")  # what WebDataset leaves out at the top of an archive
_ELSEWHERE = {tarfile.GNUTYPE_SPARSE: "sparse file", tarfile.LNKTYPE: "hard link", tarfile.SYMTYPE: "symbolic link"}


@dataclasses.dataclass(frozen=True)
class Tar(FileFormat):
    """The format of TarDataset: members whose names are the same up to the first dot of their last part are one sample.

    Members whose last part has no dot, or begins with one, belong to no sample.
    """

    skips: bool = False
    cuts_all = True

    @property
    def name(self) -> str:
        return "TarDataset"

    @property
    def label(self) -> str:
        settings = [self.compression] if self.compression else []
        settings += ['on_error="skip"'] if self.skips else []
        return f"{self.name}({', '.join(settings)})"

    def open(self, path: str, position: Any, spec: Any, part: int | None = None, identity: str | None = None) -> Reader:
        return TarReader(self, path, position, identity)

    def spec_of(self, paths: Iterator[str]) -> Any:
        for path in paths:
            reader = TarReader(self, path, 0)
            try:
                block = reader.pull(1)
            finally:
                reader.close()
            if block is not None:
                return {name: TensorSpec((), STRING) for name in next(block.elements())}
        return None

    def cardinality(self, node: Node) -> int:
        return 0 if node.cardinality == 0 else UNKNOWN

    def has_index(self, path: str) -> bool:
        return not self.compression and not is_url(path)

    def index(self, path: str) -> "TarIndex":
        return _index(self, path, facts_of(path))

    def split(self, path: str, offset: int, data: memoryview, last: bool, left_out: list[int] | None = None) -> Cut:
        samples: list[dict[str, Any]] = []
        ends: list[int] = []
        try:
            for sample in self.samples(path, offset, data, last, [] if left_out is None else left_out):
                samples.append(sample.read(data))
                ends.append(sample.end)
        except DatasetError as error:
            return samples, ends, error
        return samples, ends, None

    def samples(
        self, path: str, offset: int, data: "memoryview | OpenFile | bytes", last: bool, left_out: list[int]
    ) -> Iterator["TarSample"]:
        """Yield where the whole samples in ``data`` are. Members that belong to none are left out, and their ends noted.

        Raises:
            DatasetError: If the file is damaged there, or has members of which none belongs to a sample.
        """
        sample, found = TarSample("", 0, 0, {}), False
        for name, content, end in self._members(path, offset, data, last):
            place = _key_and_ending(name) if name is not None else None
            if name is not None and place is None:
                left_out.append(end)
                continue
            if sample.contents and (place is None or place[0] != sample.key):
                yield sample
                sample = TarSample("", sample.end, sample.end, {})
            if place is not None:
                found, (key, ending) = True, place
                if ending in sample.contents or ending == KEY:
                    raise self._second(path, offset + sample.end, name)
                sample.key, sample.end = key, end
                sample.contents[ending] = content
            elif not sample.contents:
                sample.begin = sample.end = end
        if last and left_out and not found and not offset:
            raise DatasetError(
                f"{self.name}: none of the {len(left_out)} members of {path!r} belongs to a sample, because their names begin "
                'with a dot, have none, or are in a folder like "__meta__". Name them by their sample and what they hold, such as '
                '"0001.jpg" and "0001.cls".'
            )

    def _second(self, path: str, at: int, name: str | None) -> DatasetError:
        return DatasetError(
            f"{self.name}: {path!r} has a second member {name!r} in one sample, at byte {at}. Give samples names of their own; "
            "endings in capitals are the same as in lower case."
        )

    def _members(
        self, path: str, offset: int, data: "memoryview | OpenFile | bytes", last: bool
    ) -> Iterator[tuple[str | None, slice, int]]:
        """The name and content of each whole file, and where it ends; None for a name at the end of an archive.

        Several archives may follow each other.
        """
        at, pax, sparse, ended = 0, _Pax(), False, False
        while at + _BLOCK <= len(data):
            head = bytes(data[at : at + _BLOCK])
            if head == _NUL:
                at, ended = at + _BLOCK, True
                yield None, slice(0), at
                continue
            member = self._header(path, offset + at, head, pax)
            stop = at + _BLOCK + -(-member.size // _BLOCK) * _BLOCK
            if member.type in _OF_NEXT and member.size > _MOST_ABOUT_NEXT:
                what = f"its extended header has {member.size:,} bytes, and {_MOST_ABOUT_NEXT:,} are the most that are read"
                raise self._damaged(path, offset + at, what)
            if at + _BLOCK + member.size > len(data):
                break
            content = slice(at + _BLOCK, at + _BLOCK + member.size)
            begin, at, ended = at, min(stop, len(data)), False
            if member.type == tarfile.GNUTYPE_LONGNAME:
                pax.path = bytes(data[content]).rstrip(b"\0").decode(errors="surrogateescape")
            elif member.type == tarfile.XHDTYPE:
                records = bytes(data[content])
                if (wrong := pax.read(records)) is not None:
                    raise self._damaged(path, offset + begin, wrong)
                sparse = b"GNU.sparse." in records
            else:
                name, pax = pax.path or member.name, _Pax()
                if sparse or member.type in _ELSEWHERE:
                    kind = "sparse file" if sparse else _ELSEWHERE[member.type]
                    raise DatasetError(
                        f"{self.name}: {path!r} holds {name!r} as a {kind}, at byte {offset + begin}, so its content is not in "
                        "this place. Write the archive with `tar --hard-dereference --dereference`, and without `--sparse`."
                    )
                if member.isreg():
                    yield name, content, at
        if last and not ended:
            head = b"" if offset or at else bytes(data[:HEAD])
            raise DatasetError(
                f"{self.name}: {path!r} is cut off at byte {offset + len(data)}: the member at byte {offset + at} is not complete, "
                f"or the end mark of the archive is missing. {self._remedy(head) or 'Copy or write the file again.'}"
            )

    def _header(self, path: str, at: int, head: bytes, pax: "_Pax") -> tarfile.TarInfo:
        if pax.size is None and (plain := _PLAIN.match(head, 100)) and int(plain[2], 8) == sum(head) - sum(head[148:156]) + 8 * 32:
            member = tarfile.TarInfo(head[:100].partition(b"\0")[0].decode("utf-8", "surrogateescape"))
            member.size = int(plain[1], 8)
            return member
        try:
            member = tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise self._damaged(path, at, str(error), self._remedy(b"" if at else head[:HEAD])) from error
        if pax.size is not None and member.type not in _OF_NEXT:
            if not pax.size.isdigit() or len(pax.size) > _DIGITS:
                raise self._damaged(path, at, f"a size of {pax.size.decode(errors='replace')!r} bytes in its extended header")
            member.size = int(pax.size)
        if member.size < 0:
            raise self._damaged(path, at, f"a size of {member.size} bytes")
        return member

    def _remedy(self, head: bytes) -> str | None:
        """What to do about a file that begins so, if it is compressed."""
        return if_compressed(head, () if self.compression else WINDOW_BITS)

    def _damaged(self, path: str, at: int, what: str, remedy: str | None = None) -> DatasetError:
        return DatasetError(
            f"{self.name}: {path!r} is damaged at byte {at}, where a member should begin: {what}. "
            f"{remedy or 'Copy or write the file again, or check compression_type.'}"
        )


def _key_and_ending(name: str) -> tuple[str, str] | None:
    """The sample that a member belongs to, and its ending in lower case; None if it belongs to none."""
    folder, slash, base = name.rpartition("/")
    stem, dot, ending = base.partition(".")
    return (folder + slash + stem, ending.lower()) if stem and dot and not _META.match(name) else None


class TarReader(FileReader):
    """Makes elements of samples, which need not have the same members."""

    form: Tar

    def _split(self, offset: int, data: memoryview, last: bool) -> Cut:
        left_out: list[int] = []
        cut = self.form.split(self.path, offset, data, last, left_out)
        _, ends, failure = cut
        read = math.inf if last or failure is not None else max(ends, default=0)  # what is behind it is looked at again
        self.num_skipped += sum(end <= read for end in left_out)
        return cut

    def pull(self, limit: int) -> Block | None:
        try:
            samples = self.read(limit)
        except DatasetError as error:
            if not self.form.skips or isinstance(error.__cause__, RemoteError):
                raise
            self.num_skipped += 1  # the rest of the file, of which nobody knows how many samples it has
            self.failure, self.at_end, self.next = None, True, len(self.items)
            return None
        if not len(samples):
            return None
        first = samples[0].keys()
        alike = next((i for i, sample in enumerate(samples) if sample.keys() != first), len(samples))
        self.next -= len(samples) - alike
        flat = [flatten(sample) for sample in samples[:alike]]
        return Block.of_elements(flat[0][1], [leaves for leaves, _ in flat])


@dataclasses.dataclass(slots=True)
class TarSample:
    """Where a sample and the contents of its members are."""

    key: str
    begin: int
    end: int
    contents: dict[str, slice]

    def read(self, data: memoryview | bytes) -> dict[str, Any]:
        """Return the sample."""
        sample: dict[str, Any] = {KEY: self.key}
        for extension, where in self.contents.items():
            sample[extension] = bytes(data[where])
        return sample


class TarIndex(Index):
    """Where each sample of a file begins and ends, which its headers say."""

    def __init__(self, form: Tar, path: str) -> None:
        self.form, self.path = form, path
        begins: list[int] = []
        ends: list[int] = []
        left_out: list[int] = []
        with OpenFile(form.name, path) as file:
            self.facts = file.facts
            try:
                for sample in form.samples(path, 0, file, last=True, left_out=left_out):
                    begins.append(sample.begin)
                    ends.append(sample.end)
            except DatasetError:
                if not form.skips:
                    raise
                self.num_skipped = 1  # the rest of the file, of which nobody knows how many samples it has
        self.num_skipped += len(left_out)
        self.begins, self.ends = np.array(begins, np.int64), np.array(ends, np.int64)

    @property
    def size(self) -> int:
        return len(self.begins)

    @property
    def identity(self) -> str:
        return self._identity

    @functools.cached_property
    def _identity(self) -> str:
        return hashlib.blake2b(self.begins.tobytes() + self.ends.tobytes(), digest_size=8).hexdigest()

    def read(self, numbers: np.ndarray) -> list[Any]:
        most, begins = self.form.max_record_bytes, self.begins[numbers]
        if len(large := np.flatnonzero(self.ends[numbers] - begins > most)):
            raise too_large(self.form.name, self.path, int(begins[large[0]]), most, what="sample")
        with OpenFile(self.form.name, self.path, self.facts) as file:
            return [self._sample(file, int(self.begins[number]), int(self.ends[number])) for number in numbers]

    def _sample(self, file: OpenFile, begin: int, end: int) -> dict[str, Any]:
        data = file[begin:end] + _NUL
        found = [sample.read(data) for sample in self.form.samples(self.path, begin, data, last=False, left_out=[])]
        assert len(found) == 1, "the file has not changed"
        return found[0]


@functools.lru_cache(maxsize=4096)
def _index(form: Tar, path: str, facts: object) -> TarIndex:
    del facts  # of a file that has changed, the samples are looked for again
    return TarIndex(form, path)


class _Pax:
    """What an extended header says about the next member."""

    path: str | None = None
    size: bytes | None = None

    def read(self, content: bytes) -> str | None:
        """Take the path and the size from its records, each of which begins with its length. Returns what is wrong with them."""
        at, end = 0, content.find(b"\0")
        end = len(content) if end < 0 else end
        while at < end:
            found = _PAX_LENGTH.match(content, at)
            length = int(found[1]) if found else 0
            if found is None or not length or at + length > end:
                return f"byte {at} of its extended header begins no record"
            record = content[found.end() : at + length]
            name, _, value = record.rstrip(b"\n").partition(b"=")
            if name == b"path":
                self.path = value.decode(errors="surrogateescape")
            elif name == b"size":
                self.size = value
            at += length
        return None
