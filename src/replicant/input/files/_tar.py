"""Tar files whose members are samples, in the manner of WebDataset."""

import dataclasses
import tarfile
from collections.abc import Iterator
from typing import Any

from ...errors import DatasetError
from ...storage._retry import RemoteError
from ..graph._blocks import Block
from ..graph._graph import UNKNOWN, Node
from ..graph._structure import STRING, TensorSpec, flatten
from ._files import Cut, FileFormat, FileReader, Reader

_BLOCK = tarfile.BLOCKSIZE
_NUL = bytes(_BLOCK)
KEY = "__key__"
_ELSEWHERE = {tarfile.GNUTYPE_SPARSE: "sparse file", tarfile.LNKTYPE: "hard link", tarfile.SYMTYPE: "symbolic link"}


@dataclasses.dataclass(frozen=True)
class Tar(FileFormat):
    """The format of TarDataset: members whose names are the same up to the first dot of their last part are one sample."""

    skips: bool = False

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

    def split(self, path: str, offset: int, data: memoryview, last: bool) -> Cut:
        samples: list[dict[str, Any]] = []
        ends: list[int] = []
        sample: dict[str, Any] = {}
        begin = 0
        failure: DatasetError | None = None
        try:
            for key, extension, content, end in self._members(path, offset, data, last):
                if sample and key != sample[KEY]:
                    samples.append(sample)
                    ends.append(begin)
                    sample = {}
                if key is not None:
                    self._check_new(path, offset + begin, sample, key, extension)
                    sample = {KEY: key, **sample, extension: content}
                begin = end
        except DatasetError as error:
            failure = error
        return samples, ends, failure

    def _check_new(self, path: str, at: int, sample: dict[str, Any], key: str, extension: str) -> None:
        if extension in sample or extension == KEY:
            raise DatasetError(
                f"{self.name}: {path!r} has a second member {f'{key}.{extension}'!r} in one sample, at byte {at}. Give samples "
                "names of their own."
            )

    def _members(self, path: str, offset: int, data: memoryview, last: bool) -> Iterator[tuple[Any, str, bytes, int]]:
        """The key, extension and content of each whole file, and where it ends; None for a key at the end of an archive.

        Several archives may follow each other.
        """
        at, long_name, sparse, ended = 0, None, False, False
        while at + _BLOCK <= len(data):
            head = data[at : at + _BLOCK].tobytes()
            if head == _NUL:
                at, ended = at + _BLOCK, True
                yield None, "", b"", at
                continue
            member = self._header(path, offset + at, head)
            stop = at + _BLOCK + -(-member.size // _BLOCK) * _BLOCK
            if at + _BLOCK + member.size > len(data):
                break
            content = data[at + _BLOCK : at + _BLOCK + member.size].tobytes()
            begin, at, ended = at, min(stop, len(data)), False
            if member.type == tarfile.GNUTYPE_LONGNAME:
                long_name = content.rstrip(b"\0").decode(errors="surrogateescape")
            elif member.type == tarfile.XHDTYPE:
                long_name, sparse = _of_pax(content) or long_name, b"GNU.sparse." in content
            else:
                name, long_name = long_name or member.name, None
                if sparse or member.type in _ELSEWHERE:
                    kind = "sparse file" if sparse else _ELSEWHERE[member.type]
                    raise DatasetError(
                        f"{self.name}: {path!r} holds {name!r} as a {kind}, at byte {offset + begin}, so its content is not in "
                        "this place. Write the archive with `tar --hard-dereference --dereference`, and without `--sparse`."
                    )
                if member.isreg():
                    folder, slash, base = name.rpartition("/")
                    stem, _, extension = base.partition(".")
                    yield folder + slash + stem, extension, content, at
        if last and not ended:
            raise DatasetError(
                f"{self.name}: {path!r} is cut off at byte {offset + len(data)}: the member at byte {offset + at} is not complete, "
                "or the end mark of the archive is missing. Copy or write the file again."
            )

    def _header(self, path: str, at: int, head: bytes) -> tarfile.TarInfo:
        try:
            member = tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise self._damaged(path, at, str(error)) from error
        if member.size < 0:
            raise self._damaged(path, at, f"a size of {member.size} bytes")
        return member

    def _damaged(self, path: str, at: int, what: str) -> DatasetError:
        return DatasetError(
            f"{self.name}: {path!r} is damaged at byte {at}, where a member should begin: {what}. Copy or write the file again, or "
            "check compression_type."
        )


class TarReader(FileReader):
    """Makes elements of samples, which need not have the same members."""

    form: Tar

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


def _of_pax(content: bytes) -> str | None:
    """The path that an extended header gives."""
    while content:
        length, _, rest = content.partition(b" ")
        if not length.isdigit() or not int(length):
            return None
        record, content = rest[: int(length) - len(length) - 1], content[int(length) :]
        name, _, value = record.rstrip(b"\n").partition(b"=")
        if name == b"path":
            return value.decode(errors="surrogateescape")
    return None
