"""Fuses equal replicas into one vectorized program for one device. Values that differ by replica have a leading axis of replicas.

Virtual CPU devices share the same cores. Computing replicas apart gains nothing there, and costs exchanges between threads, which
can even deadlock. Instead, a traced replica function is evaluated equation by equation under ``jax.vmap``, whose named axis answers
the collectives, and nothing waits for anything.

One case is treated specially. A sum over replicas of a product (the gradient of a weight) is computed as one product over the rows
of all replicas, and not as the sum of one product per replica. So a step is as fast as on one device, and adds in the same order.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax

from ...replicas._collectives import AXIS
from ..jaxprs._bind import bind
from ..jaxprs._closed_jaxpr import ClosedJaxpr
from ..jaxprs._marks import inner_jaxprs
from ..jaxprs._primitive_names import INLINED, SUMS
from ._draws import with_draws_apart
from ._varying import Varying


@dataclasses.dataclass(frozen=True)
class Same:
    """A value that all replicas share."""

    value: Any

    def stack(self, num_replicas: int) -> Any:
        """Return one row per replica."""
        return jnp.broadcast_to(jnp.asarray(self.value), (num_replicas, *jnp.shape(self.value)))


class Stack:
    """One value for each replica."""

    def __init__(self, rows: Any):
        self._rows = rows

    @property
    def rows(self) -> Any:
        """The values as one array of shape (replicas, ...)."""
        return self._rows

    @property
    def value(self) -> Any:
        """The value of one replica, for values that are known to be equal."""
        return self.rows[0]

    def stack(self, num_replicas: int) -> Any:
        """Return one row per replica."""
        assert self.rows.shape[0] == num_replicas
        return self.rows

    def total(self) -> Any:
        """Return the sum over the replicas."""
        return jnp.sum(self.rows, 0, dtype=self.rows.dtype)


class Summand(Stack):
    """One value for each replica, not computed if only their sum is needed."""

    def __init__(self, rows: Callable[[], Any], total: Callable[[], Any]):
        super().__init__(None)
        self._make_rows, self._make_total = rows, total

    @property
    def rows(self) -> Any:
        """The values as one array of shape (replicas, ...)."""
        if self._rows is None:
            self._rows = self._make_rows()
        return self._rows

    def total(self) -> Any:
        """Return the sum over the replicas, computed directly."""
        return self._make_total()


Value = Same | Stack


def fuse(closed: ClosedJaxpr, args: Sequence[Any], stacked: Sequence[bool], num_replicas: int) -> list[Value]:
    """Evaluate a replica's jaxpr, which has no marks, for all replicas. `stacked` says which `args` have a row per replica."""
    values = [Stack(x) if s else Same(x) for x, s in zip(args, stacked, strict=True)]
    return _Fused(num_replicas).evaluate(closed.jaxpr, closed.consts, values)


