"""Connects Keras to the replicas: its variables to the traces, its optimizers to the all-reduce, its losses to the rules.

* While a program is traced, Keras variables are read and written through the current recorder. Their ``synchronization`` and
  ``aggregation`` apply: metrics (on_read) keep one copy per replica, and the copies are summed when read outside ``run``.
* In a replica, ``optimizer.apply`` first sums the gradients over the replicas, once. So clipping, accumulation, loss scaling and
  moving averages act on the gradient of the global batch.
* Random layers draw different numbers on each replica. Replica 0 draws those of one device.
* Batch statistics are averaged over the replicas that have rows.
* A loss with a mean-type reduction raises inside ``run``, as the tf.distribute guide prescribes.
"""

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

from .._remat import remat
from ..errors import ArgumentError, ArgumentTypeError, LossReductionError
from ..reductions._search import GRADIENTS
from ..replicas._collectives import ReduceOp
from ..replicas._context import (
    ReplicaContext,
    active_replica_context,
    active_strategy,
    default_strategy,
    entered,
    has_strategy,
    planning,
)
from ..replicas._copies import VariableAggregation
from ..replicas._micro import active_micro_batch
from ..replicas._own_device import on_device_of, on_own_device
from ..replicas._own_mesh import handed_over, in_a_trace
from ..replicas._planning import BIG, zeros
from ..runtime._jax_dtypes import in_jax_dtype
from ..runtime._own_memory import own
from ..runtime._usable_arrays import usable
from ..tracing._fingerprint import fingerprint
from ..variables import _recorder
from ..variables._known import register_variable_type
from ..variables._recorder import ReplicaRecorder, current_recorder
from ..variables._slices import LARGE, in_pieces, note_cut
from . import _fit, _internals, _labels, _loops, _sliced_optimizer
from ._aside import Aside
from ._global_generator import following
from ._internals import KerasVariable
from ._reached import reached, settings
from ._recording_scope import RecordingScope
from ._refs import MADE_UNDER, known_ref, ref_of_keras
from ._tracked import for_optimizer

__all__ = ["Aside", "following", "reached", "settings", "tracing"]  # the functions that every provider has


@contextmanager
def tracing() -> Iterator[None]:
    """Enter this around every trace. At the end of the outermost one, Keras fills in the variables that were made in it."""
    if isinstance(_internals.get_stateless_scope(), RecordingScope):
        yield
        return
    with RecordingScope():
        yield


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
    if ref is None and (in_pieces(variable._value) or _loops.in_another_thread(variable)):  # pieces are a slot that `fit` left so
        ref = ref_of_keras(variable)
    if ref is None or (variable._value is None and _loops.taken(variable) is None):
        return handed_over(original(variable)) if MADE_UNDER in variable.__dict__ else original(variable)
    if variable._value is not None and variable._value is ref._copies:
        return variable._maybe_autocast(ref.read_eagerly())
    raw, _ = ref.held()
    if in_pieces(raw) and not _fit.takes_slices.get():
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


