"""Turns a trained model into a program of JAX that needs neither Replicant nor the model's library."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import export

from ..errors import ArgumentError
from ..kernels import disabled
from ..replicas._own_mesh import without_mesh
from ..variables._slices import reading
from ._libraries import library_of

_PLATFORMS = ("cpu", "cuda", "tpu")
_KNOWN = (*_PLATFORMS, "rocm")  # JAX would export for any word, and refuse to run the program


def to_jax(model: Any, like: Any = None, *, platforms: Sequence[str] = _PLATFORMS) -> export.Exported:
    """Export what a model computes after training, with its weights, for batches of any size.

    ``exported.serialize()`` returns the bytes to store. ``jax.export.deserialize(data).call(x)`` computes the outputs, in a process
    that needs only JAX. Dropout is off, and batch normalization uses its moving statistics.

    Semantics: ``jax.export``.

    Args:
        model: A Keras model that has been built, or a module of Flax NNX, which is called with `like`. It may have been trained
            under any strategy.
        like: A batch, or the same structure of objects with a shape and a dtype, such as ``jax.ShapeDtypeStruct``. The first
            dimension of each becomes the size of the batch, which can be any from 1. If a shape has symbolic dimensions, all shapes
            are taken as they are. By default what the inputs of a Functional or Sequential model say, where every dimension that is
            None can have any size.
        platforms: Where the program can run: some of ``"cpu"``, ``"cuda"``, ``"rocm"`` and ``"tpu"``.

    Returns:
        The program, a function of the inputs of the model. None of Replicant's CPU kernels is in it.

    Raises:
        ArgumentTypeError: If `model` is not a model of Keras or NNX.
        ArgumentError: If the model has not been built, if its inputs are not known and `like` is not given, if an array in `like`
            has no first dimension, or if a platform is none.
        ContextError: If it is called while a step is traced.

    >>> import jax, keras, numpy as np
    >>> from replicant import export
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> data = export.to_jax(model).serialize()
    >>> jax.export.deserialize(data).call(np.ones((5, 3), "float32")).shape
    (5, 2)
    """
    library = library_of(model, "to_jax")
    library.check_built(model)
    if isinstance(platforms, str) or not platforms or not set(platforms) <= set(_KNOWN):
        raise ArgumentError(
            f"to_jax: platforms must be a list of some of {', '.join(map(repr, _KNOWN))}; got {platforms!r}. Write "
            'platforms=["cpu"], or leave it out for a program that runs on CPUs, NVIDIA GPUs and TPUs.'
        )
    inputs = _of_model(library, model) if like is None else _of_batch(like)
    with disabled(), without_mesh():
        with reading(f"to_jax of {library.name_of(model)}"):
            values, call = library.program(model)
        return export.export(jax.jit(lambda x: call(values, x)), platforms=list(platforms))(inputs)


def _of_model(library: Any, model: Any) -> Any:
    """Return what a model says its inputs are."""
    structure = library.inputs_of(model)
    if structure is None:
        raise ArgumentError(
            f"to_jax: the inputs of {library.name_of(model)}, of the type {type(model).__name__}, are not known. Pass a batch: "
            "to_jax(model, batch)."
        )
    scope, names = export.SymbolicScope(), iter(f"d{i}" for i in range(1_000_000))

    def like(tensor: Any) -> jax.ShapeDtypeStruct:
        sizes = [("batch" if axis == 0 else next(names)) if n is None else str(n) for axis, n in enumerate(tensor.shape)]
        return _struct(export.symbolic_shape(f"({', '.join(sizes)},)", scope=scope), tensor.dtype)

    return jax.tree.map(like, structure, is_leaf=lambda x: hasattr(x, "shape"))


def _of_batch(batch: Any) -> Any:
    """Return what a batch looks like, with a first dimension of any size."""
    if any(not isinstance(n, int | np.integer) for x in jax.tree.leaves(batch) for n in getattr(x, "shape", ())):
        return batch  # symbolic dimensions
    (size,) = export.symbolic_shape("batch", scope=export.SymbolicScope())

    def like(x: Any) -> jax.ShapeDtypeStruct:
        if not getattr(x, "shape", ()):
            raise ArgumentError(
                f"to_jax: `like` is a batch of arrays, whose first dimension is the size of the batch; got {x!r} in it. Pass "
                "arrays, or jax.ShapeDtypeStruct(shape, dtype)."
            )
        return _struct((size, *x.shape[1:]), x.dtype)

    return jax.tree.map(like, batch)


def _struct(shape: Any, dtype: Any) -> jax.ShapeDtypeStruct:
    if str(dtype) == "string":
        raise ArgumentError(
            "to_jax: the model has an input of strings, which JAX cannot compute with. Export the part of the model after the "
            "layer that turns them into numbers, and call that layer before the program."
        )
    return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(dtype))