class _Fused:
    def __init__(self, num_replicas: int):
        self._num_replicas = num_replicas

    def evaluate(self, jaxpr: jex.Jaxpr, consts: Sequence[Any], args: Sequence[Value]) -> list[Value]:
        env: dict[Any, Value] = dict(zip(jaxpr.constvars, map(Same, consts), strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))
        varying = Varying(jaxpr, [not isinstance(value, Same) for value in args])

        def read(var: Any) -> Value:
            return Same(var.val) if isinstance(var, jex.Literal) else env[var]

        for eqn in jaxpr.eqns:
            results = self._equation(eqn, [read(v) for v in eqn.invars], [varying(v) for v in eqn.outvars])
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _equation(self, eqn: jex.JaxprEqn, values: list[Value], varies: list[bool]) -> list[Value]:
        name = eqn.primitive.name
        if name in SUMS and _is_sum_over_all(eqn):
            return [Same(x.value * self._num_replicas if isinstance(x, Same) else x.total()) for x in values]
        if not any(varies) and all(isinstance(x, Same) for x in values) and not _names_axis(eqn):
            return [Same(x) for x in bind(eqn, [x.value for x in values])]
        body = _body(eqn, len(values))
        if body is not None:
            return self.evaluate(body.jaxpr, body.consts, values)
        if name in _TOTALS and all(varies):
            total = _TOTALS[name](eqn, values)
            if total is not None:
                return [Summand(lambda: self._each(eqn, values, varies)[0], total)]
        return [Stack(x) if v else Same(x) for x, v in zip(self._each(eqn, values, varies), varies, strict=True)]

    def _each(self, eqn: jex.JaxprEqn, values: list[Value], varies: list[bool]) -> list[Any]:
        """Evaluate the equation for every replica. Results that vary get one row per replica."""
        merged = _rows_together(eqn, values)
        if merged is not None:
            return merged
        axes = [None if isinstance(x, Same) else 0 for x in values]
        arrays = [x.value if isinstance(x, Same) else x.rows for x in values]
        out_axes = [0 if v else None for v in varies]
        apart = with_draws_apart(eqn)
        each = jax.vmap(
            lambda *inputs: bind(apart, inputs), in_axes=axes, out_axes=out_axes, axis_name=AXIS, axis_size=self._num_replicas
        )
        try:
            return each(*arrays)
        except (NotImplementedError, TypeError, ValueError):  # without a rule in JAX: a callback, or a user's primitive
            if _names_axis(eqn):
                raise
            return self._one_by_one(eqn, values)

    def _one_by_one(self, eqn: jex.JaxprEqn, values: list[Value]) -> list[Any]:
        each = [bind(eqn, [x.value if isinstance(x, Same) else x.rows[i] for x in values]) for i in range(self._num_replicas)]
        return [jnp.stack(column) for column in zip(*each, strict=True)]


def _is_sum_over_all(eqn: jex.JaxprEqn) -> bool:
    return tuple(eqn.params["axes"]) == (AXIS,) and eqn.params.get("axis_index_groups") is None


def _names_axis(eqn: jex.JaxprEqn) -> bool:
    """Whether the equation, or one inside it, names the axis of replicas."""
    named = [x for param in eqn.params.values() for x in (param if isinstance(param, tuple | list) else (param,))]
    return any(isinstance(x, str) and x == AXIS for x in named) or any(
        _names_axis(inner) for body in inner_jaxprs(eqn) for inner in body.eqns
    )


def _body(eqn: jex.JaxprEqn, num_values: int) -> ClosedJaxpr | None:
    """Return the body that the equation calls, if the call means no more than its body."""
    if eqn.primitive.name not in INLINED:
        return None
    bodies = [x for x in eqn.params.values() if isinstance(x, ClosedJaxpr)]
    return bodies[0] if len(bodies) == 1 and len(bodies[0].jaxpr.invars) == num_values else None


# Sums over replicas that are computed as one operation.

Total = Callable[[], Any]


def _dot_total(eqn: jex.JaxprEqn, values: list[Value]) -> Total | None:
    """Compute a sum of products as one product that also contracts the axis of replicas."""
    left, right = values
    if isinstance(left, Same) or isinstance(right, Same):
        return None
    (left_axes, right_axes), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    numbers = (((0, *_shifted(left_axes)), (0, *_shifted(right_axes))), (_shifted(left_batch), _shifted(right_batch)))
    return lambda: _bind_with(eqn, [left.rows, right.rows], dimension_numbers=numbers)


def _conv_total(eqn: jex.JaxprEqn, values: list[Value]) -> Total | None:
    """Join the replicas along the input features, over which a convolution sums."""
    left, right = values
    if isinstance(left, Same) or isinstance(right, Same) or eqn.params["feature_group_count"] != 1:
        return None
    numbers = eqn.params["dimension_numbers"]

    def total() -> Any:
        return bind(eqn, [_join(left.rows, numbers.lhs_spec[1]), _join(right.rows, numbers.rhs_spec[1])])[0]

    return total


