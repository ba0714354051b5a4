"""The loops that compute on models now (``fit``, ``evaluate``, ``predict``), and the values that they have taken from variables.

Keras's loops empty the variables and pass their values from step to step. Another thread that reads a variable meanwhile gets a
copy of what the last step has left.
"""

import dataclasses
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from ...errors import ContextError

STATE = "_jax_state"  # where Keras keeps a loop's state
_PATIENCE = 600.0  # seconds


@dataclasses.dataclass(frozen=True)
class _Loop:
    model: Any
    name: str
    thread: threading.Thread


_loops: dict[int, _Loop] = {}  # the outermost loop of each model that has one, by the model's id
_changed = threading.Condition()


@contextmanager
def running(model: Any, name: str) -> Iterator[None]:
    """Let only this thread run loops of a model in the block: Keras keeps the state of one loop at a time."""
    with _changed:
        is_outermost = id(model) not in _loops or _loops[id(model)].thread is not threading.current_thread()
        if is_outermost:
            _wait(model, name)
            _loops[id(model)] = _Loop(model, name, threading.current_thread())
    try:
        yield
    finally:
        if is_outermost:
            with _changed:
                del _loops[id(model)]
                _changed.notify_all()


def _wait(model: Any, name: str) -> None:
    """Wait until no other thread runs a loop of the model. Raise if it is `fit`, which may take as long as it likes."""
    deadline = time.monotonic() + _PATIENCE
    while (other := _loops.get(id(model))) is not None:
        if other.name == "fit" or not _changed.wait(deadline - time.monotonic()):
            too_long = "" if other.name == "fit" else f", and has not ended in {_PATIENCE:g} seconds"
            raise ContextError(
                f"{name} of the model {model.name!r} was called in the thread {threading.current_thread().name!r} while its "
                f"{other.name} runs in the thread {other.thread.name!r}{too_long}. Keras keeps the state of one loop of a model at "
                f"a time. Call {name} in a callback of that loop, or on a model of this thread: copy = "
                "keras.models.clone_model(model) once, and copy.set_weights(model.get_weights()) before each call."
            )


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
    return any(loop.thread is not here and _has(loop.model, variable) for loop in list(_loops.values()))


def _has(model: Any, variable: Any) -> bool:
    return any(variable is each for part in _PARTS.values() for each in part(model))


def taken(variable: Any) -> Any:
    """Return the value that a loop has taken out of a variable; None if there is none."""
    for loop in list(_loops.values()):
        state: Mapping[str, Any] = loop.model.__dict__.get(STATE) or {}
        for name, values in state.items():
            for each, value in zip(_PARTS[name](loop.model), values, strict=False):  # other variables may travel behind them
                if each is variable:
                    return value
    return None


def is_gone(value: Any) -> bool:
    """Whether a program has consumed an array."""
    return isinstance(value, jax.Array) and value.is_deleted()


_PARTS = {
    "trainable_variables": lambda model: model.trainable_variables,
    "non_trainable_variables": lambda model: model.non_trainable_variables,
    "optimizer_variables": lambda model: [] if getattr(model, "optimizer", None) is None else model.optimizer.variables,
    "metrics_variables": lambda model: model.metrics_variables,
}
