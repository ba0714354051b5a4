"""What `replicant.export` needs to know about Keras models; see ``export/_libraries.py``."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from ...errors import ArgumentError
from ...variables._known import ref_of


def name_of(model: Any) -> str:
    """Return how messages call a model."""
    return f"the model {model.name!r}"


def check_built(model: Any) -> None:
    """Raise if a model has no weights yet, and bring those that it has up to date.

    Raises:
        ArgumentError: If it has none yet.
    """
    if not model.built:
        raise ArgumentError(f"The model {model.name!r} has no weights yet. Call it on a batch, or fit it, first.")
    model.jax_state_sync()  # in a callback of fit, Keras keeps their values elsewhere


def weights(model: Any) -> list[tuple[str, Any]]:
    """Return the weights of a model by their paths in it. Keras numbers the names of models, as they are made in a process."""
    return [(weight.path.removeprefix(f"{model.name}/"), weight) for weight in model.weights]


def assign(variable: Any, array: np.ndarray) -> None:
    """Give a variable another value."""
    variable.assign(array)


def program(model: Any) -> tuple[Any, Callable[[Any, Any], Any]]:
    """Return the values of a model's variables, and the function that computes its outputs with them."""
    values = [_values(part) for part in (model.trainable_variables, model.non_trainable_variables)]

    arguments = {"training": False} if model._call_has_training_arg else {}

    def call(values: Any, x: Any) -> Any:
        outputs, _ = model.stateless_call(*values, x, **arguments)
        return outputs

    return values, call


def _values(variables: Sequence[Any]) -> list[np.ndarray]:
    return [np.asarray(ref_of(variable).read_eagerly()) for variable in variables]


def inputs_of(model: Any) -> Any:
    """Return what the inputs of a Functional or Sequential model look like, in their structure; None for other models."""
    graph = getattr(model, "_functional", None) if isinstance(model, keras.Sequential) else model
    return getattr(graph, "_inputs_struct", None)