def _scatter_total(eqn: jex.JaxprEqn, values: list[Value]) -> Total | None:
    """Add the updates of all replicas to one array, as for the gradient of an embedding."""
    operand, indices, updates = values
    if not isinstance(operand, Same) or isinstance(indices, Same) or isinstance(updates, Same):
        return None
    numbers = eqn.params["dimension_numbers"]
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=_shifted(numbers.update_window_dims),
        inserted_window_dims=numbers.inserted_window_dims,
        scatter_dims_to_operand_dims=numbers.scatter_dims_to_operand_dims,
        operand_batching_dims=numbers.operand_batching_dims,
        scatter_indices_batching_dims=_shifted(numbers.scatter_indices_batching_dims),
    )
    if numbers.operand_batching_dims:
        return None

    def total() -> Any:
        n = updates.rows.shape[0]
        arrays = [operand.value * n, indices.rows, updates.rows]
        return _bind_with(eqn, arrays, dimension_numbers=numbers, indices_are_sorted=False, unique_indices=False)

    return total


def _linear_total(eqn: jex.JaxprEqn, values: list[Value]) -> Total | None:
    """Apply a linear operation to the sum instead of each value."""
    (value,) = values
    return (lambda: bind(eqn, [value.total()])[0]) if isinstance(value, Summand) else None


def _convert_total(eqn: jex.JaxprEqn, values: list[Value]) -> Total | None:
    avals: list[Any] = [v.aval for v in (*eqn.invars, *eqn.outvars)]
    return _linear_total(eqn, values) if all(jnp.issubdtype(x.dtype, jnp.floating) for x in avals) else None


def _scaled_total(eqn: jex.JaxprEqn, values: list[Value]) -> Total | None:
    left, right = values
    if isinstance(left, Summand) and isinstance(right, Same):
        return lambda: bind(eqn, [left.total(), right.value])[0]
    if isinstance(left, Same) and isinstance(right, Summand) and eqn.primitive.name == "mul":
        return lambda: bind(eqn, [left.value, right.total()])[0]
    return None


def _added_total(eqn: jex.JaxprEqn, values: list[Value]) -> Total | None:
    left, right = values
    if isinstance(left, Same) or isinstance(right, Same) or not (isinstance(left, Summand) or isinstance(right, Summand)):
        return None
    return lambda: bind(eqn, [left.total(), right.total()])[0]


_TOTALS: dict[str, Callable[[jex.JaxprEqn, list[Value]], Total | None]] = {
    "dot_general": _dot_total,
    "conv_general_dilated": _conv_total,
    "scatter-add": _scatter_total,
    **dict.fromkeys(("transpose", "reshape", "squeeze", "broadcast_in_dim", "rev", "neg", "copy", "reduce_sum"), _linear_total),
    "convert_element_type": _convert_total,
    **dict.fromkeys(("mul", "div"), _scaled_total),
    **dict.fromkeys(("add", "add_any", "sub"), _added_total),
}


# Operations on windows treat rows separately, so that the rows of all replicas can be joined.


def _rows_together(eqn: jex.JaxprEqn, values: list[Value]) -> list[Any] | None:
    window = eqn.params.get("window_dimensions")
    if window is None or len(eqn.outvars) != 1 or any(isinstance(x, Same) for x in values):
        return None
    each = [x.rows for x in values if isinstance(x, Stack)]
    params = eqn.params
    untouched = (
        window[0] == 1
        and params["window_strides"][0] == 1
        and tuple(params["padding"][0]) == (0, 0)
        and all(params.get(key) is None or params[key][0] == 1 for key in ("base_dilation", "window_dilation"))
    )
    rank = len(window)
    if not untouched or any(rows.ndim != rank + 1 for rows in each):
        return None
    num_replicas, num_rows = each[0].shape[:2]
    (result,) = bind(eqn, [_join(rows, 0) for rows in each])
    return [result.reshape(num_replicas, num_rows, *result.shape[1:])]


def _join(rows: Any, axis: int) -> Any:
    """Join the replicas' values along one of their axes, in replica order."""
    moved = jnp.moveaxis(rows, 0, axis)
    return moved.reshape(*moved.shape[:axis], moved.shape[axis] * moved.shape[axis + 1], *moved.shape[axis + 2 :])


def _bind_with(eqn: jex.JaxprEqn, values: Sequence[Any], **changed: Any) -> Any:
    with eqn.ctx.manager:
        return eqn.primitive.bind(*values, **eqn.primitive.get_bind_params({**eqn.params, **changed}))


def _shifted(axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(axis + 1 for axis in axes)
