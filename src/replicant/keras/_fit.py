"""``fit``, ``evaluate``, ``predict`` and their ``_on_batch`` kin: Keras's own loops around steps that use every device.

A model made, compiled or loaded under a strategy remembers it, so the loops may be called anywhere. Its step is compiled in the
global view: XLA sees the whole batch, cuts the work along the batch axis and puts in the all-reduces. So loss, metrics, gradients
and batch statistics are those of one device by construction. A batch of b rows on n devices is cut d ways, d the largest divisor of
n that divides b, and repeated on the rest: a last batch that does not divide costs a compilation, never exactness.
"""

import dataclasses
import functools
import math
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from ..errors import ArgumentError, MixedStrategyError
from ..programs._executable import Executable, found_step
from ..replicas._context import ActiveStrategy, active_strategy, default_strategy
from ..replicas._placement import Placement, host_copy, is_local
from ..replicas._planning import Held, StepFound
from ..strategies._strategy import Strategy
from ..variables._chief import chiefs_values
from . import _batch_statistics, _eager
from ._array_batches import Several, several
from ._read import PROBLEM, read

_STRATEGY = "_replicant_strategy"

# What the state of each of Keras's step functions consists of.
_STATE_NAMES = {
    "train_function": ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables"),
    "test_function": ("trainable_variables", "non_trainable_variables", "metrics_variables"),
    "predict_function": ("trainable_variables", "non_trainable_variables"),
}


def strategy_of(model: Any) -> Strategy | None:
    """The strategy that a model was made, compiled or loaded under."""
    return model.__dict__.get(_STRATEGY)


