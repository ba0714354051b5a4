"""A variable that lies in slices, as the path of a gradient reads it: whole, and gathered again for the backward pass.

`vjp` is ``jax.vjp`` of a function that gathers. Its backward pass keeps nothing that was computed from gathered values alone:
neither these nor their copies in another dtype. It computes them again, once it has its cotangents. At first sight,
``jax.checkpoint`` with a policy would do the same. But its policy would replace those of all checkpoints inside, which then would
keep everything, and it would keep copies in another dtype.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.interpreters import ad, mlir
from jax.sharding import Sharding

from ...replicas._collectives import AXIS, gather_over_model
from ...replicas._model_axis import ModelCut
from ..jaxprs._marks import inner_jaxprs
from ..jaxprs._primitive_names import GATHER
from ._cheap_to_recompute import LightValues

# gathered_p maps a slice, and a shift of the shape of the whole, which is zero, to the whole. Its gradient goes to the shift,
# because each replica has its own gradient of the whole. In the global view of ``fit``, the slice has the shape of the whole, and
# `whole` is the sharding to which it is gathered. `cut` says how a replica of several devices cuts it over these.
gathered_p = jex.Primitive("replicant_gathered")


@gathered_p.def_abstract_eval
def _shape(part: Any, shift: Any, *, axis: int, whole: Sharding | None = None, cut: ModelCut | None = None) -> Any:
    del axis, whole, cut
    return ShapedArray(shift.shape, part.dtype)


def _gather(part: Any, shift: Any, *, axis: int, whole: Sharding | None = None, cut: ModelCut | None = None) -> jax.Array:
    del shift
    if cut is not None:
        return gather_over_model(part, axis, cut)
    if whole is not None:
        return lax.with_sharding_constraint(part, whole)
    return lax.all_gather(part, AXIS, axis=axis, tiled=True)


def _jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    return gathered_p.bind(*primals, **params), tangents[1]


gathered_p.def_impl(_gather)
mlir.register_lowering(gathered_p, mlir.lower_fun(_gather, multiple_results=False))
ad.primitive_jvps[gathered_p] = _jvp


def gathered_over_model(part: Any, axis: int, cut: ModelCut, shape: tuple[int, ...]) -> jax.Array:
    """Gather a variable of this shape from the slices of all replicas, of which each has several devices."""
    return gathered_p.bind(part, jnp.zeros(shape, part.dtype), axis=axis, cut=cut)


def axis_of_gather(eqn: jex.JaxprEqn) -> int | None:
    """Return the axis along which an equation gathers an array from the slices of all replicas; None if it does something else."""
    if eqn.primitive is gathered_p:
        return eqn.params["axis"]
    inner = inner_jaxprs(eqn)  # an all-gather with a gradient of its own, see replicas/_collectives.py
    if len(eqn.invars) != 1 or len(inner) != 1 or [each.primitive.name for each in inner[0].eqns] != [GATHER]:
        return None
    params = inner[0].eqns[0].params
    return params["all_gather_dimension"] if params["tiled"] else None


def read_again(eqn: jex.JaxprEqn, values: Sequence[Any]) -> Sequence[Any]:
    """Evaluate an equation that gathers a variable, or that works on gathered values, in the path of a gradient."""
    axis = axis_of_gather(eqn)
    if axis is None or eqn.primitive is gathered_p:
        return bind(eqn, values)
    return [gathered_p.bind(*values, _zeros(eqn.outvars[0].aval), axis=axis)]


def vjp(fn: Callable[[Any], tuple[Any, Any]], sources: Any, held: Collection[Any] = ()) -> tuple[Any, Callable[..., Any], Any]:
    """Return what ``jax.vjp(fn, sources, has_aux=True)`` does, with a pullback that gathers again what `fn` gathers.

    Args:
        fn: The function. It gathers with ``gathered_p``.
        sources: Its argument, any pytree.
        held: Those of the sources, and of the arrays that `fn` captures, that the program keeps anyway, such as small variables.

    Returns:
        The values, the pullback, which is a pytree, and the auxiliary values.
    """
    trees: list[Any] = []

    def both(sources: Any) -> list[Any]:
        values, pullback, aux = jax.vjp(fn, sources, has_aux=True)
        results, kept = jax.tree.flatten((values, aux)), jax.tree.flatten(pullback)
        trees[:] = results[1], kept[1], len(results[0])
        return [*results[0], *kept[0]]

    closed = jax.make_jaxpr(both)(sources)
    results_tree, kept_tree, num_results = trees
    program = _Program(closed.jaxpr, [*closed.consts, *jax.tree.leaves(sources)], {id(x) for x in held})
    outputs = [program.value(v) for v in closed.jaxpr.outvars]
    values, aux = jax.tree.unflatten(results_tree, outputs[:num_results])
    return values, program.pullback(closed.jaxpr.outvars[num_results:], kept_tree), aux


class _Program:
    """A jaxpr that has been evaluated, and can give a pullback without what is cheap to compute again."""

    def __init__(self, jaxpr: jex.Jaxpr, inputs: Sequence[Any], held: set[int]):
        self._env: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], inputs, strict=True))
        self._light = LightValues(
            jaxpr, [v for v, x in self._env.items() if id(x) in held], lambda eqn: eqn.primitive is gathered_p
        )
        for eqn in jaxpr.eqns:
            self._env.update(zip(eqn.outvars, bind(eqn, [self.value(v) for v in eqn.invars]), strict=True))

    def value(self, var: Any) -> Any:
        return var.val if isinstance(var, jex.Literal) else self._env[var]

    def pullback(self, kept: Sequence[Any], tree: Any) -> Callable[..., Any]:
        """Return the pullback whose residuals are `kept`, as a pytree of the arrays that it keeps."""
        again, base = self._light.to_compute(kept)
        parts = list(dict.fromkeys(eqn.invars[0] for eqn in again if eqn.primitive is gathered_p))
        # In this order, which must be the same on all workers.
        shifts = dict.fromkeys(v for eqn in again if eqn.primitive is gathered_p for v in eqn.invars[1:])
        needed = [v for v in [*kept, *base] if not isinstance(v, jex.Literal) and v not in self._light]
        stay = list(dict.fromkeys(v for v in needed if v not in parts and v not in shifts))

        def pull(parts_now: list[Any], stay_now: list[Any], cotangents: Any) -> Any:
            # As in the backward pass of jax.checkpoint: otherwise, XLA would merge both gathers into one.
            cotangents, parts_now = lax.optimization_barrier((cotangents, parts_now))
            env: dict[Any, Any] = {v: _zeros(v.aval) for v in shifts if not isinstance(v, jex.Literal)}
            env.update(zip([*parts, *stay], [*parts_now, *stay_now], strict=True))

            def value(var: Any) -> Any:
                return var.val if isinstance(var, jex.Literal) else env[var]

            for eqn in again:
                env.update(zip(eqn.outvars, bind(eqn, [value(v) for v in eqn.invars]), strict=True))
            return tree.unflatten([value(v) for v in kept])(cotangents)

        return jax.tree_util.Partial(pull, [self._env[v] for v in parts], [self._env[v] for v in stay])


def _zeros(aval: Any) -> jax.Array:
    return jnp.zeros(aval.shape, aval.dtype)


def bind(eqn: jex.JaxprEqn, values: Sequence[Any]) -> Sequence[Any]:
    """Evaluate one equation."""
    with eqn.ctx.manager:
        results = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
    return list(results) if eqn.primitive.multiple_results else [results]
