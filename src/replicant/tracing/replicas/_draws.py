"""Draws of random numbers under ``jax.vmap``: each replica draws with its own key, as it would alone.

JAX's operation `rng_bit_generator` has no rule for several keys: under vmap, all numbers come from the first key. The generators
"rbg" and "unsafe_rbg" draw with it. So before fused replicas are vectorized, such draws are marked, and the mark's rule draws once
for each key. Draws of the usual "threefry2x32" are left as they are: JAX vectorizes them rightly, and fast.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.interpreters import batching, mlir

from ..jaxprs._bind import bind
from ..jaxprs._closed_jaxpr import ClosedJaxpr
from ..jaxprs._marks import inner_jaxprs
from ..jaxprs._primitive_names import DRAWS, RAW_DRAW, VECTORIZED

# each_p computes an equation that draws. Under vmap, it does so once for each key.
#   draw: the equation.
each_p = jex.Primitive("replicant_each")
each_p.multiple_results = True


def with_draws_apart(eqn: jex.JaxprEqn) -> jex.JaxprEqn:
    """Return an equation that draws for each key under vmap, in its bodies, too; the same equation if it does not draw."""
    if _draws(eqn):
        return eqn.replace(primitive=each_p, params={"draw": eqn})
    if not any(map(_has_draws, inner_jaxprs(eqn))):
        return eqn
    return eqn.replace(params={name: _param(param) for name, param in eqn.params.items()})


def _draws(eqn: jex.JaxprEqn) -> bool:
    name = eqn.primitive.name
    return name == RAW_DRAW or (name in DRAWS and _dtype(eqn) != _vectorized())


def _dtype(eqn: jex.JaxprEqn) -> Any:
    key: Any = eqn.invars[0].aval
    return key.dtype


def _vectorized() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0, impl=VECTORIZED)).dtype


def _has_draws(jaxpr: jex.Jaxpr) -> bool:
    return any(_draws(eqn) or any(map(_has_draws, inner_jaxprs(eqn))) for eqn in jaxpr.eqns)


def _param(param: Any) -> Any:
    if isinstance(param, ClosedJaxpr):
        return ClosedJaxpr(_jaxpr(param.jaxpr), param.consts)
    if isinstance(param, jex.Jaxpr):
        return _jaxpr(param)
    if type(param) in {tuple, list}:
        return type(param)(map(_param, param))
    return param


def _jaxpr(jaxpr: jex.Jaxpr) -> jex.Jaxpr:
    return jaxpr.replace(eqns=[with_draws_apart(eqn) for eqn in jaxpr.eqns])


@each_p.def_impl
def _compute(*operands: Any, draw: jex.JaxprEqn) -> list[Any]:
    return bind(draw, operands)


@each_p.def_abstract_eval
def _shapes(*avals: Any, draw: jex.JaxprEqn) -> Sequence[Any]:
    del avals
    return [var.aval for var in draw.outvars]


def _batched(operands: Any, axes: Any, *, draw: jex.JaxprEqn) -> tuple[Any, Any]:
    size = next(x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None)
    rows = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(operands, axes, strict=True)]
    each = [each_p.bind(*[x if axis is None else x[i] for x, axis in zip(rows, axes, strict=True)], draw=draw) for i in range(size)]
    return [jnp.stack(column) for column in zip(*each, strict=True)], [0] * len(draw.outvars)


batching.primitive_batchers[each_p] = _batched
mlir.register_lowering(each_p, mlir.lower_fun(_compute, multiple_results=True))