def remember(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """A model remembers the strategy under which it is made or compiled."""
    result = original(model, *args, **kwargs)
    strategy = active_strategy()
    if strategy is not default_strategy():
        check_only(model, strategy, "was compiled")
        if keras.distribution.distribution() is not None:
            raise MixedStrategyError(
                f"A Keras model was made under {strategy!r} while keras.distribution is active too: only one of them can place its "
                "variables and batches. Leave the keras.distribution scope, or set_distribution(None)."
            )
        model.__dict__[_STRATEGY] = strategy  # not an attribute of the layer: Keras would try to track it
    return result


def compile_model(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """As `remember`; and JAX may compile what it can."""
    if strategy_of(model) is not None or active_strategy() is not default_strategy():
        _eager.allow_compilation(model)
    return remember(original, model, *args, **kwargs)


def check_only(model: Any, strategy: ActiveStrategy, what_was_done: str) -> None:
    """One strategy per model, or several on the same devices: its state lies there."""
    own = strategy_of(model)
    if own is not None and own.placement != strategy.placement:
        raise MixedStrategyError(
            f"The model {model.name!r} belongs to {own!r} and {what_was_done} under {strategy!r}. To go on with another strategy, "
            "make the model anew in its scope: keras.models.clone_model(model) and set_weights(model.get_weights()), or save it "
            "and keras.models.load_model it there."
        )


def _own_strategy(model: Any) -> Strategy | None:
    """The strategy whose devices compute the model's steps; that of the current scope must be the same."""
    own, current = strategy_of(model), active_strategy()
    if current is default_strategy():
        return own
    if own is None:
        raise MixedStrategyError(
            f"The model {model.name!r} was made and compiled outside of {current!r} and would train on one device. Call "
            "model.compile(...) inside the scope, or leave the scope to train on one device."
        )
    check_only(model, current, "is used")
    return own


@jax.tree_util.register_pytree_node_class
class _Leaves(Sequence[Any]):
    """Arrays of a model's state that lie where its steps want them.

    Neither list nor tuple: Keras keeps the state as an attribute of the model, and looks at each item of those at every step.
    """

    __slots__ = ("_items",)

    def __init__(self, items: list[Any]):
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def tree_flatten(self) -> tuple[list[Any], None]:
        """The arrays (for JAX)."""
        return self._items, None

    @classmethod
    def tree_unflatten(cls, _: None, items: Iterable[Any]) -> "_Leaves":
        """Inverse of tree_flatten (for JAX)."""
        return cls(list(items))


def _count_references() -> int:
    """As `_spread` and `_kept` do it: an array that is nowhere but in a batch and in the list of the batch's leaves."""

    def count(x: Any) -> int:
        return sys.getrefcount(x)

    batch = (np.zeros(1),)
    leaves, _ = jax.tree.flatten(batch)
    return next(count(x) for x in leaves)


_REFERENCES = _count_references()  # to an array that nobody holds but its batch; only such memory is not used again


class _StepFunction:
    """One of a model's step functions, compiled for the devices of a strategy: ``step(state, data) -> (outputs, state)``."""

    def __init__(self, step: Callable[..., Any], placement: Placement, state_names: Sequence[str], *, compiled: bool):
        self._step = step
        # What runs eagerly is the same on every device: JAX cannot name what XLA would choose for single operations on a cut batch.
        self._placement = dataclasses.replace(placement, factored=True, slices_slots=placement.slices_slots and compiled)
        self._state_names = state_names
        self._holds_slots = [name == "optimizer_variables" for name in state_names]
        self._agreed: set[Any] = set()  # batches for which the workers have compared their programs
        self._compiled = compiled
        self._cuts: dict[tuple[int, int], Any] = {}
        self.one = self._executable(self._traced_one)
        self._all_of_many = self._executable(functools.partial(self._traced_many, last_only=False))
        self._last_of_many = self._executable(functools.partial(self._traced_many, last_only=True))

    def _executable(self, compute: Callable[..., Any]) -> Executable:
        return Executable("fit, evaluate or predict", compute, self._placement)

    def __call__(self, state: Any, group: list[Any] | Several, *, all_outputs: bool) -> tuple[list[Any], Any]:
        """The outputs of one or several batches of equal shapes, of all or only of the last one, and the new state."""
        if isinstance(group, list):
            batches, stacked = group, None
        elif self._compiled and self._placement.planning is None:
            batches, stacked = [], group.stacked
        else:
            batches, stacked = group.apart(), None
        if self._placement.planning is not None and any(self._holds_slots):
            raise self._found(state, batches[0])
        if self._placement.world is not None:
            state = self._adopted(state)
        if not self._compiled:
            return self._eagerly(state, batches)
        state = tuple(
            part if type(part) is _Leaves else _Leaves([self._home(x, slots) for x in part])
            for part, slots in zip(state, self._holds_slots, strict=True)
        )
        if len(batches) == 1:
            data = self._spread(batches[0], axis=0)
            self._check_workers(self.one, state, data, batches[0])
            outputs, state = self.one.start(state, data)
            return [outputs], state
        stacked = self._stacked(batches) if stacked is None else stacked
        data = self._spread(stacked, axis=1)
        program = self._all_of_many if all_outputs else self._last_of_many
        self._check_workers(program, state, data, stacked)
        outputs, state = program.start(state, data)
        return [jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), outputs) if all_outputs else outputs], state

    def _eagerly(self, state: Any, batches: list[Any]) -> tuple[list[Any], Any]:
        outputs = []
        for batch in batches:
            # Over and over, because operations on what Python made in a step leave it on one device.
            state = tuple([self._home(x, slots) for x in part] for part, slots in zip(state, self._holds_slots, strict=True))
            data = self._spread(batch, axis=0)
            if self._placement.deadlocks:  # what was spread over the devices is collected: that must not wait for what comes later
                jax.block_until_ready((state, data))
            self._check_workers(None, state, data, batch)
            output, state = self._step(state, data)
            outputs.append(output)
        return outputs, state

    def _stacked(self, batches: list[Any]) -> Any:
        known = np.asarray if self._placement.world is None else host_copy
        return jax.tree.map(lambda *leaves: np.stack([known(x) for x in leaves]), *batches)

    def _adopted(self, state: Any) -> Any:
        """The state, with the chief's values where this process alone has them."""
        at = [(p, i) for p, part in enumerate(state) if type(part) is not _Leaves for i, x in enumerate(part) if is_local(x)]
        if not at:
            return state
        named = [(f"{self._state_names[p]} {i}", np.asarray(state[p][i])) for p, i in at]
        parts: list[Any] = [part if type(part) is _Leaves else list(part) for part in state]
        for (p, i), value in zip(at, chiefs_values(named, self._placement), strict=True):
            parts[p][i] = value
        return tuple(parts)

    def _check_workers(self, program: Executable | None, state: Any, data: Any, batch: Any) -> None:
        """Before a program is first used: all workers have the same one (None: it runs eagerly), and begin with the same batch."""
        world = self._placement.world
        if world is None:
            return
        if (own := read.get()) is not None:
            own.note(batch)
        signature = (program is not self.one, str(_signature(data)))
        if signature in self._agreed:
            return
        self._agreed.add(signature)
        local: list[Any] = [np.ascontiguousarray(x) for x in jax.tree.leaves(batch) if is_local(x)]
        if program is not None:
            program.check_workers(program.trace(state, data))
        world.agree(
            "batch",
            f"shapes {[x.shape for x in local]}, checksum {functools.reduce(lambda crc, x: zlib.crc32(x, crc), local, 0):08x}",
            PROBLEM,
        )

    def _found(self, state: Any, batch: Any) -> StepFound:
        """The step, for whoever plans it."""
        kinds = {"trainable_variables": "weights", "optimizer_variables": "optimizer state"}

        def inputs(placement: Placement) -> tuple[Any, Any]:
            parts = [
                _Leaves([_held(f"{name} {i}", kinds.get(name, "other state"), x, placement, slots) for i, x in enumerate(part)])
                for name, part, slots in zip(self._state_names, state, self._holds_slots, strict=True)
            ]
            leaves, tree = jax.tree.flatten(batch)
            held = [Held(f"input {i}", "batch", np.shape(x), x.dtype, "cut") for i, x in enumerate(leaves)]
            return tuple(parts), tree.unflatten(held)

        def make(placement: Placement) -> Executable:
            return _StepFunction(self._step, placement, self._state_names, compiled=True).one

        return found_step(make, inputs, slices_slots=self._placement.slices_slots)

    def _traced_one(self, state: Any, data: Any) -> tuple[Any, Any]:
        outputs, state = self._on_lists(state, data)
        return self._settled(outputs, axis=0), self._at_home(state)

    def _on_lists(self, state: Any, data: Any) -> tuple[Any, Any]:
        outputs, state = self._step(tuple(map(list, state)), data)
        return outputs, tuple(_Leaves(list(part)) for part in state)

    def _traced_many(self, state: Any, data: Any, *, last_only: bool) -> tuple[Any, Any]:
        """Several steps in one program: a loop on the devices."""

        def body(state: Any, batch: Any) -> tuple[Any, Any]:
            outputs, state = self._on_lists(state, batch)
            return self._at_home(state), outputs

        state, outputs = jax.lax.scan(body, self._at_home(state), data)
        if last_only:
            return self._settled(jax.tree.map(lambda x: x[-1], outputs), axis=0), state
        return self._settled(outputs, axis=1), state

    def _at_home(self, state: Any) -> Any:
        """The state in a trace, made to lie as the next step wants it."""
        return tuple(
            _Leaves([self._placement.constrain(x, slice_axis=self._slice_axis(x, slots)) for x in part])
            for part, slots in zip(state, self._holds_slots, strict=True)
        )

    def _slice_axis(self, x: Any, slots: bool) -> int | None:
        return self._placement.slice_axis(x.shape) if slots else None

    def _settled(self, outputs: Any, *, axis: int) -> Any:
        """Outputs shared evenly or known to all: JAX cannot name what XLA would choose for a batch that is cut otherwise.

        Over several workers they are known to all, since each of them reads them.
        """
        num_replicas = self._placement.num_replicas
        if self._placement.on_one_device:
            return outputs

        def settle(x: Any) -> jax.Array:
            x = jnp.asarray(x)
            even = x.ndim > axis and x.shape[axis] % num_replicas == 0 and self._placement.world is None
            return jax.lax.with_sharding_constraint(x, self._cut(num_replicas if even else 1, axis))

        return jax.tree.map(settle, outputs)

    def _home_of(self, x: Any, slots: bool) -> Any:
        return self._placement.home(slice_axis=self._slice_axis(x, slots))

    def _home(self, x: Any, slots: bool) -> Any:
        home = self._home_of(x, slots)
        return x if isinstance(x, jax.Array) and x.sharding == home else self._placement.own(x, home)

    def _spread(self, batch: Any, *, axis: int) -> Any:
        """A batch on the devices, cut along `axis` as many ways as its rows allow."""
        leaves, tree = jax.tree.flatten(batch)
        batch = tree.unflatten([self._kept(x) for x in leaves])
        if self._placement.on_one_device:  # a program takes host memory to its device faster than device_put
            return jax.tree.map(lambda x: jax.device_put(x, self._placement.mirrored) if isinstance(x, jax.Array) else x, batch)
        if self._placement.world is not None:  # each worker gives its part of what all have
            put, cut = self._placement.put, self._cut
            return jax.tree.map(lambda x: put(x, cut(np.shape(x)[axis] if np.ndim(x) > axis else 1, axis)), batch)
        return jax.device_put(batch, jax.tree.map(lambda x: self._cut(x.shape[axis] if x.ndim > axis else 1, axis), batch))

    def _kept(self, x: Any) -> Any:
        """Whoever made a batch may use its memory again, and on CPU the devices would share it."""
        if isinstance(x, jax.Array) or (type(x) is np.ndarray and x.flags.owndata and sys.getrefcount(x) <= _REFERENCES):
            return x
        return np.array(x, copy=self._placement.on_cpu or None)

    def _cut(self, num_rows: int, axis: int) -> Any:
        ways = math.gcd(num_rows, self._placement.num_replicas)
        if ways == 1 or not self._compiled:
            return self._placement.mirrored
        if (ways, axis) not in self._cuts:
            self._cuts[ways, axis] = self._placement.cut(ways, axis)
        return self._cuts[ways, axis]


