"""Finds the checkpoint of TensorFlow at a place."""

import os

from ...errors import CheckpointError
from ...storage._path import RemotePath
from ..folders._locations import Place, place_of
from ._bundle import TensorBundle
from ._prefix import INDEX, index_of, is_file, saver_files
from ._saver_file import SaverFile
from ._state import STATE, checkpoint_state

_SAVED_MODEL = ("variables", "variables")


def open_checkpoint(place: str | os.PathLike[str] | Place) -> TensorBundle | SaverFile | None:
    """Open the checkpoint of TensorFlow at a place; return None if there is none.

    Args:
        place: A path or URL of a prefix, as ``dir/ckpt-1``; of a folder, whose file ``checkpoint`` names the newest; of a
            SavedModel; or of a checkpoint in one file, as TensorFlow wrote before version 0.12.

    Raises:
        CheckpointError: If it cannot be read or is damaged, if ``checkpoint`` names one that is not there, or if the place is a
            file of a checkpoint and not its prefix.
    """
    own = place if isinstance(place, RemotePath) else place_of("open_checkpoint: place", place)
    if (found := _bundle_at(own)) is not None:
        return found
    newest = checkpoint_state(own).newest
    if newest is not None:
        return _newest(own, place_of("open_checkpoint: place", newest))
    return _bundle_at(own / _SAVED_MODEL[0] / _SAVED_MODEL[1]) or _saver_file_at(own)


def _newest(folder: Place, prefix: Place) -> TensorBundle | SaverFile:
    if (found := _bundle_at(prefix) or _saver_file_at(prefix)) is None:
        raise CheckpointError(
            f"{folder / STATE} says that the newest checkpoint is {str(prefix)!r}, but it is not there. Copy its files there, or "
            "name the prefix of another one."
        )
    return found


def _bundle_at(prefix: Place) -> TensorBundle | None:
    if not prefix.name:
        return None
    if is_file(index_of(prefix)):
        return TensorBundle(prefix)
    stem = prefix.name.removesuffix(INDEX) if prefix.name.endswith(INDEX) else prefix.name.partition(".data-")[0]
    if stem not in ("", prefix.name) and is_file(prefix) and is_file(index_of(prefix.with_name(stem))):
        raise CheckpointError(
            f"{prefix} is one file of a checkpoint. Pass the prefix of all of them: {str(prefix.with_name(stem))!r}."
        )
    return None


def _saver_file_at(prefix: Place) -> SaverFile | None:
    files = saver_files(prefix)
    return SaverFile(prefix, files) if files else None
