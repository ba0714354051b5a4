"""Hands gradients to the servers, which apply an optimizer: now, or whenever the program that is being traced has run."""

import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._state import current_recorder
from ._push import combine_rows
from ._refs import ServerRef, check_rows, record_output, trace_of
from ._rows import RowsGradient


def push_gradients(iterations: ServerRef, step: Any, rate: Any, grads: Sequence[Any], refs: Sequence[ServerRef]) -> None:
    """Have the optimizer that counts its steps in `iterations` applied.

    step, rate: how many steps there were when the gradients were computed, and the learning rate for them. grads: one for each of
    `refs`, an array or a RowsGradient.
    """
    outputs = [jnp.asarray(step), jnp.asarray(rate, jnp.float32)]
    parts: list[tuple[ServerRef, bool]] = []
    for grad, ref in zip(grads, refs, strict=True):
        is_rows = isinstance(grad, RowsGradient)
        parts.append((ref, is_rows))
        outputs += [grad.rows, grad.values] if is_rows else [jnp.asarray(grad, ref.dtype)]
    together = _Together(iterations, parts, len(outputs))
    recorder = current_recorder()
    if recorder is None:
        for i, output in enumerate(outputs):
            together.take(i, np.asarray(output))
        iterations.site.client.flush()
        return
    notes = trace_of(recorder)
    number, notes.num_outputs = notes.num_outputs, notes.num_outputs + 1
    names = tuple((ref.spec.number, is_rows) for ref, is_rows in parts)
    for i, output in enumerate(outputs):
        record_output(iterations, ("apply", number, names, i), output, functools.partial(together.take, i))
    recorder.values[iterations] = recorder.read(iterations) + 1
    for ref in refs:
        notes.pushed[ref] = "an optimizer was applied to it"


class _Together:
    """Collects what belongs to one application of an optimizer."""

    def __init__(self, iterations: ServerRef, parts: list[tuple[ServerRef, bool]], count: int):
        self._iterations = iterations
        self._parts = parts
        self._count = count
        self._arrays: dict[int, np.ndarray] = {}

    def take(self, index: int, array: np.ndarray) -> None:
        """One of the outputs; with the last, everything is pushed."""
        self._arrays[index] = array
        if len(self._arrays) < self._count:
            return
        values = iter([self._arrays[i] for i in range(self._count)])
        self._arrays = {}
        client, spec = self._iterations.site.client, self._iterations.spec
        rule = {"rule": spec.number, "step": int(next(values)), "learning_rate": float(next(values))}
        for ref, is_rows in self._parts:
            if is_rows:
                rows, gradients = check_rows(ref, next(values).reshape(-1)), next(values).reshape(-1, *ref.shape[1:])
                rows, gradients = combine_rows(rows, gradients)
                client.change(ref.spec, "apply", gradients, rows, **rule)
            else:
                client.change(ref.spec, "apply", next(values), **rule)
        client.change(spec, "add", np.ones((), spec.dtype), rule=spec.number)
