"""How a variable's copies are combined: synchronization says when, aggregation says how.

``replicant.Variable`` and Keras variables both use these pure functions of arrays. Semantics: tf.Variable under tf.distribute
(docs/differences.md lists where Replicant is stricter).
"""

import enum
from typing import TypeVar

import jax
import jax.numpy as jnp

from ..errors import ArgumentError, VariableError


class VariableSynchronization(enum.Enum):
    """When the copies of a variable are combined.

    With ``AUTO`` and ``ON_WRITE``, they are combined at every assignment, so all copies are always equal. With ``ON_READ``, as in
    metrics, each replica keeps its own copy, and the copies are aggregated when the value is read in cross-replica context.
    ``NONE`` is not supported.
    """

    AUTO = "auto"
    NONE = "none"
    ON_WRITE = "on_write"
    ON_READ = "on_read"


class VariableAggregation(enum.Enum):
    """How the replicas' values become one: not at all, as their sum, as their mean, or as replica 0's value."""

    NONE = "none"
    SUM = "sum"
    MEAN = "mean"
    ONLY_FIRST_REPLICA = "only_first_replica"


_Rule = TypeVar("_Rule", bound=enum.Enum)


def parse_rule(kind: type[_Rule], value: "_Rule | str | None") -> _Rule:
    """Return the member of `kind` for a member, its name in any case, or None, which means NONE.

    Raises:
        ArgumentError: If there is no such member.
    """
    if isinstance(value, kind):
        return value
    try:
        return kind["NONE" if value is None else str(value).upper()]
    except KeyError:
        names = ", ".join(member.name for member in kind)
        raise ArgumentError(f"{value!r} is not a valid {kind.__name__}: use one of {names}.") from None


def aggregate_copies(copies: jax.Array, aggregation: VariableAggregation, name: str) -> jax.Array:
    """Return the cross-replica value of an ``ON_READ`` variable whose copies are stacked along axis 0.

    Raises:
        VariableError: If the aggregation is NONE. `name` names the variable in the message.
    """
    match aggregation:
        case VariableAggregation.SUM:
            return jnp.sum(copies, axis=0, dtype=copies.dtype)
        case VariableAggregation.MEAN:
            return jnp.mean(copies, axis=0)
        case VariableAggregation.ONLY_FIRST_REPLICA:
            return copies[0]
        case _:
            raise VariableError(
                f"Variable {name!r} keeps one value per replica (synchronization=ON_READ) and has aggregation=NONE, so it has "
                "no single value in cross-replica context. Read it inside `strategy.run`, or create it with "
                "aggregation=SUM, MEAN or ONLY_FIRST_REPLICA."
            )


def split_value(value: jax.Array, aggregation: VariableAggregation, num_replicas: int) -> jax.Array:
    """Return copies, stacked along axis 0, whose aggregate is `value`: value / n each for SUM, otherwise the value itself."""
    if aggregation is VariableAggregation.SUM:
        if jnp.issubdtype(value.dtype, jnp.integer):  # for an exact split, the first copy takes the remainder
            share = value // num_replicas
            first = value - share * (num_replicas - 1)
            return jnp.concatenate([first[None], jnp.broadcast_to(share, (num_replicas - 1, *value.shape))])
        value = value / num_replicas
    return jnp.broadcast_to(value, (num_replicas, *value.shape))
