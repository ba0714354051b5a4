"""Builds models from the shapes of a batch in the dtypes that JAX computes with.

NumPy's integers have 64 bits, and JAX's have 32 unless you ask for more. Keras hands on the dtype of the first batch as it is, and
JAX 0.12 warns of it at every layer, metric and loss that is built. Older versions say nothing. The steps themselves are not
concerned: where JAX gets an array, it converts it.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import keras
import numpy as np

from ...programs.validity._traced_values import naming_the_line
from ..data._adapter import building
from ._stateful_step import StatefulStep, step_of

_STEPS = ("train_step", "test_step")


def build(original: Callable[..., Any], model: Any, iterator: Iterable[Any] | None = None, data_batch: Any = None) -> Any:
    """Build what has no variables yet, for a batch or the first one that an iterator over steps yields."""
    read: list[Any] = [] if data_batch is None else [_as_computed(data_batch)]
    steps = None if iterator is None else _steps(iterator, read)
    stateful = next((each for each in (step_of(model, name) for name in _STEPS) if isinstance(each, StatefulStep)), None)
    with building(), naming_the_line(f"the model {model.name!r}"):
        if stateful is not None and _cannot_be_called(model):  # Keras would call it, fail, and warn the user of that
            if steps is not None:
                _read_first(steps)
            if read:  # Keras says what is wrong with data that has no batch
                return _build_by(stateful, model, read[0])
        try:
            return original(model, iterator=steps, data_batch=None if data_batch is None else read[0])
        except Exception:  # Keras calls the model on the first input, which a model with a step of its own may not be meant for
            if stateful is None or not read:
                raise
        return _build_by(stateful, model, read[0])


def _cannot_be_called(model: Any) -> bool:
    """Return whether a model has layers that are not built, and no `call` to build them."""
    return getattr(model.call, "__func__", None) is keras.Model.call and not all(layer.built for layer in model._flatten_layers())


def _read_first(steps: Iterable[Any]) -> None:
    """Read the first batch of an iterator over steps."""
    for _, _, data in steps:
        if not isinstance(data, list):
            next(data)
        return


def _build_by(stateful: StatefulStep, model: Any, batch: Any) -> None:
    """Build a model by tracing its own step. An eager step builds what it needs when it runs."""
    if model.run_eagerly:
        return
    stateful.trace(batch)
    model.built = True
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def _steps(iterator: Iterable[Any], read: list[Any]) -> Iterator[Any]:
    for begin, end, data in iterator:
        if isinstance(data, list | tuple):
            read.append(_as_computed(data[0]))
            yield begin, end, [read[-1]]
        else:
            yield begin, end, _Batches(data, read)


class _Batches:
    """The batches of an iterator, in the dtypes that JAX computes with."""

    def __init__(self, batches: Any, read: list[Any]):
        self._batches = batches
        self._read = read

    def __next__(self) -> Any:
        self._read.append(_as_computed(next(self._batches)))
        return self._read[-1]


def _as_computed(batch: Any) -> Any:
    return keras.tree.map_structure(_narrowed, batch)


def _narrowed(value: Any) -> Any:
    """Return what stands for an array of numbers in a dtype that JAX narrows, and anything else as it is."""
    dtype = getattr(value, "dtype", None)
    if not isinstance(dtype, np.dtype) or dtype.kind not in "iufc":
        return value
    narrow = jax.dtypes.canonicalize_dtype(dtype)
    return value if narrow == dtype else keras.KerasTensor(value.shape, narrow.name)
