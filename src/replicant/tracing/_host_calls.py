"""Finds calls of the host in a program, from which it takes results: ``jax.pure_callback`` and ``io_callback``."""

import jax.extend.core as jex

from ._marks import inner_jaxprs

_HOST_CALLS = frozenset({"pure_callback", "io_callback"})  # where JAX renames one, its own error tells


def host_call_in(jaxpr: jex.Jaxpr) -> str | None:
    """Return the name of the first operation that calls the host, in `jaxpr` or in a body in it; None if there is none."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in _HOST_CALLS:
            return eqn.primitive.name
        for inner in inner_jaxprs(eqn):
            if (found := host_call_in(inner)) is not None:
                return found
    return None
