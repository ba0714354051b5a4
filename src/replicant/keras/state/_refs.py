"""Keras variables as compiled steps see them."""

from typing import Any

import jax.numpy as jnp

from ...replicas._copies import VariableAggregation
from ...variables._ref import Ref
from . import _running_loops

MADE_UNDER = "_replicant_made_under"  # the attribute in which a variable keeps its strategy
_BATCH_STATISTICS = ("moving_mean", "moving_variance")


class KerasRef(Ref):
    """The storage of a Keras variable.

    Stacked copies are stored in ``_value`` itself and recognized by identity, so anything that Keras assigns replaces them.
    """

    def __init__(self, variable: Any):
        super().__init__(holder=variable)
        self.variable = variable
        self.name = variable.path
        self.shape = tuple(variable.shape)
        self.dtype = jnp.dtype(variable._dtype)
        self.on_read = variable.synchronization == "on_read"
        statistics = variable.name in _BATCH_STATISTICS and not variable.trainable
        rule = "mean" if statistics and variable.aggregation == "none" else variable.aggregation
        self.aggregation = VariableAggregation(rule)
        self.rows_only = statistics or self.on_read
        self._copies: Any = None
        self.strategy = variable.__dict__.get(MADE_UNDER)

    @property
    def trainable(self) -> bool:  # type: ignore[override]  # Keras lets users freeze a variable at any time
        return self.variable.trainable

    def switch(self) -> tuple[Any, str]:
        return self.variable, "_trainable"

    def get_raw(self) -> tuple[Any, bool]:
        value = self.variable._value
        if value is not None and value is self._copies:
            return value, True
        if value is None or _running_loops.is_gone(value):
            taken = _running_loops.taken(self.variable)
            value = value if taken is None else taken
        if value is None:  # the variable was made during this trace and is filled in at its end
            return jnp.zeros(self.shape, self.dtype), False
        return value, False

    def keep(self, raw: Any) -> Any:
        if not _running_loops.in_another_thread(self.variable) or _running_loops.is_gone(raw):
            return super().keep(raw)
        return jnp.array(raw, copy=True)  # the next step of the loop overwrites what it has

    def set_raw(self, raw: Any, *, stacked: bool) -> None:
        self.variable._value = raw
        self._copies = raw if stacked else None


def ref_of_keras(variable: Any) -> KerasRef:
    """Return the one Ref of a Keras variable."""
    ref = known_ref(variable)
    if ref is None:
        ref = variable._replicant_ref = KerasRef(variable)
    return ref


def known_ref(variable: Any) -> KerasRef | None:
    """Return the Ref of a Keras variable, if it has one. ``copy.copy`` gives a copy the Ref of the original, and its array."""
    ref = variable.__dict__.get("_replicant_ref")
    if isinstance(ref, KerasRef) and ref.variable is not variable:
        ref = variable._replicant_ref = KerasRef(variable)
        value = variable._value
        ref._copies = value if ref.on_read and value is not None and value.shape != ref.shape else None
    return ref
