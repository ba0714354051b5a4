"""Hands gradients to the servers, which apply an optimizer: now, or whenever the program that is being traced has run."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ...variables._recorder import current_recorder
from ._push import combine_rows
from ._refs import ServerRef, check_rows, notes_of, record_output
from ._rows_gradient import RowsGradient


class Part(NamedTuple):
    """Gradients of one part of a loss.

    grads: for each variable an array, a RowsGradient, or None. share: what the gradients, which are sums, are divided by once those
    of several functions have been added up; None for nothing. weight: what this function adds to that divisor.
    """

    grads: Sequence[Any]
    share: str | None = None
    weight: Any = None


class _Known(NamedTuple):
    """What is known of one gradient before its values are."""

    ref: ServerRef
    is_rows: bool
    share: str | None


def push_gradients(iterations: ServerRef, step: Any, rate: Any, parts: Sequence[Part], refs: Sequence[ServerRef]) -> None:
    """Have the optimizer that counts its steps in `iterations` applied, to the sum of the parts' gradients.

    step, rate: how many steps there were when the gradients were computed, and the learning rate for them. refs: the variables.
    """
    shares = [part.share for part in parts if part.share is not None]
    outputs = [jnp.asarray(step), jnp.asarray(rate, jnp.float32)]
    outputs += [jnp.asarray(part.weight, jnp.float32) for part in parts if part.share is not None]
    known: list[_Known] = []
    for part in parts:
        for grad, ref in zip(part.grads, refs, strict=True):
            if grad is None:
                continue
            is_rows = isinstance(grad, RowsGradient)
            known.append(_Known(ref, is_rows, part.share))
            outputs += [grad.rows, grad.values] if is_rows else [jnp.asarray(grad, ref.dtype)]
    together = _Together(iterations, shares, known, len(outputs))
    recorder = current_recorder()
    if recorder is None:
        client = iterations.site.client
        client.flush()  # what is noted from here on is of this application
        try:
            for i, output in enumerate(outputs):
                together.take(i, np.asarray(output))
        except BaseException:
            client.drop()
            raise
        client.flush()
        return
    notes = notes_of(recorder)
    number, notes.num_outputs = notes.num_outputs, notes.num_outputs + 1
    # Shapes too: a program for another number of rows has outputs of its own, and all of these go to one `together`.
    names = (*shares, *[(ref.spec.number, is_rows, share) for ref, is_rows, share in known], *[(x.shape, x.dtype) for x in outputs])
    for i, output in enumerate(outputs):
        record_output(iterations, ("apply", number, names, i), output, functools.partial(together.take, i))
    recorder.replace(iterations, recorder.read(iterations) + 1)
    for ref in refs:
        notes.pushed[ref] = "an optimizer was applied to it"


class _Together:
    """Collects what belongs to one application of an optimizer."""

    def __init__(self, iterations: ServerRef, shares: list[str], known: list[_Known], count: int):
        self._iterations = iterations
        self._shares = shares
        self._known = known
        self._count = count
        self._arrays: dict[int, np.ndarray] = {}

    def take(self, index: int, array: np.ndarray) -> None:
        """One of the outputs, in their order; with the last, everything is pushed. An interrupted run gives all of them anew."""
        self._arrays[index] = array
        if index < self._count - 1:
            return
        values = iter([self._arrays[i] for i in range(self._count)])
        self._arrays = {}
        client, spec = self._iterations.site.client, self._iterations.spec
        rule = {"rule": spec.number, "step": int(next(values)), "learning_rate": float(next(values))}
        shares = tuple((share, float(next(values))) for share in self._shares)
        for ref, is_rows, share in self._known:
            if is_rows:
                rows, gradients = check_rows(ref, next(values).reshape(-1)), next(values).reshape(-1, *ref.shape[1:])
                rows, gradients = combine_rows(rows, gradients)
                client.change(ref.spec, "apply", gradients, rows, share=share, **rule)
            else:
                client.change(ref.spec, "apply", next(values), share=share, **rule)
        client.change(spec, "add", np.ones((), spec.dtype), rule=spec.number, shares=shares)
