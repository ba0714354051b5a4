"""Weights of a model as safetensors: a file format that many libraries read, and that holds nothing but arrays."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoint.weights._safetensors import DTYPES, SafetensorsFile, import_library, write_safetensors
from ..checkpoint.workers._chief import write_once
from ..errors import ArgumentError, CheckpointError
from ..storage._urls import local_path
from ..variables._known import ref_of
from ..variables._slices import in_pieces, reading_once
from ._libraries import library_of


def save_safetensors(model: Any, path: str | os.PathLike[str]) -> None:
    """Write the weights of a model: the variables that it needs to compute, without those of its optimizer and its random seeds.

    A weight of a Keras model is named by its path in the model, such as ``"dense/kernel"``, and one of an NNX module by the
    attributes that lead to it, such as ``"encoder.layers.0.kernel"``. The values are those that one device has, under any strategy.

    Semantics: ``safetensors.numpy.save_file``. The file appears at one stroke.

    Args:
        model: A Keras model that has been built, or a module of Flax NNX.
        path: The file, which is replaced if it exists. On several workers, they can give the same one.

    Raises:
        ArgumentTypeError: If `model` is not a model of Keras or NNX.
        ArgumentError: If the model has no weights yet, two of the same name, or one that the format cannot hold; or if `path` is a
            URL.
        CheckpointError: If the file cannot be written.
        ConfigurationError: If the package safetensors is not installed.
        ContextError: If it is called while a step is traced.

    >>> import keras, pathlib, safetensors, tempfile
    >>> from replicant import export
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="out")], name="model")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "model.safetensors")
    ...     export.save_safetensors(model, path)
    ...     with safetensors.safe_open(path, "numpy") as file:
    ...         print(sorted(file.keys()))
    ['out/bias', 'out/kernel']
    """
    of_model, named, file = _prepared(model, path, "save_safetensors")
    refs = {name: ref_of(variable) for name, variable in named.items()}
    for name, ref in refs.items():
        if np.dtype(ref.dtype) not in DTYPES.values():
            raise ArgumentError(
                f"save_safetensors: the weight {name!r} has the dtype {np.dtype(ref.dtype).name}, which safetensors cannot give "
                f"back as a NumPy array. It has {', '.join(each.name for each in DTYPES.values())}."
            )
    reads = [(name, ref.get_raw()[0], ref.read_eagerly) for name, ref in refs.items() if in_pieces(ref.get_raw()[0])]
    if not reads:
        _write(file, refs)
        return
    with reading_once(f"save_safetensors of {of_model.name_of(model)}", reads):
        write_once(lambda: _write(file, refs), what="the file of safetensors")


def load_safetensors(model: Any, path: str | os.PathLike[str]) -> None:
    """Give a model the weights of a file that `save_safetensors` has written, under any strategy.

    Nothing changes if one of them does not fit. On several workers, all call this with the same file.

    Args:
        model: A Keras model that has been built, or a module of Flax NNX.
        path: The file.

    Raises:
        ArgumentTypeError: If `model` is not a model of Keras or NNX.
        ArgumentError: If the model has no weights yet, or two of the same name; or if `path` is a URL.
        CheckpointError: If the file is missing or damaged, or if the names, shapes or dtypes in it are not those of the model.
        ConfigurationError: If the package safetensors is not installed.
        ContextError: If it is called while a step is traced.
    """
    of_model, named, file = _prepared(model, path, "load_safetensors")
    arrays, its_name = _read(file), of_model.name_of(model)
    if named.keys() != arrays.keys():
        missing, more = sorted(named.keys() - arrays.keys()), sorted(arrays.keys() - named.keys())
        raise CheckpointError(
            f"{file} does not fit {its_name}: it lacks {missing[:5]}, and has {more[:5]} which the model lacks. The names are "
            "those of the layers and attributes: give them the names that they had."
        )
    refs = {name: ref_of(variable) for name, variable in named.items()}
    for name, ref in refs.items():
        found = arrays[name]
        if tuple(ref.shape) != found.shape or np.dtype(ref.dtype) != found.dtype:
            raise CheckpointError(
                f"{file} does not fit {its_name}: {name!r} has the shape {found.shape} and the dtype {found.dtype} in it, and the "
                f"shape {tuple(ref.shape)} and the dtype {np.dtype(ref.dtype)} in the model."
            )
    for name, variable in named.items():
        of_model.assign(variable, arrays[name])


def _prepared(model: Any, path: Any, method: str) -> tuple[Any, dict[str, Any], Path]:
    """Return the model's library, its variables by name, and the path, all of them checked."""
    of_model, file = library_of(model, method), local_path(f"{method}: path", path)
    of_model.check_built(model)
    weights = of_model.weights(model)
    if twice := [name for name, count in Counter(name for name, _ in weights).items() if count > 1]:
        raise ArgumentError(
            f"{method}: several weights of {of_model.name_of(model)} have the name {twice[0]!r}, under which a file holds one. "
            "Give their layers other names."
        )
    import_library("safetensors.numpy")
    return of_model, dict(weights), file


def _write(file: Path, refs: dict[str, Any]) -> None:
    arrays = {name: np.ascontiguousarray(np.asarray(ref.read_eagerly())).reshape(ref.shape) for name, ref in refs.items()}
    write_safetensors(file, arrays)


def _read(file: Path) -> dict[str, np.ndarray]:
    with SafetensorsFile(file) as opened:
        return {name: opened.read(name) for name in opened.entries}
