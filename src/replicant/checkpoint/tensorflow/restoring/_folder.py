"""TensorFlow's checkpoints in a folder in which ours are saved: they are read, and never changed or deleted.

Ours are folders, and TensorFlow's are files with endings, so the names differ. Ours also take numbers above all of TensorFlow's, so
that ``ckpt-5`` is one checkpoint, not two. Once there is one of ours, it is newer than all of TensorFlow's.
"""

import re
import warnings

from ....errors import CheckpointError, DamagedCheckpointError
from ...folders._locations import Place, is_remote, place_at, reaching
from .. import State, checkpoint_state, open_checkpoint
from .._prefix import is_prefix, prefixes_in

_FILE = re.compile(r"(.+)-(0|[1-9][0-9]*)(?:\.index|\.meta|\.data-[0-9]{5}-of-[0-9]{5}|-[0-9]{5}-of-[0-9]{5})?")
_MOST = 3  # names in a warning


def tensorflow_checkpoints_in(folder: Place) -> list[str]:
    """Return the prefixes of TensorFlow's checkpoints that its file ``checkpoint`` names and that are there, the newest last.

    Raises:
        CheckpointError: If that file cannot be read.
    """
    state = _state_in(folder)
    known = [*state.all, *([] if state.newest is None else [state.newest])]
    in_order = list(dict.fromkeys(reversed(known)))[::-1]  # the newest is named twice
    return [path for path in in_order if is_prefix(place_at(path))]


def newest_of_tensorflow(folder: Place, stacklevel: int) -> str | None:
    """Return the prefix of the newest of TensorFlow's checkpoints that can be opened; None, with a warning, if there is none.

    Raises:
        CheckpointError: If an object store does not answer.
    """
    for path in reversed(tensorflow_checkpoints_in(folder)):
        try:
            if (found := open_checkpoint(place_at(path))) is not None:
                found.graph()
        except DamagedCheckpointError as error:
            warn_of_damage(path, error, stacklevel + 1)
            continue
        return path
    warn_of_unnamed(folder, stacklevel + 1)
    return None


def warn_of_damage(path: str, error: CheckpointError, stacklevel: int) -> None:
    """Warn that a checkpoint of TensorFlow is not used, and say why."""
    warnings.warn(
        f"Skipped the checkpoint {path} of TensorFlow: {error} The one before it is used, if there is one.", stacklevel=stacklevel
    )


def warn_of_unnamed(folder: Place, stacklevel: int) -> None:
    """Warn if there are checkpoints of TensorFlow in a folder, but no file ``checkpoint`` that says which is the newest."""
    if _state_in(folder).newest is not None:
        return
    found = prefixes_in(folder)
    if found:
        names = ", ".join(path.name for path in found[:_MOST]) + (", ..." if len(found) > _MOST else "")
        warnings.warn(
            f"{folder} has checkpoints of TensorFlow ({names}), but no file named checkpoint that says which is the newest, so "
            f"none is used. Restore the one that you mean by its path: checkpoint.restore({str(found[-1])!r}).",
            stacklevel=stacklevel,
        )


def highest_number(prefix: Place) -> int:
    """Return the highest number of TensorFlow's checkpoints ``prefix-n``, or 0 if there is none."""
    found = (_FILE.fullmatch(name) for name in _names(prefix.parent))
    return max((int(match[2]) for match in found if match and match[1] == prefix.name), default=0)


def _state_in(folder: Place) -> State:
    """What the file ``checkpoint`` says. Where a file lies in place of the folder, or nothing at all, there is none."""
    with reaching():
        is_folder = is_remote(folder) or folder.is_dir()
    return checkpoint_state(folder) if is_folder else State()


def _names(folder: Place) -> list[str]:
    with reaching():
        return [path.name for path in folder.iterdir()] if folder.is_dir() else []
