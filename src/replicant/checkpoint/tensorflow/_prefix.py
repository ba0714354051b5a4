"""Which files are there of the checkpoint that a path names."""

import re

from ...errors import CheckpointError
from ...storage._path import RemotePath
from ..folders._locations import Place
from ..format._readers import Readers
from .files._damage import reading
from .files._file_bytes import FileBytes
from .files._table import is_table

INDEX = ".index"
_MAX_NAMES = 20  # in a message
_PART = re.compile(r"-(\d{5})-of-(\d{5})")


def index_of(prefix: Place) -> Place:
    """Return the index of the bundle with this prefix, which need not be there."""
    return prefix.with_name(f"{prefix.name}{INDEX}")


def is_prefix(prefix: Place) -> bool:
    """Return whether a path names a checkpoint of TensorFlow.

    Raises:
        CheckpointError: If its files cannot be read.
    """
    return is_file(index_of(prefix)) or bool(saver_files(prefix))


def is_file(place: Place) -> bool:
    """Return whether there is a file, not a folder.

    Raises:
        CheckpointError: If an object store does not answer.
    """
    with reading(place):
        if isinstance(place, RemotePath):
            return place.exists() and not place.store.entry().is_folder
        return place.is_file()


def saver_files(prefix: Place) -> list[Place]:
    """Return the files of a checkpoint that the first Saver wrote: one with this name, or several that begin with it.

    Raises:
        CheckpointError: If some of several are missing, or they cannot be read.
    """
    if not prefix.name:
        return []
    if is_file(prefix):
        return [prefix] if _is_table(prefix) else []
    with reading(prefix.parent):
        names = [place.name for place in prefix.parent.iterdir()] if prefix.parent.is_dir() else []
    numbers = [
        (int(found[1]), int(found[2]))
        for name in names
        if name.startswith(prefix.name) and (found := _PART.fullmatch(name, len(prefix.name)))
    ]
    if not numbers:
        return []
    total = numbers[0][1]
    if sorted(numbers) != [(i, total) for i in range(total)]:
        raise CheckpointError(
            f"{prefix} is a checkpoint in several files, whose names end in -00000-of-{total:05d} and so on. {len(numbers)} of "
            "them are there. Copy all of them, and only those of one checkpoint."
        )
    files = [prefix.with_name(f"{prefix.name}-{number:05d}-of-{total:05d}") for number, _ in sorted(numbers)]
    return files if all(map(_is_table, files)) else []


def _is_table(file: Place) -> bool:
    return is_table(FileBytes(Readers(file.parent), file.name))


def prefixes_in(folder: Place) -> list[Place]:
    """Return the prefixes of up to 20 bundles in a folder, for messages.

    Raises:
        CheckpointError: If the folder cannot be read.
    """
    with reading(folder):
        names = [place.name for place in folder.iterdir()] if folder.is_dir() else []
    return [folder / name.removesuffix(INDEX) for name in sorted(names) if name.endswith(INDEX)][:_MAX_NAMES]
