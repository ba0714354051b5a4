"""Splits a loss into parts by their divisor, so that several closures can share an exact mean.

A mean over the rows of several closures is not the mean of their means. So each closure returns sums, and its contribution to what
these are divided by once all closures are known: its rows, its valid tokens if there is a mask, or its sample weights. The divisors
are noted where Keras divides by them.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax.numpy as jnp

from ._refs import ServerRef
from ._sums import put, taken, unchanged

ROWS, SUM = "rows", "sum"  # divided by the number of rows (so are penalties on weights, in effect); not divided


class LossPart(NamedTuple):
    """The terms of a loss with one divisor.

    Attributes:
        share: the name of the divisor.
        weight: this closure's contribution to it.
        value: the sum of the terms, divided by `weight`.
    """

    share: str
    weight: Any
    value: Any


class _Reductions:
    """Collects what Keras's losses are divided by, in order. Only terms with the divisor `keep` count; None keeps all."""

    def __init__(self, keep: str | None):
        self._keep = keep
        self._count = 0
        self.divisors: dict[str, Any] = {}

    def note(self, value: Any, values: Any, sample_weight: Any, mask: Any, reduction: str | None) -> Any:
        number, self._count = self._count, self._count + 1
        share: str = ROWS
        weight: Any = None
        if reduction in (None, "none", "sum"):
            share, weight = SUM, 1.0
        elif jnp.ndim(values) and reduction == "mean_with_sample_weight" and sample_weight is not None:
            weights = jnp.asarray(sample_weight, jnp.float32)
            share, weight = f"weights {number}", jnp.sum(weights if mask is None else weights * _like(mask, weights))
        elif jnp.ndim(values) and mask is not None:
            share, weight = f"mask {number}", jnp.sum(jnp.asarray(mask, jnp.float32))
        self.divisors[share] = weight
        return value if self._keep in (None, share) else jnp.zeros_like(value)


def _like(mask: Any, weights: Any) -> Any:
    mask = jnp.asarray(mask, weights.dtype)
    return mask.reshape(mask.shape + (1,) * (weights.ndim - mask.ndim)) if mask.ndim < weights.ndim else mask


class _Here(threading.local):
    reductions: _Reductions | None = None


_here = _Here()


def reduced(
    original: Callable[..., Any], values: Any, sample_weight: Any = None, mask: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Wraps the function with which all Keras losses weight and reduce the values of single elements."""
    value = original(values, sample_weight, mask, *args, **kwargs)
    if _here.reductions is None:
        return value
    reduction = args[0] if args else kwargs.get("reduction", "sum_over_batch_size")
    return _here.reductions.note(value, values, sample_weight, mask, reduction)


@contextmanager
def _noting(keep: str | None) -> Iterator[_Reductions]:
    before, _here.reductions = _here.reductions, _Reductions(keep)
    try:
        yield _here.reductions
    finally:
        _here.reductions = before


def loss_parts(
    compute: Callable[[], Any], num_rows: int, metrics: Sequence[ServerRef], *, has_penalties: bool
) -> Iterator[LossPart]:
    """Split the loss that `compute` returns into parts whose sum it is, one for each divisor of its terms.

    Args:
        compute: computes the loss.
        num_rows: the number of rows in the batch.
        metrics: variables that `compute` adds to and that are being summed (see ``_sums``). When a part is yielded, they hold what
            that part adds.
        has_penalties: whether the loss may have terms that come from no loss function.
    """
    before = taken(metrics)
    with _noting(None) as noted:
        value = compute()
    weights = noted.divisors | ({ROWS: num_rows} if has_penalties or ROWS in noted.divisors or not noted.divisors else {})
    if len(weights) == 1:
        yield LossPart(*weights.popitem(), value)
        return
    put(metrics, before)
    for share, weight in weights.items():
        with _noting(share):
            value = compute()
        if has_penalties and share != ROWS:
            with unchanged(metrics), _noting("nothing"):
                value = value - compute()
        yield LossPart(share, weight, value)