def call_layer(original: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a layer. Raise if it is a model of another strategy, even if it has no variables yet."""
    if _fit.strategy_of(layer) is not None and active_replica_context() is not None:
        strategy = active_strategy()
        if strategy.placement.devices and strategy.placement.planning is None:
            _fit.check_only(layer, strategy, "is called in `run`")
    return original(layer, *args, **kwargs)


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
    ref = ref_of_keras(variable) if several and not _applying.depth else None
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
        applies = _applying.depth and isinstance(_internals.get_stateless_scope(), RecordingScope)
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


class _Applying(threading.local):
    depth = 0


_applying = _Applying()


def apply(original: Any, optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
    """Apply an optimizer. In a replica, sum the gradients over all replicas first."""
    context = active_replica_context()
    if context is None or current_recorder() is None:
        return _apply_here(original, optimizer, grads, trainable_variables)
    grads = list(grads)
    outermost, cut_already = _applying.depth == 0, False
    if outermost:
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            _build_now(optimizer, trainable_variables)
        for slot in optimizer.variables:
            ref_of_keras(slot).slot = True
        if context.num_replicas_in_sync > 1:
            axes = _sliced_optimizer.axes_of(optimizer, trainable_variables, context.strategy.placement)
            cut_already = axes is not None
            grads = _summed(context, grads) if axes is None else _summed_in_slices(context, grads, axes)
    _applying.depth += 1
    try:
        if not outermost:
            return _update(original, optimizer, grads, trainable_variables)

        def update(parts: list[Any], variables: Any) -> Any:
            return _update(original, optimizer, parts, variables)

        placement = context.strategy.placement
        if not placement.slices_state:
            return update(grads, trainable_variables)
        return _sliced_optimizer.apply(update, optimizer, grads, trainable_variables, placement, cut_already=cut_already)
    finally:
        _applying.depth -= 1


def _update(original: Any, optimizer: Any, grads: list[Any], variables: Any) -> Any:
    """Update the variables inside a replica, given the gradients of the global batch or slices of them."""
    if not isinstance(optimizer, _internals.LossScaleOptimizer):
        return original(optimizer, grads, variables)
    if _sliced_optimizer.is_working():
        return _sliced_optimizer.scaled(optimizer, grads, variables)
    return _apply_functionally(optimizer, grads, variables)


def _apply_here(original: Any, optimizer: Any, grads: Any, trainable_variables: Any) -> Any:
    """Apply an optimizer outside of `run`: in a compiled function, eagerly, or in functional code of Keras."""
    scope = _internals.get_stateless_scope() if _internals.in_stateless_scope() else None
    functional = scope is not None and not isinstance(scope, RecordingScope)
    if not isinstance(optimizer, _internals.LossScaleOptimizer) or functional:
        return original(optimizer, grads, trainable_variables)
    if trainable_variables is not None:
        trainable_variables = list(trainable_variables)
        _build_now(optimizer, trainable_variables)
    return _apply_functionally(optimizer, list(grads), trainable_variables)


def _summed(context: ReplicaContext, grads: list[Any]) -> list[Any]:
    """Sum the gradients over all replicas. They travel in the strategy's `gradient_dtype` if it has one."""
    present = [i for i, g in enumerate(grads) if g is not None]
    sent = [jnp.asarray(grads[i]) for i in present]
    narrow = context.strategy.gradient_dtype
    if narrow is not None:
        sent = [g.astype(narrow) if jnp.issubdtype(g.dtype, jnp.floating) else g for g in sent]
    result = list(grads)
    with jax.named_scope(GRADIENTS):
        totals = context.all_reduce(ReduceOp.SUM, sent)
    for i, total in zip(present, totals, strict=True):
        result[i] = total.astype(grads[i].dtype)
    return result


def _summed_in_slices(context: ReplicaContext, grads: list[Any], axes: list[int | None]) -> list[Any]:
    """Sum the gradients over all replicas, and keep this replica's slices of those that have an axis to cut along."""
    recorder = current_recorder()
    assert isinstance(recorder, ReplicaRecorder)
    cut = {i: axis for i, (g, axis) in enumerate(zip(grads, axes, strict=True)) if g is not None and axis is not None}
    result = _summed(context, [None if i in cut else g for i, g in enumerate(grads)])
    with jax.named_scope(GRADIENTS):
        parts = recorder.sums_of_slices([jnp.asarray(grads[i]) for i in cut], list(cut.values()))
    for i, part in zip(cut, parts, strict=True):
        result[i] = part
    return result


def _apply_functionally(optimizer: Any, grads: list[Any], variables: list[Any] | None) -> None:
    """Pass the optimizer's state in and out: loss scaling branches on the gradients, and a traced branch must not assign."""
    known = optimizer._trainable_variables
    by_id = dict(zip(map(id, known if variables is None else variables), grads, strict=True))
    new_values, new_slots = optimizer.stateless_apply(
        [v.value for v in optimizer.variables], [by_id.get(id(v)) for v in known], [v.value for v in known]
    )
    for variable, value in zip([*known, *optimizer.variables], [*new_values, *new_slots], strict=True):
        variable.assign(value)


def _build_now(optimizer: Any, variables: list[Any]) -> None:
    """Make the optimizer's variables outside the trace: some have computed initial values."""
    if optimizer.built:
        return
    variables = for_optimizer(variables)  # before the name scope, which is no part of their names
    with _internals.outside_stateless_scope(), jax.ensure_compile_time_eval(), keras.name_scope(optimizer.name, caller=optimizer):
        optimizer.build(variables)
        optimizer.built = True


def rematerialized(original: Any, f: Any) -> Any:
    """Make a function whose inner values are computed again for the backward pass, with all that `replicant.remat` can."""
    del original
    return remat(f)


def draw_seed(original: Any, generator: Any, *args: Any, **kwargs: Any) -> Any:
    """Draw a seed that differs by replica. Replica 0 draws the seed of one device."""
    seed = original(generator, *args, **kwargs)
    context, micro_batch = active_replica_context(), active_micro_batch()
    if micro_batch is not None and micro_batch.replica is not None:
        replica = micro_batch.replica
    elif context is None or current_recorder() is None or context.num_replicas_in_sync == 1:
        return seed
    else:
        replica = context.replica_id_in_sync_group
    # The generator's state stays the same on all replicas, but what they draw depends on the replica. An odd multiplier
    # (2**32 / golden ratio) spreads the replica ids over all seeds and leaves replica 0 with the seed of one device.
    shift = replica.astype(seed.dtype) * jnp.asarray(0x9E3779B1, seed.dtype)
    return seed + jnp.stack([shift, jnp.zeros_like(shift)])


def global_generator(original: Any) -> Any:
    """Return the generator of random functions without a seed. Keras gives none in a trace, but our programs have its state."""
    if current_recorder() is not None and not isinstance(_internals.get_stateless_scope(), RecordingScope):
        raise ArgumentError(
            "A function of keras.random was called without a seed in functional code of Keras, such as `stateless_call`, where it "
            "would draw the same numbers at every step. Create a generator once, seed = keras.random.SeedGenerator(), make it an "
            "attribute of the model, and pass it: keras.random.normal(shape, seed=seed)."
        )
    if current_recorder() is None:
        generator = original()
    else:
        with _internals.outside_stateless_scope(), jax.ensure_compile_time_eval():
            generator = original()
    generator.state.__dict__.pop(MADE_UNDER, None)  # it serves all strategies, whoever draws first
    return generator


_MEAN_TYPES = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


def call_loss(original: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a loss. Raise if it would divide by the number of rows of one replica."""
    if loss.reduction in _MEAN_TYPES and active_replica_context() is not None and active_strategy() is not default_strategy():
        raise LossReductionError(
            f"The loss {loss.name!r} has reduction={loss.reduction!r}, which divides by the number of rows of one replica. Summed "
            "over the replicas, that is not the mean over the global batch. Create it with reduction='none' (or 'sum') and "
            "use replicant.compute_average_loss(per_example_loss, global_batch_size=...)."
        )
    result = original(loss, *args, **kwargs)
    return _labels.marked(loss, result, *args, **kwargs) if has_strategy() or _labels.in_step_of_strategy() else result


register_variable_type(KerasVariable, ref_of_keras)
