"""Pushes gradients to servers, which apply an optimizer: at once, or in a trace after each run of the program."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ...variables._recorder import current_recorder
from ._client import Client
from ._push import combine_rows
from ._refs import ServerRef, check_not_in_control_flow, check_rows, notes_of, record_output
from ._rows_gradient import RowsGradient


class Part(NamedTuple):
    """The gradients of one part of a loss.

    Attributes:
        grads: for each variable an array, a RowsGradient, or None.
        share: the name of the divisor of these gradients, which are sums. It is applied once those of all closures have been
            added up. None: there is no divisor.
        weight: what this closure adds to the divisor.
    """

    grads: Sequence[Any]
    share: str | None = None
    weight: Any = None


class _Known(NamedTuple):
    """What is known about one gradient before its values are computed."""

    ref: ServerRef
    is_rows: bool
    share: str | None


def push_gradients(iterations: ServerRef, step: Any, rate: Any, parts: Sequence[Part], refs: Sequence[ServerRef]) -> None:
    """Have the servers apply an optimizer to the sum of the parts' gradients.

    Args:
        iterations: the variable in which the optimizer counts its steps.
        step: its value when the gradients were computed.
        rate: the learning rate.
        parts: the gradients, for each of the variables.
        refs: the variables.
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
        _apply_now(iterations.site.client, together, outputs)
        return
    check_not_in_control_flow(iterations, "the update by an optimizer")
    notes = notes_of(recorder)
    number, notes.num_outputs = notes.num_outputs, notes.num_outputs + 1
    # With the shapes: a program for another number of rows needs outputs of its own, all of which go to one `together`.
    names = (*shares, *[(ref.spec.number, is_rows, share) for ref, is_rows, share in known], *[(x.shape, x.dtype) for x in outputs])
    for i, output in enumerate(outputs):
        record_output(iterations, ("apply", number, names, i), output, functools.partial(together.take, i))
    recorder.replace(iterations, recorder.read(iterations) + 1)
    for ref in refs:
        notes.pushed[ref] = "an optimizer was applied to it"


def _apply_now(client: Client, together: "_Together", outputs: Sequence[Any]) -> None:
    client.flush()  # so that everything noted from here on belongs to this application
    try:
        for i, output in enumerate(outputs):
            together.take(i, np.asarray(output))
    except BaseException:
        client.drop()
        raise
    client.flush()


class _Together:
    """Collects the outputs of a program that belong to one application of an optimizer."""

    def __init__(self, iterations: ServerRef, shares: list[str], known: list[_Known], count: int):
        self._iterations = iterations
        self._shares = shares
        self._known = known
        self._count = count
        self._arrays: dict[int, np.ndarray] = {}

    def take(self, index: int, array: np.ndarray) -> None:
        """Take one of the outputs, in order. The last one notes all changes. After an interrupted run, all of them come again."""
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
