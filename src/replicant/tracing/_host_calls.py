"""Finds calls of the host in a program: ``jax.pure_callback`` and ``io_callback``, whose results it takes, and others."""

import jax.extend.core as jex

from ._marks import inner_jaxprs

_HOST_CALLS = frozenset({"pure_callback", "io_callback"})  # where JAX renames one, its own error tells
_WITHOUT_RESULTS = frozenset({"debug_callback", "debug_print"})


def host_call_in(jaxpr: jex.Jaxpr) -> str | None:
    """Return the name of the first operation that takes results from the host, in `jaxpr` or a body in it; None if none does."""
    return _first_of(_HOST_CALLS, jaxpr)


def may_fail(jaxpr: jex.Jaxpr) -> bool:
    """Whether a program runs Python while it computes, which may raise: then it fails, and has no results."""
    return _first_of(_HOST_CALLS | _WITHOUT_RESULTS, jaxpr) is not None


def _first_of(names: frozenset[str], jaxpr: jex.Jaxpr) -> str | None:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in names:
            return eqn.primitive.name
        for inner in inner_jaxprs(eqn):
            if (found := _first_of(names, inner)) is not None:
                return found
    return None
