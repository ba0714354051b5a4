"""The state of loops: the values that ``fit``, ``evaluate`` and ``predict`` have taken from a model's variables.

Keras's loops empty the variables and pass their values from step to step. Another thread that reads a variable meanwhile gets a
copy of what the last step has left.
"""

import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ._loop_run import all_loops

STATE = "_jax_state"  # where Keras keeps a loop's state

# The parts of the state of each of Keras's steps.
PARTS = {
    "train_step": ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables"),
    "test_step": ("trainable_variables", "non_trainable_variables", "metrics_variables"),
    "predict_step": ("trainable_variables", "non_trainable_variables"),
}


def variables_of(model: Any, part: str) -> Sequence[Any]:
    """Return a model's variables in a part of the state."""
    if part != "optimizer_variables":
        return getattr(model, part)
    optimizer = getattr(model, "optimizer", None)
    return [] if optimizer is None else optimizer.variables


def note(model: Any, names: Iterable[str], state: Iterable[Any]) -> None:
    """Note a state as the one that the variables get. It must be no attribute of the layer: Keras would track it."""
    model.__dict__[STATE] = dict(zip(names, state, strict=True))


def unshared(state: Sequence[list[Any]], before: Sequence[Sequence[Any]]) -> Sequence[list[Any]]:
    """Copy the arrays of a state, which its steps overwrite, that somebody else has, and return the state.

    Else only `note` has them, and the state before it if that has them as well.
    """
    for part, known in zip(state, before, strict=True):
        for i in range(len(part)):
            if sys.getrefcount(part[i]) > _REFERENCES + (i < len(known) and known[i] is part[i]):
                part[i] = jnp.array(part[i], copy=True)
    return state


def _references() -> int:
    """Count the references to an array that only a state and its `note` have."""
    state = [[object()]]
    noted = list(map(list, state))
    return max(sys.getrefcount(part[i]) for part in state for i in range(len(noted)))


_REFERENCES = _references()


def in_another_thread(variable: Any) -> bool:
    """Whether a loop of another thread computes on a variable."""
    here = threading.current_thread()
    return any(loop.thread is not here and _has(loop.model, variable) for loop in all_loops())


def _has(model: Any, variable: Any) -> bool:
    return any(variable is each for part in PARTS["train_step"] for each in variables_of(model, part))


def taken(variable: Any) -> Any:
    """Return the value that a loop has taken out of a variable; None if there is none."""
    for loop in all_loops():
        state: Mapping[str, Any] = loop.model.__dict__.get(STATE) or {}
        for name, values in state.items():
            for each, value in zip(variables_of(loop.model, name), values, strict=False):  # other variables may travel behind them
                if each is variable:
                    return value
    return None


def is_gone(value: Any) -> bool:
    """Whether a program has consumed an array."""
    return isinstance(value, jax.Array) and value.is_deleted()
