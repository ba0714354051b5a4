"""``load_weights``: files of TensorFlow, Keras 2 and torch for a Keras model."""

import os
from typing import Any

import keras

from ...checkpoint.weights import WeightsFile, open_weights
from ...checkpoint.weights._hdf5 import Hdf5File
from ...checkpoint.weights._tensorflow import TensorFlowCheckpoint
from ...errors import ArgumentError, ArgumentTypeError, CheckpointError, ContextError
from ...replicas._context import active_replica_context
from ...replicas._own_mesh import in_a_trace
from ..saving._exported import check_built
from . import _graph, _hdf5, _older_hdf5
from ._names import Rename, by_name, by_rename
from ._report import WeightsReport
from ._sources import Model, Sources
from ._take import take


def load_weights(
    model: keras.Model,
    path: str | os.PathLike[str],
    *,
    by_name: bool = False,
    skip_mismatch: bool = False,
    rename: Rename | None = None,
) -> WeightsReport:
    """Give a model the weights of a file that Keras 2, TensorFlow or another library has written, under any strategy.

    It reads what Keras 3 refuses: weights that ``save_weights("prefix")`` of Keras 2 has written as a checkpoint of TensorFlow,
    ``tf.train.Checkpoint(model=model)``, a SavedModel's variables, and checkpoints of TensorFlow 1, which only have names. It also
    reads ``.h5``, ``.weights.h5`` and ``.keras`` files of Keras 2 and 3, whose models `keras.saving.load_model` may refuse,
    safetensors such as a ``state_dict`` of torch, and Replicant's own checkpoints. The bytes of a file decide what it is. Nothing
    in it is run.

    By default, weights are found by the structure of the model, which must be that of the saved one: each must be in the file.
    Checkpoints of TensorFlow 1, safetensors and Replicant's checkpoints have no such structure, and need ``by_name`` or ``rename``.
    Unlike Keras's own ``load_weights``, taking nothing is an error, and what was not taken is reported. After an error, the model
    is unchanged. Floats are converted to the dtype of their weight, as Keras does, and integers must stay what they are.
    Optimizers are left alone: restore a checkpoint for those.

    Semantics: ``keras.Model.load_weights``, of Keras 2 for its formats.

    Args:
        model: A Keras model that has been built. On several workers, all call this with the same file.
        path: The file, the folder of a SavedModel, or the prefix or folder of checkpoints of TensorFlow, of which it is the newest.
            Those can also be at a URL.
        by_name: Take the weights of layers that have the same name, and keep the values of the others. For files without layers, a
            weight's name is its path in the model, such as ``"dense/kernel"``.
        skip_mismatch: Keep the value of a weight whose array has another shape, or that the file lacks. Otherwise that is an error.
        rename: A dict or a function from names in the file, as ``replicant checkpoint show`` prints them, to names of weights,
            which are their paths in the model. A pair of a name and a function of the array also changes the array, as in
            ``("dense/kernel", np.transpose)``: axes are never moved by a guess. Arrays with None, or that are not in the dict,
            are left in the file. Weights that are not named keep their values.

    Returns:
        What was taken, left in the file, missing in it, and mismatched.

    Raises:
        ArgumentTypeError: If `model` is not a Keras model.
        ArgumentError: If the model is not built, both `by_name` and `rename` are given, or `rename` makes an unknown name.
        CheckpointError: If the file is missing, damaged or unknown, does not fit, or if nothing in it is for the model.
        ConfigurationError: If a package that reads the file is not installed.
        ContextError: If it is called while a step is traced.

    >>> import keras, pathlib, tempfile, replicant
    >>> make = lambda: keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="out")])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "old.weights.h5")
    ...     make().save_weights(path)
    ...     report = replicant.keras.load_weights(make(), path)
    >>> dict(report.taken)
    {'out/kernel': 'layers/dense/vars/0', 'out/bias': 'layers/dense/vars/1'}
    """
    _check(model, by_name=by_name, rename=rename)
    with open_weights("load_weights: path", path) as file:
        known = Model(model)
        if rename is not None:
            sources = by_rename(known, file, rename)
        elif by_name:
            sources = _by_name(known, file, skip_mismatch=skip_mismatch)
        else:
            sources = _by_structure(known, file)
        return take(known, file, sources, partly=by_name or rename is not None, skip_mismatch=skip_mismatch)


def _check(model: Any, *, by_name: bool, rename: Any) -> None:
    if active_replica_context() is not None or in_a_trace():
        raise ContextError(
            "load_weights was called while a step is traced (in `run`, in a `function` or in jax.jit), when weights have no "
            "values. Call it outside, before the step."
        )
    if not isinstance(model, keras.Model):
        raise ArgumentTypeError(f"load_weights takes a keras.Model. Received: {type(model).__name__}.")
    if rename is not None and not callable(rename) and not hasattr(rename, "items"):
        raise ArgumentError(
            f"load_weights: rename must be a dict or a function of the names in the file. Received: {type(rename).__name__}."
        )
    if by_name and rename is not None:
        raise ArgumentError("load_weights takes by_name=True or rename=, not both: rename says which names belong together.")
    check_built(model)


def _by_name(model: Model, file: WeightsFile, *, skip_mismatch: bool) -> Sources:
    if not isinstance(file, Hdf5File):
        return by_name(model, file)
    if file.older is not None:
        return _older_hdf5.by_layer_names(model, file, skip_mismatch=skip_mismatch)
    return _hdf5.by_layer_names(model, file)


def _by_structure(model: Model, file: WeightsFile) -> Sources:
    if isinstance(file, Hdf5File):
        return _hdf5.by_structure(model, file) if file.older is None else _older_hdf5.by_layers(model, file)
    if isinstance(file, TensorFlowCheckpoint) and file.graph is not None:
        return _graph.by_graph(model, file)
    raise CheckpointError(
        f"{file.path} is {file.format}, which has names and no structure. Pass by_name=True if they are those of the model, or say "
        "with rename= to which weight each belongs; `replicant checkpoint show` prints them."
    )
