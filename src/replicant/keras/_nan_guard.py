"""Training steps that write nothing if something is NaN or infinite: decided inside the compiled step, told to the host.

The step gets one small array more: what is known about the steps so far. It lies beside the metrics between two steps, where Keras
does not see it, and a copy comes back with the logs. Without a guard the program is what it always was.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from ..errors import ArgumentError
from ._train_function import Rank, Step, made, train_function_of

_TOLD = "replicant_verdict"  # in the logs, on the way to the host
_STATE = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What is known after some steps.

    num_steps: all of them. num_bad: those that wrote nothing. in_a_row: of these, since the last good one. step: the bad one that
    is told of, from 0; of its loss: the bits.
    """

    num_steps: int = 0
    num_bad: int = 0
    in_a_row: int = 0
    step: int = 0
    loss_bits: int = 0

    @property
    def loss(self) -> float:
        """The loss that was reported for the bad step: the mean of the epoch so far, with it."""
        return float(np.array(self.loss_bits, np.int32).view(np.float32))

    @classmethod
    def read(cls, told: Any) -> "Verdict":
        """What a step has told, once it is done."""
        return cls(*map(int, np.asarray(told)[0]))

    def as_array(self) -> np.ndarray:
        """For the device."""
        return np.array(dataclasses.astuple(self), np.int32)


def guarded(model: Any, step: Callable[..., Any], *, latch: bool) -> Callable[..., Any]:
    """``step(state, data) -> (logs, state)``, with a verdict at the end of the metrics; a bad step gives back the state it got.

    Args:
        model: whose step it is.
        step: Keras's ``train_step``, or the model's own.
        latch: whether no step after a bad one writes anything either.
    """

    def guarded_step(state: Any, data: Any) -> tuple[Any, Any]:
        *parts, (*metrics, verdict) = map(list, state)
        logs, new = step((*parts, metrics), data)
        new_parts = [list(part) for part in new]
        if not isinstance(logs, Mapping) or "loss" not in logs:
            returned = sorted(logs) if isinstance(logs, Mapping) else type(logs).__name__
            raise ArgumentError(
                f"TerminateOnNaN: the train_step of {model.name!r} must return a dict with a 'loss', which says whether a batch is "
                f"bad. It returned {returned}."
            )
        good = _is_good(logs["loss"], parts, new_parts)
        writes = good & (verdict[1] == 0) if latch else good
        kept = [
            [jnp.where(writes, after, before) for after, before in zip(part, old, strict=True)]
            for part, old in zip(new_parts, [*parts, metrics], strict=True)
        ]
        verdict = _judged(verdict, good, logs["loss"], latch=latch)
        kept[-1].append(verdict)
        told = verdict[None]  # an axis of one row: no strategy cuts that
        return {**_logs(model, dict(logs), metrics, writes), _TOLD: told}, tuple(kept)

    return guarded_step


def _is_good(loss: Any, before: list[list[Any]], after: list[list[Any]]) -> Any:
    """Whether the loss is finite, and so is everything that the step writes and that was finite; metrics may be what they like."""
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
    """What the step reports; of one that wrote nothing, the metrics as they were."""
    with keras.StatelessScope(state_mapping=list(zip(model.metrics_variables, metrics, strict=True))):
        before = model.get_metrics_result()
    if jax.tree.structure(before) != jax.tree.structure(logs):
        return logs  # a train_step's own; only that can say what they were
    return jax.tree.map(lambda x, old: jnp.where(writes, x, jnp.asarray(old, jnp.result_type(x))), logs, before)


class Switch:
    """A link of a model's train function that has guarded ones; each is made when it is first used, and compiled once."""

    def __init__(self, model: Any):
        self._model = model
        self._guarded: dict[bool, Any] = {}
        self._now: Any = None
        self._carried: Any = None
        self.told: deque[Any] = deque()  # verdicts that nobody has read yet, the oldest first
        self._then: Callable[[Any], Any] | None = None

    @property
    def is_on(self) -> bool:
        """Whether the steps are guarded."""
        return self._now is not None

    def turn_on(self, *, latch: bool, then: Callable[[Any], Any] | None = None) -> None:
        """Guard the steps from now on; `then` gets the state after each call, and returns what goes on."""
        if latch not in self._guarded:
            self._guarded[latch] = made(self._model, guarded(self._model, self._model.train_step, latch=latch))
        self._now, self._then = self._guarded[latch], then
        self.forget(Verdict())

    def turn_off(self) -> None:
        """Take the steps as they are again."""
        self._now = self._then = None
        self.told.clear()

    def forget(self, verdict: Verdict) -> None:
        """Go on as if this were all that is known."""
        self._carried = verdict.as_array()
        self.told.clear()

    def __call__(self, plain: Step, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        """One step, guarded or plain."""
        if self._now is None:
            return plain(state, iterator)
        *parts, metrics = state
        logs, (*parts, metrics) = self._now((*parts, [*metrics, self._carried]), iterator)
        if _TOLD not in logs:
            raise ArgumentError(
                f"TerminateOnNaN: {self._model.name!r} makes a train_function that does not use its train_step, so its batches "
                "cannot be guarded. Override train_step instead of make_train_function."
            )
        self.told.append(logs[_TOLD])
        *metrics, self._carried = metrics
        state = (*parts, metrics)
        if self._then is not None:
            self._model._jax_state = dict(zip(_STATE, state, strict=True))  # `then` waits, and Ctrl-C must find the state
            state = self._then(state)
        return {key: value for key, value in logs.items() if key != _TOLD}, state


def switch_of(model: Any) -> Switch:
    """The switch of the model's train function; there is one from now on."""
    function = train_function_of(model)
    switch = function.find(Switch)
    if switch is None:
        switch = Switch(model)
        function.put(Rank.GUARD, switch)
    return switch
