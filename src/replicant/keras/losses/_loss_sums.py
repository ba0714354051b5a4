"""Keras's losses as sums over rows and the divisors of these sums, so that parts of a batch add up to the whole batch.

A loss divides the sum of its weighted values by their number, by the number of those that a mask leaves, or by the sum of their
weights. For a part of a batch, the divisor must be that of the whole batch.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp

from ...errors import ArgumentError
from .._internals import loss_module


class LossSums:
    """What the losses do that are computed in ``with summing(...)``, in their order.

    Args:
        divisors: What to divide the sums by; None for the part's own divisors.

    Attributes:
        own_divisors: The part's own divisors. The divisor of the whole batch is the sum of those of its parts. A plain number is
            proportional to the number of rows; for a loss that only sums, it is None.
        values: The sums after the division.
    """

    def __init__(self, divisors: Sequence[Any] | None = None):
        self._divisors = divisors
        self.own_divisors: list[Any] = []
        self.values: list[Any] = []

    def reduce(self, weighted: Any, divisor: Any) -> Any:
        """Return the sum of the weighted values, divided by the divisor of the whole batch."""
        given = divisor if self._divisors is None else self._divisors[len(self.own_divisors)]
        self.own_divisors.append(divisor)
        total = jnp.sum(weighted)
        if given is not None:
            given = jnp.asarray(given, total.dtype)
            total = jnp.where(given == 0, jnp.zeros_like(total), total / jnp.where(given == 0, jnp.ones_like(given), given))
        self.values.append(total)
        return total


class InLayers:
    """What Keras's losses do in the layers of a model, where only plain sums and means can be told from each other."""

    def reduce(self, weighted: Any, divisor: Any) -> Any:
        """Return what Keras does.

        Raises:
            ArgumentError: If the divisor depends on a mask or on weights.
        """
        if not (divisor is None or isinstance(divisor, int)):
            raise ArgumentError(
                "use_micro_batches: a layer computes a loss of Keras with a mask or with reduction='mean_with_sample_weight', "
                "whose divisor is not known before all micro-batches are computed. Add a sum or mean over rows, or write a custom "
                "loop."
            )
        return jnp.sum(weighted) / (divisor or 1)


class _Active(threading.local):
    sums: LossSums | InLayers | None = None


_active = _Active()


@contextmanager
def summing(sums: LossSums | InLayers) -> Iterator[None]:
    """Let `sums` reduce what losses compute in the ``with`` block."""
    before, _active.sums = _active.sums, sums
    try:
        yield
    finally:
        _active.sums = before


def reduced(
    original: Callable[..., Any], values: Any, sample_weight: Any = None, mask: Any = None, *, reduction: Any = "mean", **more: Any
) -> Any:
    """Reduce the values of a loss as Keras does, or as the current LossSums does."""
    sums = _active.sums
    if sums is None or reduction in (None, "none"):
        return original(values, sample_weight=sample_weight, mask=mask, reduction=reduction, **more)
    if jnp.ndim(values) == 0:
        raise ArgumentError(
            "use_micro_batches: a loss function returned one number for all rows, so it is not known how the numbers of "
            "micro-batches make that of the whole batch. Return one loss per example, and leave the reduction to Keras."
        )
    weighted = original(values, sample_weight=sample_weight, mask=mask, reduction="none", **more)
    return sums.reduce(weighted, _divisor(weighted, sample_weight, mask, reduction))


def _divisor(weighted: Any, sample_weight: Any, mask: Any, reduction: str) -> Any:
    if reduction == "sum":
        return None
    if reduction == "mean_with_sample_weight":
        weights = loss_module.apply_mask(sample_weight, mask, dtype=weighted.dtype, reduction=reduction)
        return weighted.size if weights is None else jnp.sum(jnp.asarray(weights))
    if mask is None:
        return weighted.size
    return jnp.sum(jnp.asarray(mask).astype(weighted.dtype)) * (weighted.size / max(jnp.size(mask), 1))