def _held(name: str, kind: str, x: Any, placement: Placement, slots: bool) -> Held:
    layout = "sliced" if slots and placement.slice_axis(x.shape) is not None else "mirrored"
    return Held(name, kind, x.shape, x.dtype, layout)


class _Loop:
    """A model's ``train_function`` and its siblings: ``(state, iterator) -> (outputs, state)``."""

    def __init__(self, step: _StepFunction, model: Any, name: str):
        self._step = step
        self._model = model
        self._state_names = _STATE_NAMES[name]
        self._steps = model.steps_per_execution
        self._concatenate = name == "predict_function"

    def __call__(self, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        try:
            return self._advance(state, iterator)
        except BaseException:
            self._give_back(state)
            raise

    def _give_back(self, state: Any) -> None:
        """Keras empties the variables while its loop runs, and an error in the first batch would leave them empty for good."""
        if not any(isinstance(x, jax.Array) and x.is_deleted() for x in jax.tree.leaves(state)):
            self._model._jax_state = dict(zip(self._state_names, state, strict=True))
            self._model._jax_state_synced = False
            self._model.jax_state_sync()

    def _advance(self, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        batches = [next(iterator)] if self._steps == 1 else several(iterator, self._steps)
        if not batches:
            raise StopIteration
        outputs: list[Any] = []
        for group in _groups(batches):
            parts, state = self._step(state, group, all_outputs=self._concatenate)
            outputs += parts
        if not self._concatenate:
            return outputs[-1], state
        return outputs[0] if len(outputs) == 1 else jax.tree.map(lambda *parts: np.concatenate(parts), *outputs), state


def _groups(batches: list[Any]) -> Iterator[list[Any] | Several]:
    """Runs of batches of equal structure and shapes: only those fit into one loop."""
    group: list[Any] = []
    for batch in batches:
        gathered = isinstance(batch, Several)  # by the reader, which finds the runs by itself
        if group and (gathered or _signature(batch) != _signature(group[0])):
            yield group
            group = []
        if gathered:
            yield batch
        else:
            group.append(batch)
    if group:
        yield group


def _signature(batch: Any) -> Any:
    leaves, tree = jax.tree.flatten(batch)
    return tree, [(np.shape(x), getattr(x, "dtype", type(x))) for x in leaves]


def make_train(original: Callable[..., Any], model: Any, force: bool = False) -> Any:
    """The train function of a model that belongs to a strategy uses all its devices."""
    strategy = strategy_of(model)
    if strategy is not None and strategy.gradient_dtype is not None:
        raise ArgumentError(
            f"{strategy!r} was made with gradient_dtype={str(strategy.gradient_dtype)!r}, which acts where replicas sum their "
            "gradients themselves: in optimizer.apply inside of strategy.run. In `fit` XLA sums them as part of the whole batch's "
            "computation. Leave gradient_dtype out, or train with a custom loop."
        )
    step = model.train_step if strategy is None else _batch_statistics.train_step_of(model, strategy.num_replicas_in_sync)
    return _make(original, model, "train_function", step, force)


def make_test(original: Callable[..., Any], model: Any, force: bool = False) -> Any:
    """As `make_train`."""
    return _make(original, model, "test_function", model.test_step, force)


def make_predict(original: Callable[..., Any], model: Any, force: bool = False) -> Any:
    """As `make_train`."""

    def predict_step(state: Any, data: Any) -> Any:
        outputs, non_trainable_variables = model.predict_step(state, data)
        return outputs, (state[0], non_trainable_variables)

    return _make(original, model, "predict_function", predict_step, force)


def _make(original: Callable[..., Any], model: Any, name: str, step: Callable[..., Any], force: bool) -> Any:
    strategy = _own_strategy(model)
    if strategy is None:
        return original(model, force)
    if getattr(model, name) is None or force:
        _eager.allow_compilation(model)  # here too, for a model that predicts and was never compiled
        compiled = bool(model.jit_compile) and not model.run_eagerly
        if not compiled:
            _eager.warn_if_unasked(model, strategy.placement)
        setattr(model, name, _Loop(_StepFunction(step, strategy.placement, _STATE_NAMES[name], compiled=compiled), model, name))
    return getattr(model, name)


def finalize(original: Callable[..., Any], optimizer: Any, variables: Any) -> Any:
    """Keras ends training with each moving average as the variable's value: one buffer for two, but steps donate their state."""
    result = original(optimizer, variables)
    if optimizer.use_ema:
        for variable in variables:
            variable.assign(jnp.array(variable.value, copy=True))
    return result
