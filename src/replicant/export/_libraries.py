"""What Keras and Flax NNX tell about their models. `keras/saving/_exported` and `nnx/_exported` have these functions.

``name_of(model)``: how messages call it. ``check_built(model)``: raises ArgumentError if it has no weights yet.
``weights(model)``: its variables with their names, in order. ``program(model)``: the host's values of its state, and the function
``call(values, inputs)`` that computes its outputs as after training. ``inputs_of(model)``: what its inputs look like, or None.
"""

import importlib
import sys
from typing import Any

from ..errors import ArgumentTypeError, ContextError
from ..replicas._context import active_replica_context
from ..replicas._own_mesh import in_a_trace


def library_of(model: Any, method: str) -> Any:
    """Return the module that knows the models of a library. `method` is what the user calls.

    Raises:
        ArgumentTypeError: If this is not a model of Keras or NNX.
        ContextError: If it is called while a program is traced.
    """
    if active_replica_context() is not None or in_a_trace():
        raise ContextError(
            f"{method} was called while a step is traced (in `run`, in a `function` or in jax.jit), when weights have no values. "
            "Call it outside, after the step."
        )
    keras, nnx = sys.modules.get("keras"), sys.modules.get("flax.nnx")
    if keras is not None and isinstance(model, keras.Model):
        return importlib.import_module("replicant.keras.saving._exported")
    if nnx is not None and isinstance(model, nnx.Module):
        return importlib.import_module("replicant.nnx._exported")
    raise ArgumentTypeError(
        f"{method} takes a keras.Model or a flax.nnx.Module, and got {type(model).__name__}. The parameters of other libraries are "
        "arrays in a pytree: call jax.export, or safetensors, with jax.device_get(parameters)."
    )
