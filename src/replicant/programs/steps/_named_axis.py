"""JAX's own collectives over the axis of the replicas (``jax.lax.psum(x, "replica")``), where each replica is traced on its own.

There is no such axis in the program of replicas of different sizes. So the traces get it by name only, and then each collective
becomes an exchange, which is answered by the same collective over the stacked values of all replicas. It means what it means in
``jax.pmap``: replicas count equally, whatever their numbers of rows are, and their values have equal shapes.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from ...errors import RaggedStepError
from ...replicas._collectives import AXIS
from ...tracing.jaxprs._bind import bind
from ...tracing.jaxprs._closed_jaxpr import ClosedJaxpr
from ...tracing.jaxprs._marks import exchange_p
from ...tracing.jaxprs._primitive_names import AGREEING
from ._ragged_exchanges import Rows


def with_exchanges(closed: ClosedJaxpr, num_replicas: int) -> ClosedJaxpr:
    """Return a replica's trace with an exchange in place of each collective over the axis of the replicas."""
    changed = _changed(closed.jaxpr, num_replicas, itertools.count())
    return closed if changed is closed.jaxpr else ClosedJaxpr(changed, closed.consts)


def _changed(jaxpr: jex.Jaxpr, num_replicas: int, numbers: Iterator[int]) -> jex.Jaxpr:
    eqns = [_equation(eqn, num_replicas, numbers) for eqn in jaxpr.eqns]
    if all(new is old for new, old in zip(eqns, jaxpr.eqns, strict=True)):
        return jaxpr
    return jaxpr.replace(eqns=eqns, effects=_other_effects(jaxpr.effects))


def _equation(eqn: jex.JaxprEqn, num_replicas: int, numbers: Iterator[int]) -> jex.JaxprEqn:
    if "mesh" in eqn.params:  # a shard_map, which names axes of its own
        return eqn
    if any(_is_axis(value) for value in eqn.params.values()):
        return _exchange(eqn, num_replicas, next(numbers))
    params = {key: _parameter(value, num_replicas, numbers) for key, value in eqn.params.items()}
    if all(params[key] is value for key, value in eqn.params.items()):
        return eqn
    return eqn.replace(params=params, effects=_other_effects(eqn.effects))


def _parameter(value: Any, num_replicas: int, numbers: Iterator[int]) -> Any:
    """Return a parameter of an equation, changed if it is or has a jaxpr that names the axis."""
    if isinstance(value, ClosedJaxpr):
        jaxpr = _changed(value.jaxpr, num_replicas, numbers)
        return value if jaxpr is value.jaxpr else ClosedJaxpr(jaxpr, value.consts)
    if isinstance(value, jex.Jaxpr):
        return _changed(value, num_replicas, numbers)
    if isinstance(value, tuple):
        items = tuple(_parameter(item, num_replicas, numbers) for item in value)
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value


def _is_axis(value: Any) -> bool:
    names = value if isinstance(value, tuple) else (value,)
    return any(isinstance(name, str) and name == AXIS for name in names)


def _other_effects(effects: Any) -> Any:
    return frozenset(effect for effect in effects if getattr(effect, "name", None) != AXIS)


def _exchange(eqn: jex.JaxprEqn, num_replicas: int, number: int) -> jex.JaxprEqn:
    label = f"{eqn.primitive.name} over {AXIS!r}"
    agrees = eqn.primitive.name in AGREEING and not eqn.params.get("axis_index_groups")
    avals: list[Any] = [v.aval for v in eqn.outvars]
    params = {
        "joint": _joint(eqn, label, num_replicas, agrees=agrees),
        "label": label,
        "rule": "",
        "index": number,
        "agrees": agrees,
        "in_shapes": None,
        "out_shapes": tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals),
    }
    return eqn.replace(primitive=exchange_p, params=params, effects=_other_effects(eqn.effects))


def _joint(eqn: jex.JaxprEqn, label: str, num_replicas: int, *, agrees: bool) -> Callable[[Rows], Rows]:
    """Return what computes the collective from the values of all replicas."""

    def of_each(replica: Any, *values: Any) -> list[Any]:
        del replica
        return bind(eqn, values)

    def joint(rows: Rows) -> Rows:
        _check(label, rows, eqn.params)
        columns = [jnp.stack(column) for column in zip(*rows, strict=True)]
        found = jax.vmap(of_each, axis_name=AXIS, axis_size=num_replicas)(jnp.zeros(num_replicas), *columns)
        return [[x[0 if agrees else r] for x in found] for r in range(num_replicas)]

    return joint


def _check(label: str, rows: Sequence[Sequence[Any]], params: dict[str, Any]) -> None:
    """Raise if the collective has no meaning where each replica has its own number of rows."""
    if params.get("axis_index_groups"):
        raise RaggedStepError(
            f"The replicas have different numbers of rows in this step, where {label} cannot have axis_index_groups (got "
            f"{params['axis_index_groups']}). Write replicant.get_replica_context().all_gather(x, axis=0), and choose from that."
        )
    for column in zip(*rows, strict=True):
        if len({(x.shape, x.dtype) for x in column}) > 1:
            listing = ", ".join(f"replica {r}: {x.dtype}{list(x.shape)}" for r, x in enumerate(column))
            raise RaggedStepError(
                f"{label} needs equal shapes and dtypes on all replicas; got {listing}. To join rows whose number differs by "
                "replica, write replicant.get_replica_context().all_gather(x, axis=0)."
            )
