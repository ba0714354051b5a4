"""The variables of a loop: found once, and then read, emptied and assigned all together.

Most variables are plain: Keras's own, with an array of their own, outside of traces. What is known to hold for all of them is asked
once, and not for each. The others are read and assigned one by one, as everywhere.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import keras
from jax.core import Tracer

from ...replicas._own_mesh import mesh_is_set
from ...variables import _recorder
from .. import _internals
from .._internals import JaxVariable
from ._loop_run import LoopRun, all_loops, current_loop
from ._loop_state import variables_of
from ._refs import MADE_UNDER

# With nnx, Keras's variables are of another class, which tells nnx of what is assigned.
_PLAIN = keras.Variable if keras.Variable.__base__ is JaxVariable else None


def found(model: Any, names: Sequence[str]) -> dict[str, list[Any]]:
    """Find the variables in parts of a model's state. The loop that the model is in knows them from now on."""
    variables = {name: list(variables_of(model, name)) for name in names}
    loop = _loop_of(model)
    if loop is not None:
        loop.variables = variables
    return variables


def values_of(variables: Sequence[Any]) -> list[Any]:
    """Return the value of each variable, as ``value`` does."""
    if not _is_quiet() or jax.process_count() > 1 or mesh_is_set():
        return [variable.value for variable in variables]
    return [variable.value if (value := variable._value) is None or not _is_plain(variable) else value for variable in variables]


def empty(variables: Sequence[Any]) -> None:
    """Take the values out of variables, so that only the loop has them."""
    for variable in variables:
        variable._value = None


def assign_state(original: Any, model: Any) -> None:
    """Give variables the values of a loop's state, as ``jax_state_sync`` does."""
    state: Mapping[str, Any] | None = getattr(model, "_jax_state", None)
    if not state or model._jax_state_synced:
        return
    loop = _loop_of(model)
    if loop is None or not loop.variables:
        original(model)
        return
    for name, values in state.items():
        if not values:
            continue
        variables: Sequence[Any] = loop.variables.get(name, ())
        if len(variables) != len(values):  # a step has made some, or others travel behind them
            variables = variables_of(model, name)
        _assign(variables, values)
    model._jax_state_synced = True


def _assign(variables: Sequence[Any], values: Sequence[Any]) -> None:
    quiet = _is_quiet()
    for variable, value in zip(variables, values, strict=False):
        if quiet and variable._value is None and _is_plain(variable) and _is_ready(variable, value):
            variable._direct_assign(value)
        else:
            variable.assign(value)


def _loop_of(model: Any) -> LoopRun | None:
    loop = current_loop()
    return loop if loop is not None and loop.model is model else None


def _is_quiet() -> bool:
    """Whether nobody hears of reads, no scope knows other values, and no other thread is in a loop."""
    here = threading.current_thread()
    return not (
        _recorder.before_use
        or _recorder.current_recorder() is not None
        or _recorder.is_heard()
        or _internals.in_stateless_scope()
        or _internals.get_autocast_scope() is not None
        or any(loop.thread is not here for loop in all_loops())
    )


def _is_plain(variable: Any) -> bool:
    """Whether a variable is one of Keras's, which no program of Replicant's own knows."""
    return type(variable) is _PLAIN and "_replicant_ref" not in variable.__dict__


def _is_ready(variable: Any, value: Any) -> bool:
    """Whether a value is an array that `assign` would store as it is, and no slices of it."""
    strategy = variable.__dict__.get(MADE_UNDER)
    return (
        isinstance(value, jax.Array)
        and not isinstance(value, Tracer)
        and value.shape == variable._shape
        and value.dtype == variable._dtype
        and (strategy is None or strategy.placement.slices_from is None)
    )
