"""Continues a ``fit`` from the backup that Keras has left when it ran on TensorFlow.

Keras 2 has checkpoints of TensorFlow in ``<backup_dir>/chief``. Keras 3 has one file of weights, with those of the optimizer, and
one that says the epoch. Neither says where the data was, so an epoch that was begun is trained again from its start.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from ..._untrusted_json import read_json
from ..._whole_file import open_regular
from ...checkpoint import Checkpoint
from ...checkpoint.folders._locations import Place, is_remote, place_at, reaching
from ...checkpoint.tensorflow import open_checkpoint
from ...checkpoint.tensorflow.restoring import index_of, tensorflow_checkpoints_in
from ...checkpoint.workers._chief import all_read, chiefs
from ...errors import CheckpointError
from ..optimizers._apply import build_now

_CHIEF = "chief"
_EPOCH, _BATCH = "ckpt_saved_epoch", "ckpt_saved_batch"
_COUNTERS = {_EPOCH, _BATCH, "train_counter"}
_WEIGHTS, _METADATA = "latest.weights.h5", "training_metadata.json"
_BEFORE = ".bkp"  # ends the names of the files before the last ones
_MOST_BYTES = 1 << 16


def continue_from(folder: Place, model: Any, checkpoint: Checkpoint, num_steps: int | None) -> tuple[int, Place] | None:
    """Give a model and its optimizer the values of a backup by Keras on TensorFlow.

    Args:
        folder: The backup_dir.
        model: The model in ``fit``.
        checkpoint: A Checkpoint of the model, its optimizer and its metrics.
        num_steps: The number of steps of an epoch, if it is known.

    Returns:
        The epoch to begin with, and a file of the backup; None if there is none.

    Raises:
        CheckpointError: If the backup is damaged, or belongs to another model.
    """
    newest, is_keras_3 = chiefs("backup of TensorFlow", lambda: _found_in(folder))
    if newest is not None:
        return _restored(newest, checkpoint, num_steps), index_of(place_at(newest))
    if not is_keras_3:
        return None
    if is_remote(folder):
        raise CheckpointError(
            f"{folder} has a backup by Keras on TensorFlow, which is read from a disk only: copy the folder to one."
        )
    return all_read("read", folder, lambda: _loaded(Path(str(folder)), model), changes=True), folder / _WEIGHTS


def is_in(folder: Place) -> bool:
    """Return whether a folder has a backup by Keras on TensorFlow."""
    return chiefs("backup of TensorFlow", lambda: any(_found_in(folder)))


def _found_in(folder: Place) -> tuple[str | None, bool]:
    """The checkpoint of Keras 2, or else whether there are the files of Keras 3, which begins anew if it finds but one of them."""
    newest = next(reversed(tensorflow_checkpoints_in(folder / _CHIEF)), None)
    with reaching():
        return newest, newest is None and all((folder / name).exists() for name in (_WEIGHTS, _METADATA))


def _restored(path: str, checkpoint: Checkpoint, num_steps: int | None) -> int:
    """Restore a checkpoint of Keras 2, and return the epoch that follows."""
    status = checkpoint.read(path)
    missing = [key for key in status.missing if not key.startswith("metrics/")]
    unexpected = [key for key in status.unexpected if key not in _COUNTERS]
    status.expect_partial()
    if missing or unexpected or status.deferred:
        raise CheckpointError(
            f"{path}, a backup by Keras on TensorFlow, belongs to another model or optimizer. Only here: {missing or 'nothing'}; "
            f"only there: {unexpected or 'nothing'}. Use the same model, or another backup_dir."
        )
    epoch, batch = (_counter(path, name) for name in (_EPOCH, _BATCH))
    ended = batch < 0 or (num_steps is not None and batch >= num_steps - 1)
    return epoch + 1 if ended else max(0, epoch)


def _counter(path: str, name: str) -> int:
    found = open_checkpoint(path)
    key, keys = f"{name}/.ATTRIBUTES/VARIABLE_VALUE", [] if found is None else found.keys()
    if found is None or key not in keys or found.shape(key) != () or found.dtype(key).kind != "i":
        raise CheckpointError(
            f"{path} is a checkpoint, but not a backup of a fit: it has no number {name}. Choose another backup_dir."
        )
    return int(found.read(key))


def _loaded(folder: Path, model: Any) -> int:
    """Load the files of Keras 3, or those before the last ones if Keras was stopped while it wrote; return the epoch."""
    problems = []
    for ending in ("", _BEFORE):
        weights, metadata = folder / f"{_WEIGHTS}{ending}", folder / f"{_METADATA}{ending}"
        if weights.exists() and metadata.exists():
            try:
                epoch = _epoch_in(metadata)
                _load(weights, model)
            except (OSError, ValueError, KeyError) as error:
                problems.append(f"{weights.name}: {type(error).__name__}: {error}")
            else:
                return epoch
    raise CheckpointError(f"{folder}: the backup by Keras on TensorFlow cannot be loaded into this model. {'; '.join(problems)}")


def _load(weights: Path, model: Any) -> None:
    if model.optimizer is not None and not model.optimizer.built:
        build_now(model.optimizer, model.trainable_variables)
    if weights.name == _WEIGHTS:
        model.load_weights(os.fspath(weights))
        return
    with tempfile.TemporaryDirectory() as folder:  # Keras reads nothing with another ending
        model.load_weights(shutil.copyfile(weights, Path(folder) / _WEIGHTS))


def _epoch_in(metadata: Path) -> int:
    with open_regular(metadata) as file:
        found = read_json(file.read(_MOST_BYTES + 1), _MOST_BYTES)
    epoch = found.get("epoch") if isinstance(found, dict) else None
    if type(epoch) is not int or epoch < 0:
        raise ValueError(f"{metadata.name} says that the epoch is {epoch!r}")
    return epoch
