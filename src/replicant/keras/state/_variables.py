"""Reads, makes and assigns Keras variables: through the recorder while a program is traced, and else where their values lie.

Their ``synchronization`` and ``aggregation`` apply: metrics (on_read) keep one copy per replica, and the copies are summed when
read outside ``run``.
"""

import contextvars
import math
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax.core import Tracer

from ...errors import ArgumentTypeError
from ...replicas._context import (
    active_strategy,
    entered,
    planning,
)
from ...replicas._copies import VariableAggregation
from ...replicas._own_device import on_device_of, on_own_device
from ...replicas._own_mesh import handed_over, in_a_trace
from ...replicas._planning import BIG, zeros
from ...runtime._jax_dtypes import in_jax_dtype
from ...runtime._own_memory import own
from ...runtime._usable_arrays import usable
from ...tracing.jaxprs._fingerprint import fingerprint
from ...variables import _recorder
from ...variables._known import register_variable_type
from ...variables._recorder import ReplicaRecorder, current_recorder
from ...variables._slices import LARGE, in_pieces, note_cut
from .. import _internals
from .._internals import KerasVariable
from . import _running_loops
from ._recording_scope import RecordingScope
from ._refs import MADE_UNDER, known_ref, ref_of_keras

# Whether variables in slices on several workers are read as they lie, each worker its own slices, which needs no other worker.
takes_slices: contextvars.ContextVar[bool] = contextvars.ContextVar("replicant_takes_slices", default=False)


class _Applying(threading.local):
    depth = 0


applying = _Applying()  # how many optimizers are being applied by this thread, one inside the other


@contextmanager
def as_they_lie() -> Iterator[None]:
    """Read variables in slices as they lie in the ``with`` block."""
    token = takes_slices.set(True)
    try:
        yield
    finally:
        takes_slices.reset(token)


def value(original: Any, variable: Any) -> Any:
    """Return the value of a Keras variable: the one that the current recorder knows, or the stored one."""
    if _recorder.before_use:
        _recorder.settle()
    recorder = current_recorder()
    if recorder is not None and _internals.in_stateless_scope():
        scope = _internals.get_stateless_scope()
        known = scope.get_current_value(variable) if scope is not None else None
        if known is None and not isinstance(scope, RecordingScope):  # a scope of Keras inside ours knows only some variables
            known = _recorder.read(ref_of_keras(variable))
        if known is not None:
            return variable._maybe_autocast(known)
    if recorder is not None or _scope_knows(variable):
        return original(variable)
    if _recorder.is_heard() and variable._value is not None and not _internals.in_stateless_scope():
        return variable._maybe_autocast(_recorder.read(ref_of_keras(variable)))  # a tape outside of traces hears of it
    ref = known_ref(variable)
    if ref is None and (in_pieces(variable._value) or _running_loops.in_another_thread(variable)):
        # Pieces are a slot that `fit` left so.
        ref = ref_of_keras(variable)
    if ref is None or (variable._value is None and _running_loops.taken(variable) is None):
        return handed_over(original(variable)) if MADE_UNDER in variable.__dict__ else original(variable)
    if variable._value is not None and variable._value is ref._copies:
        return variable._maybe_autocast(ref.read_eagerly())
    raw, _ = ref.held()
    if in_pieces(raw) and not takes_slices.get():
        if _internals.in_symbolic_scope() and in_a_trace():  # Keras asks for shapes only, and one worker may ask alone
            return variable._maybe_autocast(jnp.zeros(variable.shape, variable._dtype))
        return variable._maybe_autocast(_recorder.read(ref))
    return handed_over(variable._maybe_autocast(raw))


def _scope_knows(variable: Any) -> bool:
    """Whether a scope of Keras has a value for a variable, as in the steps of ``fit``. What is stored is older then."""
    scope = _internals.get_stateless_scope() if _internals.in_stateless_scope() else None
    return scope is not None and scope.get_current_value(variable) is not None


def make_variable(original: Any, variable: Any, *args: Any, **kwargs: Any) -> None:
    """Make a variable with memory of its own, and let it remember the current strategy."""
    strategy = active_strategy()
    _recorder.note_made()
    with on_own_device(strategy.placement):
        original(variable, *map(_initial, args), **{name: _initial(value) for name, value in kwargs.items()})
    if strategy.placement.devices:
        variable.__dict__[MADE_UNDER] = strategy
        strategy.placement.note_variable(variable.path)
        if _is_cut(variable):
            ref_of_keras(variable).keep_slices()


def _home_of_slices(variable: Any, dtype: Any) -> Any:
    """Return the sharding of a large variable that is made in slices, each on its device; None for other variables."""
    placement, shape = active_strategy().placement, tuple(variable.shape)
    if placement.slices_from is None or math.prod(shape) * dtype.itemsize < LARGE or variable.synchronization == "on_read":
        return None
    axis = placement.slice_axis(shape, dtype, slot=False)
    return None if axis is None else placement.sliced(axis, shape)


