"""``strategy.reduce`` and ``strategy.gather``: combine PerReplica values in cross-replica context."""

from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..errors import ArgumentError, ArgumentTypeError
from ..replicas._collectives import ReduceOp, check_reducible, mean_of, normalized_axis
from ..replicas._placement import is_local, on_all, with_token
from ..replicas._values import Mirrored, PerReplica, is_array, is_distributed
from ..runtime import _in_flight
from ..runtime._jax_dtypes import in_jax_dtype
from ..runtime._own_memory import own
from ..variables._recorder import current_recorder


def reduce_leaf(op: ReduceOp, value: Any, axis: Any, num_replicas: int) -> Any:
    """Combine one leaf for ``strategy.reduce``."""
    if not is_distributed(value):
        return _reduce_plain(op, value, axis, num_replicas)
    values = value.values if isinstance(value, PerReplica) and value.stacked is None else None
    leaf = _numeric(values[0] if values else (value.stacked if isinstance(value, PerReplica) else value.value), "reduce")
    axes = None if axis is None else _axes(axis, leaf.ndim if values or isinstance(value, Mirrored) else leaf.ndim - 1)
    if isinstance(value, Mirrored):
        return _dispatch(_reduce_mirrored, jnp.asarray(value.value), op=op, axes=axes, num_replicas=value.num_replicas)
    if values is None:
        return _dispatch(_reduce_stacked, value.stacked, op=op, axes=axes)
    arrays = [jnp.asarray(_numeric(v, "reduce")) for v in values]
    _check_shapes("reduce", arrays, axes)
    return _dispatch(_reduce_ragged, _together(arrays), op=op, axes=axes)


def gather_leaf(value: Any, axis: int) -> Any:
    """Combine one leaf for ``strategy.gather``."""
    if not is_distributed(value):
        return value
    if isinstance(value, PerReplica) and value.stacked is not None:
        k = normalized_axis(axis, value.stacked.ndim - 1, "gather")
        return _dispatch(_gather_stacked, value.stacked, axis=k)
    arrays = [jnp.asarray(_numeric(v, "gather")) for v in value.values]
    k = normalized_axis(axis, arrays[0].ndim, "gather")
    _check_shapes("gather", arrays, (k,))
    return _dispatch(_gather_ragged, _together(arrays), axis=k)


def _reduce_plain(op: ReduceOp, value: Any, axis: Any, num_replicas: int) -> Any:
    if axis is None:
        if op is ReduceOp.SUM and num_replicas > 1:
            raise ArgumentError(
                f"reduce: SUM of {value!r} is ambiguous, because it is not a distributed value but the same on all {num_replicas} "
                "replicas. Use it as it is, or multiply it by num_replicas_in_sync if that is what you mean."
            )
        return value
    array = jnp.asarray(_numeric(np.asarray(value) if not is_array(value) else value, "reduce"))
    # As in TensorFlow, every replica reduces the same value along the axis, so SUM counts it once per replica.
    return _dispatch(_reduce_mirrored, array, op=op, axes=_axes(axis, array.ndim), num_replicas=num_replicas)


def _numeric(value: Any, what: str) -> Any:
    if not is_array(value) and not isinstance(value, bool | int | float | complex):
        raise ArgumentTypeError(f"{what} takes numeric arrays, but a replica holds {value!r} of type {type(value).__name__}.")
    array = in_jax_dtype(value, lambda: f"{what}: the value") if is_array(value) else np.asarray(value)
    if what == "reduce":
        check_reducible(array, what)
    return jnp.asarray(own(array))


def _axes(axis: Any, rank: int) -> tuple[int, ...]:
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    return tuple(sorted({normalized_axis(k, rank, "reduce") for k in axes}))


def _check_shapes(what: str, arrays: list[Any], free: tuple[int, ...] | None) -> None:
    shapes = [x.shape for x in arrays]
    if len({tuple(d for k, d in enumerate(s) if k not in (free or ())) for s in shapes}) > 1 or len({len(s) for s in shapes}) > 1:
        listing = ", ".join(f"replica {i}: {list(s)}" for i, s in enumerate(shapes))
        rule = "equal shapes" if free is None else f"equal shapes except along axis {', '.join(map(str, free))}"
        hint = " Give an axis to reduce values of different sizes." if what == "reduce" and free is None else ""
        raise ArgumentError(f"{what} needs {rule} on all replicas; got {listing}.{hint}")


def _together(arrays: list[Any]) -> list[Any]:
    """Bring `arrays` to one set of devices: the values of the replicas may lie on several."""
    if any(isinstance(x, Tracer) for x in arrays):
        return arrays
    devices = {x.sharding.device_set.__iter__().__next__() for x in arrays if x.committed}
    return [jax.device_get(x) for x in arrays] if len(devices) > 1 else arrays


def _dispatch(program: Any, value: Any, **static: Any) -> Any:
    """Call a jitted helper. Outside a trace, it counts as a program in flight."""
    if current_recorder() is not None:
        return program(value, **static)
    leaf = jax.tree.leaves(value)[0]
    if not is_local(leaf):
        return on_all(program, value, *static.values())
    spread = isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1
    if not spread:
        return _in_flight.call(partial(program, **static), value, bounded=False)
    return _in_flight.call(_with_token(program, tuple(static.items())), value, bounded=True)[1]


@lru_cache(maxsize=256)
def _with_token(program: Any, static: tuple[tuple[str, Any], ...]) -> Any:
    return jax.jit(with_token(partial(program, **dict(static))))


@partial(jax.jit, static_argnames=("op", "axes"))
def _reduce_stacked(stacked: Any, op: ReduceOp, axes: tuple[int, ...] | None) -> Any:
    dims = (0, *(k + 1 for k in axes or ()))
    total = jnp.sum(stacked, axis=dims, dtype=stacked.dtype)
    return mean_of(total, int(np.prod([stacked.shape[k] for k in dims]))) if op is ReduceOp.MEAN else total


@partial(jax.jit, static_argnames=("op", "axes"))
def _reduce_ragged(arrays: list[Any], op: ReduceOp, axes: tuple[int, ...] | None) -> Any:
    totals = [jnp.sum(x, axis=axes, dtype=x.dtype) if axes else x for x in arrays]
    total = sum(totals[1:], start=totals[0])
    count = sum(int(np.prod([x.shape[k] for k in axes or ()])) for x in arrays)
    return mean_of(total, count) if op is ReduceOp.MEAN else total


@partial(jax.jit, static_argnames=("op", "axes", "num_replicas"))
def _reduce_mirrored(value: Any, op: ReduceOp, axes: tuple[int, ...] | None, num_replicas: int) -> Any:
    total = jnp.sum(value, axis=axes, dtype=value.dtype) if axes else value
    count = int(np.prod([value.shape[k] for k in axes or ()]))
    return mean_of(total, count) if op is ReduceOp.MEAN else total * num_replicas


@partial(jax.jit, static_argnames=("axis",))
def _gather_stacked(stacked: Any, axis: int) -> Any:
    n, *shape = stacked.shape
    return jnp.moveaxis(stacked, 0, axis).reshape(*shape[:axis], n * shape[axis], *shape[axis + 1 :])


@partial(jax.jit, static_argnames=("axis",))
def _gather_ragged(arrays: list[Any], axis: int) -> Any:
    return jnp.concatenate(arrays, axis=axis)
