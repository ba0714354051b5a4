"""What the copies of an ``nnx.Variable`` mean, by its type.

* ``nnx.metrics.MetricState``: each replica has its own copy, and they are added up when read outside ``run``.
* ``nnx.BatchStat``: at each assignment, the mean over the replicas that have rows.
* Everything else (``nnx.Param``, optimizer state, the state of random streams): the same on all replicas. Assigning a value that
  differs between them is an error.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from flax import nnx

from ..replicas._copies import VariableAggregation


@dataclasses.dataclass(frozen=True)
class Rule:
    """How one kind of Variables behaves; see ``Ref``."""

    on_read: bool = False
    aggregation: VariableAggregation = VariableAggregation.NONE
    rows_only: bool = False
    trainable: bool = False
    slot: bool = False


MIRRORED = Rule()
_PARAM = Rule(trainable=True)
_OPTIMIZER = Rule(slot=True)
_STATISTICS = Rule(aggregation=VariableAggregation.MEAN, rows_only=True)
_METRIC = Rule(on_read=True, aggregation=VariableAggregation.SUM, rows_only=True)


def rule_of(kind: type, dtype: Any) -> Rule:
    """Return the rule for Variables of a type that hold a dtype."""
    if issubclass(kind, nnx.Param):
        return _PARAM
    if issubclass(kind, nnx.metrics.MetricState):
        return _METRIC
    if issubclass(kind, nnx.BatchStat) and jnp.issubdtype(dtype, jnp.inexact):
        return _STATISTICS
    return _OPTIMIZER if issubclass(kind, nnx.OptState) else MIRRORED
