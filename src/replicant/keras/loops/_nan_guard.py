"""Training steps that write nothing if something is NaN or infinite. The compiled step decides, and reports to the host.

A guarded step gets one more small array, the verdict on the steps so far. Between two steps, the array travels with the metrics
where Keras does not see it, and a copy comes back with the logs. Without a guard, the program does not change.
"""

import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from ...errors import ArgumentError
from ..micro_batches._step import in_parts
from ..steps._stateful_step import step_of
from ._train_function import Rank, Step, make_train_function, train_function_of

_VERDICT_KEY = "replicant_verdict"  # the key of the verdict in the logs
_STATE = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What is known after some steps.

    Attributes:
        num_steps: The number of all steps.
        num_bad: The number of bad steps, which wrote nothing.
        in_a_row: The number of bad steps since the last good one.
        step: The bad step that the verdict reports, counted from 0.
        loss_bits: The bits of its loss, a float32.
    """

    num_steps: int = 0
    num_bad: int = 0
    in_a_row: int = 0
    step: int = 0
    loss_bits: int = 0

    @property
    def loss(self) -> float:
        """The loss that the bad step reported: the mean over the epoch so far, including that step."""
        return float(np.array(self.loss_bits, np.int32).view(np.float32))

    @classmethod
    def read(cls, told: Any) -> "Verdict":
        """Read the verdict of a step, waiting until the step is done."""
        return cls(*map(int, np.asarray(told)[0]))

    def as_array(self) -> np.ndarray:
        """Return the verdict as an array for the device, int32[5]."""
        return np.array(dataclasses.astuple(self), np.int32)


def guarded(model: Any, step: Callable[..., Any], *, latch: bool) -> Callable[..., Any]:
    """Return ``step(state, data) -> (logs, state)`` with a guard: a bad step returns the state it got.

    The guarded step expects a verdict at the end of the metrics.

    Args:
        model: The model whose step it is.
        step: Keras's ``train_step``, or the model's own.
        latch: Whether the steps after a bad one write nothing either.
    """

    @functools.wraps(step)
    def guarded_step(state: Any, data: Any) -> tuple[Any, Any]:
        *parts, (*metrics, verdict) = map(list, state)
        logs, new = step((*parts, metrics), data)
        new_parts = [list(part) for part in new]
        if not isinstance(logs, Mapping) or "loss" not in logs:
            returned = sorted(logs) if isinstance(logs, Mapping) else type(logs).__name__
            raise ArgumentError(
                f"TerminateOnNaN: the train_step of {model.name!r} must return a dict with a 'loss', which shows whether a batch "
                f"is bad, but it returned {returned}."
            )
        good = _is_good(logs["loss"], parts, new_parts)
        writes = good & (verdict[1] == 0) if latch else good
        kept = [
            [jnp.where(writes, after, before) for after, before in zip(part, old, strict=True)]
            for part, old in zip(new_parts, [*parts, metrics], strict=True)
        ]
        verdict = _judged(verdict, good, logs["loss"], latch=latch)
        kept[-1].append(verdict)
        told = verdict[None]  # no strategy cuts an axis of length 1
        return {**_logs(model, dict(logs), metrics, writes), _VERDICT_KEY: told}, tuple(kept)

    return guarded_step


def _is_good(loss: Any, before: list[list[Any]], after: list[list[Any]]) -> Any:
    """Return whether the loss is finite, and so is all that the step writes, except metrics and what was not finite before."""
    good = jnp.all(jnp.isfinite(loss))
    for old_part, new_part in zip(before, after[:-1], strict=True):
        for old, new in zip(old_part, new_part, strict=True):
            if jnp.issubdtype(jnp.result_type(new), jnp.inexact):
                good &= ~jnp.any(jnp.isfinite(old) & ~jnp.isfinite(new))
    return good


def _judged(verdict: Any, good: Any, loss: Any, *, latch: bool) -> Any:
    num_steps, num_bad, in_a_row, step, bits = verdict
    noted = ~good & (num_bad == 0) if latch else ~good
    loss_bits = jax.lax.bitcast_convert_type(jnp.mean(jnp.asarray(loss, jnp.float32)), jnp.int32)
    return jnp.stack(
        [
            num_steps + 1,
            num_bad + ~good,
            jnp.where(good, 0, in_a_row + 1),
            jnp.where(noted, num_steps, step),
            jnp.where(noted, loss_bits, bits),
        ]
    )


def _logs(model: Any, logs: dict[str, Any], metrics: list[Any], writes: Any) -> dict[str, Any]:
    """Return the logs of a step. If it wrote nothing, they are the metrics as they were."""
    with keras.StatelessScope(state_mapping=list(zip(model.metrics_variables, metrics, strict=True))):
        before = model.get_metrics_result()
    if jax.tree.structure(before) != jax.tree.structure(logs):
        return logs  # a custom train_step's own logs, whose earlier values are not known here
    return jax.tree.map(lambda x, old: jnp.where(writes, x, jnp.asarray(old, jnp.result_type(x))), logs, before)


class Switch:
    """A link of a model's train function that can guard its steps. A guarded step is made at its first use, and compiled once."""

    def __init__(self, model: Any):
        self._model = model
        self._guarded: dict[bool, Any] = {}
        self._now: Any = None
        self._carried: Any = None
        self.verdicts: deque[Any] = deque()  # unread verdicts, the oldest first
        self._then: Callable[[Any], Any] | None = None

    @property
    def is_on(self) -> bool:
        """Whether the steps are guarded."""
        return self._now is not None

    def turn_on(self, *, latch: bool, then: Callable[[Any], Any] | None = None) -> None:
        """Guard the steps from now on. `then` gets the state after each call, and returns the state to continue with."""
        if latch not in self._guarded:
            step = in_parts(self._model, step_of(self._model, "train_step"))
            self._guarded[latch] = make_train_function(self._model, guarded(self._model, step, latch=latch))
        self._now, self._then = self._guarded[latch], then
        self.forget(Verdict())

    def turn_off(self) -> None:
        """Stop guarding the steps."""
        self._now = self._then = None
        self.verdicts.clear()

    def forget(self, verdict: Verdict) -> None:
        """Continue as if `verdict` were all that is known."""
        self._carried = verdict.as_array()
        self.verdicts.clear()

    def __call__(self, plain: Step, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        """Take one step, guarded or plain."""
        if self._now is None:
            return plain(state, iterator)
        *parts, metrics = state
        logs, (*parts, metrics) = self._now((*parts, [*metrics, self._carried]), iterator)
        if _VERDICT_KEY not in logs:
            raise ArgumentError(
                f"TerminateOnNaN: the train_function of {self._model.name!r} does not use its train_step, so its batches cannot be "
                "guarded. Override train_step instead of make_train_function."
            )
        self.verdicts.append(logs[_VERDICT_KEY])
        *metrics, self._carried = metrics
        state = (*parts, metrics)
        if self._then is not None:
            self._model._jax_state = dict(zip(_STATE, state, strict=True))  # if Ctrl-C interrupts `then`, Keras needs the state
            state = self._then(state)
        return {key: value for key, value in logs.items() if key != _VERDICT_KEY}, state


def switch_of(model: Any) -> Switch:
    """Return the switch of the model's train function, and add one if there is none."""
    function = train_function_of(model)
    switch = function.find(Switch)
    if switch is None:
        switch = Switch(model)
        function.add(Rank.GUARD, switch)
    return switch
