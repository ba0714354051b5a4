"""Traces that teach something: which gradients have no path to their sources. Then the code is traced once more."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..tracing._gradient_paths import connected_sources
from ..variables._recorder import Facts


def learn(facts: Facts, jaxprs: Sequence[Any]) -> bool:
    """Note which gradients have no path to a source in any of the finished traces (one, or those of replicas of different sizes).

    True if there was one that was not known, so that the traces must be repeated.
    """
    missing: dict[int, frozenset[int]] = {}
    for jaxpr in jaxprs:
        for call, connected in connected_sources(jaxpr).items():
            mine = frozenset(source for source, linked in connected.items() if not linked)
            missing[call] = missing.get(call, mine) & mine
    for call, sources in missing.items():
        facts.unconnected[call] = facts.unconnected.get(call, frozenset()) | sources
    return any(missing.values())


def trace_until_learned(fn: Callable[..., Any], args: tuple[Any, ...], facts: Facts) -> Any:
    """The jaxpr of ``fn(*args)``, traced again while that teaches something."""
    while True:
        closed = jax.make_jaxpr(functools.partial(fn))(*args)  # partial: a new object each time, because JAX remembers traces
        if not learn(facts, [closed.jaxpr]):
            return closed
