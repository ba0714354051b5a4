"""LSTMs of Keras: cuDNN's on GPUs, in the steps of a strategy, and the kernel "lstm" on CPUs.

XLA cannot cut it for several devices: in the global view of ``fit``, every device would collect the whole batch and compute all of
it. So each device is given its own rows. cuDNN's LSTM has no 16-bit floats in JAX, and Keras would only fail when the step is
lowered. There Keras's own loop is computed.

On CPUs, the kernel takes the place of Keras's loop over time, where it computes the same (see ``kernels/functions/_lstm.py``).
"""

import inspect
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax.sharding import NamedSharding, PartitionSpec

from ...kernels._switch import is_on
from ...kernels.functions import _lstm
from ...replicas._context import active_replica_context, active_strategy
from ...replicas._placement import Placement

_DTYPES = ("float32", "float64")  # of cuDNN's LSTM in JAX
_WEIGHTS = ("kernel", "bias")  # the ends of the names of arguments without rows


class _Step(threading.local):
    """The devices of the step that is being traced in the global view."""

    placement: Placement | None = None


_step = _Step()


@contextmanager
def in_global_view(placement: Placement) -> Iterator[None]:
    """Trace a step of ``fit`` for these devices in the ``with`` block."""
    before, _step.placement = _step.placement, placement
    try:
        yield
    finally:
        _step.placement = before


def placement_of_step() -> Placement | None:
    """Return the devices of the step that is being traced in the global view; None outside of such a trace."""
    return _step.placement


def lstm(original: Callable[..., Any], inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute what Keras calls the backend's LSTM, in one or in both directions, on each device's own rows.

    Raises:
        NotImplementedError: If cuDNN cannot do it. Keras then computes its own loop.
    """
    placement = _step.placement
    if placement is None and (active_replica_context() is None or not active_strategy().placement.devices):
        return original(inputs, *args, **kwargs)
    if jnp.result_type(inputs) not in _DTYPES:
        raise NotImplementedError("cuDNN's LSTM has no 16-bit floats in JAX")
    parameters = inspect.signature(original)
    if placement is None or placement.on_one_device or "inputs" not in parameters.parameters:  # older versions of Keras only raise
        return original(inputs, *args, **kwargs)
    home = placement.cut(math.gcd(inputs.shape[0], placement.num_replicas), 0)
    if home == placement.mirrored:
        return original(inputs, *args, **kwargs)
    assert isinstance(home, NamedSharding), "there are several devices"
    given = parameters.bind(inputs, *args, **kwargs).arguments
    arrays = {name: jnp.asarray(value) for name, value in given.items() if hasattr(value, "shape")}
    settings = {name: value for name, value in given.items() if name not in arrays}
    weights = {name: value for name, value in arrays.items() if name.endswith(_WEIGHTS)}
    rows = {name: value for name, value in arrays.items() if name not in weights}

    def on_device(rows: Any, weights: Any) -> Any:
        return original(**rows, **weights, **settings)

    specs = (home.spec, PartitionSpec())
    return jax.shard_map(on_device, mesh=placement.mesh, in_specs=specs, out_specs=home.spec, check_vma=False)(rows, weights)


def inner_loop(original: Callable[..., Any], layer: Any, sequences: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute what an LSTM layer computes over time: the last output, all outputs, and the last state."""
    given = {"training": False, **dict(zip(("initial_state", "mask", "training"), args, strict=False)), **kwargs}
    states, mask, training = given["initial_state"], given["mask"], given["training"]
    mask = mask[0] if isinstance(mask, list | tuple) else mask
    if not (is_on(_lstm.FAMILY) and on_cpus() and _is_plain(layer, sequences, states, mask, training)):
        return original(layer, sequences, *args, **kwargs)
    cell, x = layer.cell, jnp.asarray(sequences)
    if training and cell.dropout:
        x = x * jnp.expand_dims(cell.get_dropout_mask(x[:, 0]), 1)
    mask = None if mask is None else jnp.asarray(mask, bool)[..., None]
    x, mask = (_in_order(array, layer.go_backwards) for array in (x, mask))
    bias = jnp.zeros(cell.kernel.shape[-1], x.dtype) if cell.bias is None else cell.bias
    weights = [keras.ops.convert_to_tensor(weight) for weight in (cell.kernel, cell.recurrent_kernel, bias)]
    outputs, carries = _lstm.lstm(x, tuple(map(jnp.asarray, states)), tuple(weights), mask)
    state = [outputs[-1], carries[-1]]
    if mask is not None and layer.zero_output_for_mask:
        outputs = jnp.where(mask, outputs, 0)
    return outputs[-1], jnp.swapaxes(outputs, 0, 1), state


def _in_order(array: Any, go_backwards: bool) -> Any:
    """An array whose second axis is time, in the order in which a loop takes it. None stays."""
    if array is None:
        return None
    steps = jnp.swapaxes(array, 0, 1)
    return jnp.flip(steps, 0) if go_backwards else steps


def on_cpus() -> bool:
    """Whether what is being traced will run on CPUs."""
    placement = _step.placement
    if placement is None and active_replica_context() is not None:
        placement = active_strategy().placement
    return placement.on_cpu if placement is not None else jax.default_backend() == "cpu"


def runs_on_one_cpu() -> bool:
    """Whether what is being traced will run on one CPU device. Without a strategy, this is not known."""
    placement = _step.placement
    if placement is None and active_replica_context() is not None:
        placement = active_strategy().placement
    return placement is not None and placement.on_cpu and placement.on_one_device


def _is_plain(layer: Any, sequences: Any, states: Any, mask: Any, training: Any) -> bool:
    """Whether a layer computes what the kernel computes, in 32 or 64 bits. Masks may be there, unlike with cuDNN."""
    cell = layer.cell
    return (
        type(cell) is keras.layers.LSTMCell
        and "call" not in vars(cell)
        and cell._remat_mode is None  # it would be rematerialized in each step
        and layer.use_cudnn == "auto"
        and not layer.unroll
        and not cell.recurrent_dropout
        and (cell.implementation == 2 or not (training and cell.dropout))
        and cell.activation in (keras.activations.tanh, keras.ops.tanh, jnp.tanh)
        and cell.recurrent_activation in (keras.activations.sigmoid, keras.ops.sigmoid)
        and (mask is None or mask.ndim == 2)
        and sequences.shape[1] > 0
        and _dtypes(sequences, *states, cell.kernel, cell.recurrent_kernel) in ({"float32"}, {"float64"})
    )


def _dtypes(*arrays: Any) -> set[str]:
    return {jnp.result_type(keras.ops.convert_to_tensor(array)).name for array in arrays}
