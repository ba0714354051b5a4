"""Primitives that mark the places in a traced replica function where the interpreter (``tracing/replicas``) has something to do.

A replica function is traced once, into a jaxpr. ``GradientTape``, variables with an aggregation and the exchanges of ragged steps
leave these marks in it. The program that XLA compiles contains none of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray, Tracer
from jax.interpreters import ad, batching, mlir

from ...replicas._own_mesh import at_once
from ._closed_jaxpr import ClosedJaxpr

# gradient_p maps targets, their cotangents, and sources to one gradient per source.
#   tape: the id of the tape. call: the index of the `gradient` call in this trace. num_targets: the number of targets. owners: for
#   each source, its index among what `gradient` was asked for. absent: the indices of those without a value. rows: None, or for a
#   jacobian the number of cotangents of each target, along axis 0; the results have this axis too. at_once: whether to compute them
#   together. gathered: for each source that was gathered from slices, its index, the axis and the ModelCut; the
#   slices are the last operands.
gradient_p = jex.Primitive("replicant_gradient")
# region_p has no operands and no results. Here a tape starts (opens=True) or stops recording.
region_p = jex.Primitive("replicant_region")
# sync_p maps a value that is written to a variable to the value that all replicas store.
#   aggregation, rows_only: those of the variable. index: the index of the mark in this trace.
sync_p = jex.Primitive("replicant_sync")
# exchange_p maps one ragged replica's part of an exchange to its part of the answer.
#   joint: a function from all parts to all answers. label: the name in messages. rule: that of a reduction. index: the index of the
#   mark in this trace. agrees: whether all replicas get the same answer. in_shapes: if the answers are linear in the parts, the
#   shapes of all parts. out_shapes: the shapes of the answer.
exchange_p = jex.Primitive("replicant_exchange")

# own_p maps what a variable is assigned to what is read from it from then on. No gradient passes. Unlike the other marks, it may
# stay in a program that is not differentiated, where it has no effect.
own_p = jex.Primitive("replicant_own")

MARKERS = (gradient_p, region_p, sync_p, exchange_p)
for _primitive in MARKERS:
    _primitive.multiple_results = True


@gradient_p.def_abstract_eval
def _gradient_shapes(*avals: Any, num_targets: int, rows: int | None, gathered: tuple[Any, ...], **params: Any) -> Sequence[Any]:
    del params
    sources = avals[2 * num_targets : len(avals) - len(gathered)]
    return list(sources) if rows is None else [ShapedArray((rows, *aval.shape), aval.dtype) for aval in sources]


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


def _own_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    del tangents
    result: Any = own_p.bind(*primals)
    return result, ad.Zero(jax.typeof(result).to_tangent_aval())


ad.primitive_jvps[own_p] = _own_jvp  # inside a branch or loop, JAX differentiates
batching.defvectorized(own_p)


def name_constant(value: Any) -> None:
    """Give a scalar constant of a trace a variable of its own in the jaxpr, as larger arrays have.

    JAX writes scalar constants into the equations that use them, and converts them on the way, so their origin is lost. There is no
    public way to change that. If a version of JAX keeps its tracers in another way, nothing happens here, and
    ``gradients/_gradient_paths.py`` refuses the constant as a source.
    """
    if not isinstance(value, Tracer) or not isinstance(getattr(value, "val", None), jex.Literal):
        return
    constant: Any = value
    number = np.asarray(constant.val.val)
    with at_once():
        array = jnp.asarray(number.item() if constant.aval.weak_type else number)
    user: Any = own_p.bind(array)  # its equation has the variable that a trace makes for an array
    equation = getattr(user, "parent", None)
    inputs = getattr(equation, "in_tracers", ())
    # A constant of an outer trace already has a variable in this one.
    if user._trace is constant._trace and len(inputs) == 1:  # noqa: SLF001 - JAX has no public name for it
        constant.val, constant.parent = inputs[0].val, equation


def has_markers(jaxpr: jex.Jaxpr) -> bool:
    """Whether `jaxpr`, or a jaxpr inside it, contains a mark that the interpreter must answer."""
    if any(eqn.primitive in MARKERS for eqn in jaxpr.eqns):
        return True
    return any(has_markers(inner) for eqn in jaxpr.eqns for inner in inner_jaxprs(eqn))


def has_exchanges(eqns: Iterable[jex.JaxprEqn]) -> bool:
    """Whether one of the equations is an exchange or an assignment that all replicas agree on, or contains one."""
    return any(
        eqn.primitive in (exchange_p, sync_p) or any(has_exchanges(inner.eqns) for inner in inner_jaxprs(eqn)) for eqn in eqns
    )


def asks_outer_tape(jaxpr: jex.Jaxpr) -> bool:
    """Whether `jaxpr` computes a gradient with a tape that was opened outside of it."""
    marks = list(_all_marks(jaxpr))
    opened = {eqn.params["tape"] for eqn in marks if eqn.primitive is region_p and eqn.params["opens"]}
    return any(eqn.primitive is gradient_p and eqn.params["tape"] not in opened for eqn in marks)


def _all_marks(jaxpr: jex.Jaxpr) -> Iterator[jex.JaxprEqn]:
    for eqn in jaxpr.eqns:
        if eqn.primitive in MARKERS:
            yield eqn
        for inner in inner_jaxprs(eqn):
            yield from _all_marks(inner)


def scan_counts(eqn: jex.JaxprEqn) -> tuple[int, int]:
    """Return the number of a scan's operands that are constants, and of those that it carries. It iterates over the others."""
    trees = eqn.params.get("ft_in")  # JAX 0.11 and later
    if trees is None:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    num_consts, num_carry, _ = map(len, trees.unpack())
    return num_consts, num_carry


def inner_jaxprs(eqn: jex.JaxprEqn) -> list[jex.Jaxpr]:
    """Return the jaxprs among an equation's parameters (the bodies of jit, scan, cond and others)."""
    found = []
    for param in eqn.params.values():
        for item in param if isinstance(param, tuple | list) else (param,):
            if isinstance(item, ClosedJaxpr):
                found.append(item.jaxpr)
            elif isinstance(item, jex.Jaxpr):
                found.append(item)
    return found
