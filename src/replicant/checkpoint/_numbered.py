"""Checkpoints with numbers: ``prefix-1``, ``prefix-2``, ... in one directory."""

import os
import re
import warnings
from collections import defaultdict

from ..errors import CheckpointError, DamagedCheckpointError
from ._manifest import check_meta
from .folders._locations import Place, folders_in, place_of, reaching
from .format._storage import is_foreign, is_own, verified_manifest
from .tensorflow.restoring import highest_number, newest_of_tensorflow

_NUMBERED = re.compile(r"(.+)-(0|[1-9][0-9]*)")  # no leading zeros, so that the number determines the name


def next_number(prefix: Place, after: int) -> int:
    """Return the first number greater than `after` and than every number used with `prefix`, even by files of others."""
    return max(after, highest_number(prefix)) + 1


def latest_checkpoint(checkpoint_dir: str | os.PathLike[str]) -> str | None:
    """Return the path of the newest complete checkpoint in `checkpoint_dir`, or None if there is none or no such directory.

    Among the checkpoints of one prefix, the newest has the highest number; among several prefixes, it was written last. Every byte
    of it is checked. Incomplete or damaged checkpoints are skipped with a warning; other files do not matter. In contrast to
    tf.train.latest_checkpoint, the contents of the directory decide, not a file that describes them.

    A directory without a checkpoint of Replicant may have some of TensorFlow. Then this is what tf.train.latest_checkpoint returns:
    the prefix of the newest one, as its file ``checkpoint`` says. Its index and its graph of objects are checked. Without that
    file, it warns and returns None.

    Raises:
        CheckpointError: If a newer version of Replicant wrote the newest checkpoint.

    >>> import tempfile, replicant
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(replicant.latest_checkpoint(folder))
    None
    """
    folder = place_of("latest_checkpoint: checkpoint_dir", checkpoint_dir)
    families: dict[str, list[tuple[int, Place]]] = defaultdict(list)
    with reaching():
        for path in folders_in(folder):
            if not path.name.startswith(".") and is_own(path):
                match = _NUMBERED.fullmatch(path.name)
                families[match[1] if match else path.name].append((int(match[2]) if match else 0, path))
        newest = [found for members in families.values() if (found := _newest(members)) is not None]
    return str(max(newest)[1]) if newest else newest_of_tensorflow(folder, stacklevel=3)


def _newest(members: list[tuple[int, Place]]) -> tuple[float, Place] | None:
    """The time and path of the complete checkpoint with the highest number."""
    for _, path in sorted(members, reverse=True):
        try:
            manifest = verified_manifest(path)
            check_meta(path, manifest)
            return manifest["meta"]["saved_at"], path
        except DamagedCheckpointError as error:
            warn_passed_over(path, error, stacklevel=4)
        except CheckpointError:
            if not is_foreign(path):
                raise
    return None


def warn_passed_over(path: Place | str, error: DamagedCheckpointError, stacklevel: int) -> None:
    """Warn that a checkpoint is not used, and say why."""
    warnings.warn(f"Skipped the checkpoint {path}: {error} The one before it is used, if there is one.", stacklevel=stacklevel)


def numbered_checkpoints(prefix: Place) -> list[tuple[int, Place]]:
    """Return the numbers and folders of a prefix that look like checkpoints, in rising order."""
    found = []
    with reaching():
        for path in folders_in(prefix.parent):
            match = _NUMBERED.fullmatch(path.name)
            if match and match[1] == prefix.name and is_own(path):
                found.append((int(match[2]), path))
    return sorted(found)
