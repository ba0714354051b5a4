"""Computes the operation of one equation of a traced program."""

from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex


def bind(eqn: jex.JaxprEqn, values: Sequence[Any]) -> list[Any]:
    """Compute an equation on values, which may be traced."""
    with eqn.ctx.manager:
        results = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
    return list(results) if eqn.primitive.multiple_results else [results]