def initialize(original: Any, variable: Any, initializer: Any) -> Any:
    """Initialize a variable. In a plan, large variables become zeros, since only their shapes count."""
    dtype, plan = jnp.dtype(variable._dtype), planning()
    if plan is None:
        home = _home_of_slices(variable, dtype)
        if home is None or not isinstance(initializer, keras.initializers.Initializer):
            with on_own_device(active_strategy().placement):
                return original(variable, initializer)
        made = jax.jit(lambda: jnp.asarray(initializer(variable.shape, dtype=variable._dtype)), out_shardings=home)
        if active_strategy().placement.world is None:
            return variable._initialize(made())
        if _exchanges(made.lower().compile().as_text() or ""):  # another worker might not make this variable
            return original(variable, initializer)
        note_cut(variable.path, fingerprint(made.trace().jaxpr).digest)
        return variable._initialize(made())
    if math.prod(variable.shape) * dtype.itemsize < BIG:
        return original(variable, initializer)
    plan.uninitialized.append(_later(original, weakref.ref(variable), initializer, active_strategy()))
    return variable._initialize(jax.device_put(zeros(variable.shape, dtype)))


def _exchanges(program: str) -> bool:
    """Whether the devices of a compiled program exchange anything."""
    return any(name in program for name in ("all-gather", "all-reduce", "all-to-all", "collective-", "reduce-scatter"))


def _later(original: Any, known: Any, initializer: Any, strategy: Any) -> Callable[[], None]:
    """Return a function that gives a variable its initial value after a plan, if the variable is still there."""

    def initialize_now() -> None:
        variable = known()
        if variable is not None:
            with entered(strategy, None):
                initialize(original, variable, initializer)
                if _is_cut(variable):
                    ref_of_keras(variable).keep_slices()

    return initialize_now


def _initial(value: Any) -> Any:
    return own(usable(value, lambda why: ArgumentTypeError(f"The initial value of a variable {why}")))


def assign_change(original: Any, variable: Any, change: Any, *, sign: int) -> Any:
    """Do assign_add or assign_sub. They combine the change and not the new value, which matters with SUM."""
    recorder = current_recorder()
    change = own(_in_jax_dtype(variable, change))
    several = isinstance(recorder, ReplicaRecorder) and recorder.num_replicas > 1
    ref = ref_of_keras(variable) if several and not applying.depth else None
    if ref is None or ref.on_read or ref.aggregation is not VariableAggregation.SUM or recorder is None:
        with _on_its_device(variable):
            return original(variable, change)
    total = recorder.combine(ref, jnp.broadcast_to(jnp.asarray(change, ref.dtype), ref.shape))
    new = recorder.read(ref) + sign * total
    recorder.write_combined(ref, new)
    return new


def assign(original: Any, variable: Any, value: Any) -> Any:
    """Assign a value to a variable, or to its slice while an optimizer works on slices.

    What an optimizer assigns is made of summed gradients, so a variable with aggregation SUM must not sum it again.
    """
    if _recorder.before_use:
        _recorder.settle()
    value, recorder = own(_in_jax_dtype(variable, value)), current_recorder()
    if isinstance(recorder, ReplicaRecorder):
        ref = ref_of_keras(variable)
        sums = ref.aggregation is VariableAggregation.SUM and not ref.on_read
        applies = applying.depth and isinstance(_internals.get_stateless_scope(), RecordingScope)
        if recorder.writes_slice(ref) or (applies and sums):
            value = jnp.asarray(value, ref.dtype)
            recorder.write_combined(ref, value)
            return value
    with _on_its_device(variable):
        result = original(variable, value)
    if recorder is None and _is_cut(variable):
        ref_of_keras(variable).keep_slices()
    return result


def _in_jax_dtype(variable: Any, value: Any) -> Any:
    return in_jax_dtype(value, lambda: f"The value for variable {variable.path!r}", to=variable.dtype)


def _on_its_device(variable: Any) -> AbstractContextManager[Any]:
    """Let JAX make the new value of a variable on its device, outside of traces."""
    if current_recorder() is not None or _internals.in_stateless_scope():
        return nullcontext()
    return on_device_of(variable.__dict__.get(MADE_UNDER), variable._value)


def _is_cut(variable: Any) -> bool:
    """Whether a variable with a value of its own was made under a strategy that cuts variables into slices."""
    strategy = variable.__dict__.get(MADE_UNDER)
    if strategy is None or strategy.placement.slices_from is None or _internals.in_stateless_scope():
        return False
    if variable._value is None or isinstance(variable._value, Tracer) or variable.synchronization == "on_read":
        return False
    return strategy.placement.slice_axis(tuple(variable.shape), jnp.dtype(variable._dtype), slot=False) is not None


register_variable_type(KerasVariable, ref_of_keras)
