"""Primitives that mark a traced replica function: places where the interpreter (``_interpreter.py``) has something to do.

A replica function is traced once, into a jaxpr. ``GradientTape``, variables with an aggregation and the exchanges of ragged steps
leave these marks in it; none of them survives into the program that XLA compiles.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray, Tracer
from jax.interpreters import mlir

# gradient_p: targets, then their cotangents, then sources -> one gradient per source.
#   tape: id of the tape; call: number of the `gradient` call in this trace; num_targets; owners: whose value each source is, as a
#   number among what `gradient` was asked for; absent: those of which there is no value.
gradient_p = jex.Primitive("replicant_gradient")
# region_p: nothing -> nothing. tape starts (opens=True) or stops recording here.
region_p = jex.Primitive("replicant_region")
# sync_p: a value written to a variable -> the value that all replicas store. aggregation, rows_only; index: which of this trace.
sync_p = jex.Primitive("replicant_sync")
# exchange_p: one ragged replica's part of an exchange -> its part of the answer.
#   joint: all parts -> all answers; label; rule: of a reduction; index: which of this trace; agrees: whether all replicas get the
#   same answer; out_shapes.
exchange_p = jex.Primitive("replicant_exchange")

# own_p: what a variable is assigned -> what is read from it from then on. No gradient passes. Alone among the marks it may stay in
# a program that nobody differentiates, where it means nothing.
own_p = jex.Primitive("replicant_own")

MARKERS = (gradient_p, region_p, sync_p, exchange_p)
for _primitive in MARKERS:
    _primitive.multiple_results = True


@gradient_p.def_abstract_eval
def _gradient_shapes(
    *avals: Any, tape: int, call: int, num_targets: int, owners: Sequence[int], absent: Sequence[int]
) -> Sequence[Any]:
    del tape, call, owners, absent
    return list(avals[2 * num_targets :])


@region_p.def_abstract_eval
def _region_shapes(*, tape: int, opens: bool) -> Sequence[Any]:
    del tape, opens
    return []


@sync_p.def_abstract_eval
def _sync_shapes(aval: Any, *, aggregation: Any, rows_only: bool, index: int) -> Sequence[Any]:
    del aggregation, rows_only, index
    return [aval]


@exchange_p.def_abstract_eval
def _exchange_shapes(*avals: Any, out_shapes: tuple[Any, ...], **params: Any) -> Sequence[Any]:
    del avals, params
    return [ShapedArray(shape.shape, shape.dtype) for shape in out_shapes]


own_p.def_impl(lambda value: value)
own_p.def_abstract_eval(lambda aval: aval)
mlir.register_lowering(own_p, lambda _, value: [value])


def name_constant(value: Any) -> None:
    """Make a scalar constant of a trace a constant with a variable of its own in the jaxpr, as larger arrays have.

    JAX writes scalar constants into the equations that use them, and converts them on the way, so that nothing tells where they
    came from. There is no public way to change that: if a JAX keeps its tracers in another way, nothing happens here, and
    ``_gradient_paths.py`` refuses the constant as a source.
    """
    if not isinstance(value, Tracer) or not isinstance(getattr(value, "val", None), jex.Literal):
        return
    constant: Any = value
    number = np.asarray(constant.val.val)
    with jax.ensure_compile_time_eval():
        array = jnp.asarray(number.item() if constant.aval.weak_type else number)
    user: Any = own_p.bind(array)  # its equation holds what a trace makes of an array that is not written into equations
    equation = getattr(user, "parent", None)
    inputs = getattr(equation, "in_tracers", ())
    # A constant of an outer trace has a variable in this one already.
    if user._trace is constant._trace and len(inputs) == 1:  # noqa: SLF001 - JAX has no public name for it
        constant.val, constant.parent = inputs[0].val, equation


def has_markers(jaxpr: jex.Jaxpr) -> bool:
    """Whether any of our marks is in `jaxpr` or a jaxpr inside it."""
    if any(eqn.primitive in MARKERS for eqn in jaxpr.eqns):
        return True
    return any(has_markers(inner) for eqn in jaxpr.eqns for inner in inner_jaxprs(eqn))


def scan_counts(eqn: jex.JaxprEqn) -> tuple[int, int]:
    """How many of a scan's operands are constants, and how many values it carries; the rest are what it walks along."""
    trees = eqn.params.get("ft_in")  # JAX 0.11 and later
    if trees is None:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    num_consts, num_carry, _ = map(len, trees.unpack())
    return num_consts, num_carry


def inner_jaxprs(eqn: jex.JaxprEqn) -> list[jex.Jaxpr]:
    """The jaxprs among an equation's parameters (bodies of jit, scan, cond, ...)."""
    found = []
    for param in eqn.params.values():
        for item in param if isinstance(param, tuple | list) else (param,):
            if isinstance(item, jex.ClosedJaxpr):
                found.append(item.jaxpr)
            elif isinstance(item, jex.Jaxpr):
                found.append(item)
    return found
