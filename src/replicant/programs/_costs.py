"""Tells by its trace whether a program takes a fraction of a millisecond on a CPU, before anything is compiled."""

import math
from typing import Any

import jax.extend.core as jex

from ..tracing._marks import inner_jaxprs

SMALL_BYTES, SMALL_FLOPS = 4 << 20, 10_000_000  # that the operations of a small program read and write, and compute
LOOPS = frozenset({"while", "scan"})


def is_small(jaxpr: jex.Jaxpr) -> bool:
    """Whether a program has no loop, takes and computes few bytes, and multiplies few numbers."""
    bytes_taken = sum(map(_bytes, (var.aval for var in (*jaxpr.invars, *jaxpr.constvars))))
    computed, flops = _costs(jaxpr)
    return bytes_taken + computed < SMALL_BYTES and flops < SMALL_FLOPS


def _costs(jaxpr: jex.Jaxpr) -> tuple[float, float]:
    """The bytes of all results of operations, and what products and convolutions compute."""
    size = flops = 0.0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in LOOPS:
            return math.inf, math.inf
        inner = [_costs(each) for each in inner_jaxprs(eqn)]
        size += sum(each for each, _ in inner) if inner else sum(_bytes(var.aval) for var in eqn.outvars)
        flops += sum(each for _, each in inner) + _flops(eqn)
    return size, flops


def _bytes(aval: Any) -> int:
    return aval.size * aval.dtype.itemsize if hasattr(aval, "dtype") else 0


def _flops(eqn: Any) -> int:
    """Two for each multiplication of a product or a convolution."""
    shapes: list[Any] = [getattr(var.aval, "shape", ()) for var in eqn.invars]
    results = math.prod(eqn.outvars[0].aval.shape) if eqn.outvars else 0
    if eqn.primitive.name == "dot_general":
        (contracting, _), _ = eqn.params["dimension_numbers"]
        return 2 * results * math.prod(shapes[0][axis] for axis in contracting)
    if eqn.primitive.name == "conv_general_dilated":
        filters = eqn.params["dimension_numbers"].rhs_spec
        return 2 * results * math.prod(shapes[1]) // shapes[1][filters[0]]
    return 0
