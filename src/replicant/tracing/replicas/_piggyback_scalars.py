"""Scalars that differ by replica, such as its part of the loss, and that every replica learns along with a sum of gradients.

`strategy.reduce` of such a scalar would be an exchange of its own, and on a link with a delay, an exchange costs as much as a step.
So the scalars of all replicas travel in the vector that is summed anyway: each has a place there, where the other replicas put 0.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from ...replicas._collectives import AXIS
from ..gradients._gradient_paths import GradientPath, find_paths, in_order
from ..jaxprs._primitive_names import SUMS

_MOST_BYTES = 4 << 20  # of a vector that takes them along: it is copied for that, which is no gain for a large one
_MOST = 64  # scalars


class Riders:
    """The scalars among the results of a replica function that travel with one of its sums.

    Args:
        jaxpr: The replica function.
        wanted: Which of its results differ by replica, and may travel.
        num_replicas: The number of replicas.
        replica_id: Returns the number of the replica, in a trace.
    """

    def __init__(self, jaxpr: jex.Jaxpr, wanted: Sequence[int], num_replicas: int, replica_id: Callable[[], jax.Array]):
        self._num_replicas, self._replica_id = num_replicas, replica_id
        self._sum: jex.JaxprEqn | None = None
        self._vars: list[jex.Var] = []
        self._rows: dict[jex.Var, jax.Array] = {}
        outputs: dict[int, Any] = {i: jaxpr.outvars[i] for i in wanted if isinstance(jaxpr.outvars[i], jex.Var)}
        scalars = {i: v for i, v in outputs.items() if _shape(v) == () and jnp.issubdtype(_dtype(v), jnp.floating)}
        if scalars:
            self._choose(jaxpr, list(scalars.values())[:_MOST])
        self.indices = [i for i, v in scalars.items() if v in self._vars]  # of the results that travel

    def _choose(self, jaxpr: jex.Jaxpr, scalars: list[jex.Var]) -> None:
        """Choose the last sum at which such scalars are known, in the order in which the interpreter computes."""
        known: set[Any] = {*jaxpr.invars, *jaxpr.constvars}
        for entry in in_order(jaxpr, find_paths(jaxpr)):
            if isinstance(entry, GradientPath):
                known.update(v for eqn in entry.eqns for v in eqn.outvars)
                continue
            if _takes_riders(entry):
                ready = [v for v in scalars if v in known and _dtype(v) == _dtype(entry.invars[0])]
                self._sum, self._vars = (entry, ready) if ready else (self._sum, self._vars)
            known.update(entry.outvars)

    def travel_with(self, eqn: jex.JaxprEqn) -> bool:
        """Whether they travel with this sum."""
        return eqn is self._sum

    def sum(self, eqn: jex.JaxprEqn, value: jax.Array, read: Callable[[Any], Any]) -> jax.Array:
        """Compute the sum, and note what all replicas' scalars are."""
        mine = jnp.stack([read(v) for v in self._vars])
        is_mine = (jnp.arange(self._num_replicas) == self._replica_id())[:, None]
        rows = jnp.where(is_mine, mine, jnp.zeros_like(mine))
        vector = jnp.zeros(value.size + rows.size, value.dtype)
        vector = jax.lax.dynamic_update_slice(vector, value.ravel(), (0,))
        vector = jax.lax.dynamic_update_slice(vector, rows.ravel(), (value.size,))
        with eqn.ctx.manager:
            total = eqn.primitive.bind(vector, **eqn.params)
        total = total[0] if eqn.primitive.multiple_results else total
        self._rows = dict(zip(self._vars, total[value.size :].reshape(rows.shape).T, strict=True))
        return total[: value.size].reshape(value.shape)

    def stack(self, jaxpr: jex.Jaxpr, index: int) -> jax.Array:
        """Return one of the results that travelled, of all replicas."""
        var: Any = jaxpr.outvars[index]
        return self._rows[var]


def _takes_riders(eqn: jex.JaxprEqn) -> bool:
    if eqn.primitive.name not in SUMS or len(eqn.invars) != 1 or isinstance(eqn.invars[0], jex.Literal):
        return False
    aval: Any = eqn.invars[0].aval
    over_all = tuple(eqn.params.get("axes", ())) == (AXIS,) and eqn.params.get("axis_index_groups") is None
    return over_all and 0 < aval.size * aval.dtype.itemsize <= _MOST_BYTES


def _shape(var: Any) -> tuple[int, ...]:
    return var.aval.shape


def _dtype(var: Any) -> Any:
    return var.aval.dtype
