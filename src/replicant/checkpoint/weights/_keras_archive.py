"""``.keras`` archives: zip files with the configuration of a model and an HDF5 file of its weights."""

import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import IO, BinaryIO

from ...errors import CheckpointError, DamagedCheckpointError
from ._hdf5 import Hdf5File

MAGIC = b"PK\x03\x04"
_WEIGHTS = "model.weights.h5"
_MOST_RATIO = 1032  # of deflate
_PIECE = 1 << 20  # bytes


def open_archive(path: Path, file: BinaryIO) -> Hdf5File:
    """Open the weights in an archive. They are unpacked into a temporary file without a name.

    Raises:
        CheckpointError: If it has no weights.
        DamagedCheckpointError: If it is damaged.
    """
    unpacked = tempfile.TemporaryFile()  # noqa: SIM115 - the file of weights closes it
    try:
        with file, zipfile.ZipFile(file) as archive:
            if _WEIGHTS not in archive.namelist():
                raise CheckpointError(
                    f"{path} is a zip file without {_WEIGHTS!r}. A model that Keras has written in another format, such as shards, "
                    "is loaded with keras.saving.load_model."
                )
            _unpack(path, archive, unpacked)
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError, zlib.error) as error:
        unpacked.close()
        if isinstance(error, CheckpointError):
            raise
        raise DamagedCheckpointError(f"{path} is damaged, or is not a Keras archive: {error}.") from error
    unpacked.seek(0)
    found = Hdf5File(path, unpacked)  # type: ignore[arg-type] - a file of the standard library
    found.format = "a .keras archive"
    return found


def _unpack(path: Path, archive: zipfile.ZipFile, into: IO[bytes]) -> None:
    info = archive.getinfo(_WEIGHTS)
    if info.file_size > _MOST_RATIO * info.compress_size:
        raise DamagedCheckpointError(
            f"{path}: {_WEIGHTS!r} has {info.file_size} bytes by its header, and {info.compress_size} in the archive: no "
            "compression is that dense."
        )
    left = info.file_size
    with archive.open(info) as packed:
        while piece := packed.read(_PIECE):
            left -= len(piece)
            if left < 0:
                raise DamagedCheckpointError(f"{path}: {_WEIGHTS!r} has more than the {info.file_size} bytes in its header.")
            into.write(piece)
