"""Arrays of a file that are in memory as a whole: those of ``.npz`` files, and of ``.npy`` files in Fortran's order."""

import contextlib
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, cast

import numpy as np

from ....errors import DatasetError
from ...graph._blocks import Block, Dense
from ...graph._structure import STRING, TensorSpec, flatten
from .._limits import too_large
from .._numbered import Numbered, NumberedFormat
from .._stream import PIECE
from ._npy import MOST_HEAD, Head, NotArrayError, check_has_rows, read_head
from ._rows import FileBytes, usable_rows

_MOST_AT_ONCE = 1 << 24  # bytes that are copied at once, if a row has no more
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, ValueError, KeyError)


class HeldReader(Numbered):
    """Reads rows of arrays in memory, all of which have as many rows."""

    def __init__(self, form: NumberedFormat, file: FileBytes, arrays: Any) -> None:
        self.form, self.path = form, file.path
        self.arrays, self.structure = flatten(arrays)
        self.size = len(self.arrays[0])
        specs = [TensorSpec(each.shape[1:], STRING if each.dtype.kind in "US" else each.dtype) for each in self.arrays]
        self.spec = self.structure.unflatten(specs)
        self.mark = str(file.identity or "")
        self.most = max(1, _MOST_AT_ONCE // max(1, sum(each[:1].nbytes for each in self.arrays)))

    @property
    def identity(self) -> str:
        return f"{self.size} rows of {self.spec}{f', {self.mark}' if self.mark else ''}"

    def run(self, start: int, stop: int) -> Block:
        chosen = slice(start, min(stop, start + self.most))
        try:
            rows = [usable_rows(each[chosen]) for each in self.arrays]
        except ValueError as error:
            raise DatasetError(
                f"{self.form.name}: the rows from {start} on of {self.path!r} are not texts: {error}. Copy or write the file again."
            ) from error
        return Block(self.structure, [*map(Dense, rows)], len(rows[0]))

    def close(self) -> None:
        return


def whole_array(file: FileBytes, head: Head) -> np.ndarray:
    """Return the array in a ``.npy`` file, all of which is there."""
    data = np.empty(head.num_bytes, np.uint8)
    if head.num_bytes:
        file.fill(data, head.size)
    return _shaped(data, head)


def _shaped(data: Any, head: Head) -> np.ndarray:
    flat = np.frombuffer(data, head.dtype, len(data) // (head.dtype.itemsize or 1))
    return flat.reshape(head.shape[::-1]).T if head.in_columns else flat.reshape(head.shape)


def arrays_of_archive(
    method: str, file: FileBytes, names: Sequence[str] | None, most: int
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the arrays in a ``.npz`` file that are to be read, and the names of all.

    Raises:
        DatasetError: If it is damaged, they are not arrays that can be read, or they have more than ``most`` bytes.
    """
    with _explained(method, file.path):
        archive = zipfile.ZipFile(cast("BinaryIO", Seeking(file)))
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if len(members) < len(archive.infolist()):
            raise NotArrayError("has two arrays of one name")
        chosen = [*members] if names is None else [name for name in members if name in names]
        size = sum(members[name].file_size for name in chosen)
        if size > most:
            raise too_large(method, file.path, 0, most, size=size, what="file", argument="max_file_bytes")
        return {name: _member(archive, members[name]) for name in chosen}, [*members]


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    where = f"has the member {info.filename!r}, which"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
        raise NotArrayError(f"{where} is compressed or encrypted in a way that NumPy does not write")
    if not info.filename.endswith(".npy"):
        raise NotArrayError(
            f"{where} is not an array, because its name does not end in .npy. Leave it out: name others in `columns`"
        )
    data = bytearray()  # grows with what is there, whatever the archive says
    with archive.open(info) as stream:
        while len(data) <= info.file_size and (piece := stream.read(PIECE)):
            data += piece
    try:
        head = read_head(bytes(data[:MOST_HEAD]))
        check_has_rows(head)
    except NotArrayError as error:
        raise NotArrayError(f"{where} {error}. Leave it out: name others in `columns`") from error
    if head.size + head.num_bytes != len(data):
        raise NotArrayError(f"{where} has {len(data)} bytes, and its head says {head.size + head.num_bytes}")
    return _shaped(memoryview(data)[head.size :], head)


@contextlib.contextmanager
def _explained(method: str, path: str) -> Iterator[None]:
    """Make errors of the archive errors that name it. Those of the file itself are."""
    try:
        yield
    except DatasetError:
        raise
    except NotArrayError as error:
        raise DatasetError(f"{method}: {path!r} {error}.") from error
    except _DAMAGE as error:
        raise DatasetError(
            f"{method}: {path!r} is not a complete archive of arrays ({error}). Copy or write the file again."
        ) from error


def check_rows(method: str, path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Check that arrays have one number of rows.

    Raises:
        DatasetError: If they have not.
    """
    if len({len(each) for each in arrays.values()}) > 1:
        sizes = ", ".join(f"{name!r} has {len(each)}" for name, each in arrays.items())
        raise DatasetError(
            f"{method}: the arrays of {path!r} have different numbers of rows: {sizes}. Leave some out: name others in `columns`."
        )


class Seeking:
    """A file with the methods that zipfile calls."""

    def __init__(self, file: FileBytes) -> None:
        self.file, self.at = file, 0

    def seekable(self) -> bool:
        """Return that it has places."""
        return True

    def tell(self) -> int:
        """Return the place."""
        return self.at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place."""
        self.at = offset + (0, self.at, len(self.file))[whence]
        if self.at < 0:
            raise OSError("it is too short")
        return self.at

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, fewer only at the end."""
        stop = len(self.file) if size < 0 else min(self.at + size, len(self.file))
        data = self.file[self.at : stop] if stop > self.at else b""
        self.at += len(data)
        return data

    def close(self) -> None:
        """Leave the file open, which belongs to somebody else."""
