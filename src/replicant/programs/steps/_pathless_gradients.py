"""Learns from finished traces which gradients have no path to their sources. The code is then traced again."""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ...tracing.gradients._gradient_paths import connected_sources
from ...variables._recorder import Facts

_logger = logging.getLogger("replicant.programs")
MAX_TRACES = 16  # of one program; code that makes its variables once needs two


def learn(facts: Facts, jaxprs: Sequence[Any]) -> bool:
    """Note which gradients have no path to a source in any of the finished traces.

    Args:
        facts: What earlier traces taught. The gradients are added to it.
        jaxprs: The finished traces: one, or one for each of several replicas of different sizes.

    Returns:
        Whether there is such a gradient that was not known, so that the traces must be repeated.
    """
    missing: dict[int, frozenset[int]] = {}
    for jaxpr in jaxprs:
        for call, connected in connected_sources(jaxpr).items():
            mine = frozenset(source for source, linked in connected.items() if not linked)
            missing[call] = missing.get(call, mine) & mine
    for call, sources in missing.items():
        facts.unconnected[call] = facts.unconnected.get(call, frozenset()) | sources
    return any(missing.values())


def log_traces(name: str, count: int, *, made: bool) -> None:
    """Log how often code was traced for a new program."""
    _logger.debug("traced %s for a new program, times: %d%s", name, count, " (the first made variables)" if made else "")


def trace_until_learned(fn: Callable[..., Any], args: tuple[Any, ...], facts: Facts) -> Any:
    """Trace ``fn(*args)`` again until a trace teaches nothing new, and return its jaxpr."""
    while True:
        closed = jax.make_jaxpr(functools.partial(fn))(*args)  # a new object each time, because JAX caches traces
        if not learn(facts, [closed.jaxpr]):
            return closed
