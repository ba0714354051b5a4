"""Finds the one large sum over workers of a program, which two workers of one host may exchange through their memory."""

import zlib
from typing import Any

import jax.extend.core as jex
from jax import lax

from ..replicas._swapped_sums import is_large
from ..tracing._marks import inner_jaxprs

_LOOPS = ("scan", "while")  # XLA may make several operations of one in a loop


def channel_of(closed: Any) -> int | None:
    """Return a number for the only large sum of a traced program, the same on all workers; None if there is none, or several.

    >>> import jax
    >>> channel_of(jax.make_jaxpr(lambda x: x + 1)(1.0)) is None
    True
    """
    found = _sums(closed.jaxpr)
    if len(found) != 1:
        return None
    inputs = [each.aval.str_short() for each in closed.jaxpr.invars]
    return zlib.crc32(repr((found, inputs)).encode())


def _sums(jaxpr: jex.Jaxpr) -> list[str]:
    """The types of the large arrays that are summed; each once for every time that its sum is called, and twice in a loop."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive is lax.psum_p:
            found += [each.aval.str_short() for each in eqn.invars if is_large(each.aval)]
        times = 2 if eqn.primitive.name in _LOOPS else 1
        for inner in inner_jaxprs(eqn):
            found += times * _sums(inner)
    return found
