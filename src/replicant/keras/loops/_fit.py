"""``fit``, ``evaluate``, ``predict`` and their ``_on_batch`` variants: Keras's own loops around steps that use every device.

A model that is made, compiled or loaded under a strategy remembers it, so you may call the loops anywhere.
`steps/_step_function.py` compiles its steps for the devices of the strategy.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from ...errors import ArgumentError, ContextError, MixedStrategyError
from ...programs.validity._traced_values import naming_the_line
from ...replicas._context import active_replica_context, active_strategy, default_strategy
from ...replicas._own_device import on_own_device
from ...replicas._own_mesh import without_mesh
from ...replicas._placement import Placement
from ...runtime import _steps
from ...strategies._strategy import Strategy
from ...variables._recorder import NotTraceable, current_recorder
from ...variables._slices import in_pieces
from .. import _batch_statistics
from .._internals import Functional
from ..data import _host_inputs
from ..data._array_batches import Several, several
from ..data._check_batches import reading_for
from ..micro_batches import _step
from ..micro_batches._step import computes_parts
from ..state import _gathered_weights, _running_loops
from ..state._owner import STRATEGY, check_only, strategy_of
from ..state._refs import MADE_UNDER
from ..state._variables import as_they_lie
from ..steps import _eager, _stateful_step
from ..steps._stateful_step import PARTS, StatefulStep
from ..steps._step_function import StepFunction, signature
from ._recorded_steps import record

# The parts of the state of each of Keras's step functions.
_STATE_NAMES = {
    "train_function": PARTS["train_step"],
    "test_function": PARTS["test_step"],
    "predict_function": PARTS["predict_step"],
}


def remember(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Make or compile a model, and let it remember the current strategy."""
    result = original(model, *args, **kwargs)
    strategy = active_strategy()
    if strategy is not default_strategy():
        check_only(model, strategy, "was compiled")
        if keras.distribution.distribution() is not None:
            raise MixedStrategyError(
                f"A Keras model was made under {strategy!r} while keras.distribution is active too, but only one of them can place "
                "its variables and batches. Leave the keras.distribution scope, or call set_distribution(None)."
            )
        model.__dict__[STRATEGY] = strategy  # not an attribute of the layer: Keras would try to track it
    return result


def compile_model(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Do what `remember` does, and let JAX compile all layers that it can."""
    if strategy_of(model) is not None or active_strategy() is not default_strategy():
        _eager.allow_compilation(model)
    _stateful_step.forget(model)
    return remember(original, model, *args, **kwargs)


def _own_strategy(model: Any) -> Strategy | None:
    """Return the strategy whose devices compute the model's steps. The strategy of the current scope must be the same."""
    own, current = strategy_of(model), active_strategy()
    if current is default_strategy():
        return own
    if own is None:
        raise MixedStrategyError(
            f"The model {model.name!r} was made and compiled outside {current!r} and would train on one device. Call "
            "model.compile(...) inside the scope, or leave the scope to train on one device."
        )
    check_only(model, current, "is used")
    return own


def on_own_mesh(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a loop, or what it does with one batch, on a strategy's devices, and without a mesh that the user has set.

    So what Keras makes meanwhile, as the slots of an optimizer, lies on one of them, too.
    """
    _check_outside(model, original.__name__)
    if strategy_of(model) is None:
        _adopt(model)
    name = original.__name__
    with (
        _running_loops.running(model, name),
        naming_the_line(f"{name} of the model {model.name!r}"),
        reading_for(_inputs_of(model)),
    ):
        _sync(model)
        try:
            strategy = strategy_of(model)
            if strategy is None:
                return original(model, *args, **kwargs)
            with without_mesh(), on_own_device(strategy.placement):
                return original(model, *args, **kwargs)
        except BaseException:
            _sync(model)
            raise


def _adopt(model: Any) -> None:
    """Let a model belong to the strategy of its variables if these lie in slices on several workers, who compute it together."""
    owners = (v.__dict__.get(MADE_UNDER) for v in model.variables if in_pieces(v._value))
    if owner := next(filter(None, owners), None):
        model.__dict__[STRATEGY] = owner


def _sync(model: Any) -> None:
    """Give the variables what a step has returned, if Ctrl-C came in the last loop before Keras has done so."""
    state = model.__dict__.get(_running_loops.STATE) or {}
    if not any(_running_loops.is_gone(x) for part in state.values() for x in part):
        model.jax_state_sync()


def _inputs_of(model: Any) -> Sequence[Any]:
    """Return the inputs of a model if Keras compares batches with them; nothing for other models."""
    graph = getattr(model, "_functional", None) if isinstance(model, keras.Sequential) else model
    return graph.inputs if isinstance(graph, Functional) and _host_inputs.cut_of(model) is None else ()


def _check_outside(model: Any, loop: str) -> None:
    """Raise if a loop is called in a trace: it reads data and calls compiled steps of its own."""
    if current_recorder() is None:
        return
    text = (
        f"{loop} of the model {model.name!r} was called inside `strategy.run` or a compiled function, but it is a loop of its own, "
        f"which compiles its steps and uses all devices. Call model.{loop}(...) outside. Inside, call the model on a batch, "
        "model(x, training=...), and to train, use a GradientTape and optimizer.apply_gradients(...)."
    )
    raise (NotTraceable if active_replica_context() is None else ContextError)(text)


def get_state(original: Callable[..., Any], model: Any, *, purge_model_variables: bool = False, **parts: bool) -> Any:
    """Return the state of a loop, for which the variables may give up their values. Ctrl-C must not lose them."""
    with as_they_lie():
        if not purge_model_variables:
            return original(model, **parts)
        return _purged(original, model, parts)


def _purged(original: Callable[..., Any], model: Any, parts: dict[str, bool]) -> Any:
    names = [name for name in _STATE_NAMES["train_function"] if parts.get(name)]
    before = model.__dict__.get(_running_loops.STATE) or {}
    _running_loops.note(model, names, original(model, **parts))
    model._jax_state_synced = False
    return _running_loops.unshared(original(model, **parts, purge_model_variables=True), [before.get(name, ()) for name in names])


class _Newest:
    """The newest state in a call of a step, which must not be lost: a program has consumed the one before.

    Attributes:
        found: The state, and whether it has the values of a stateful step's other variables, too. One object, because Ctrl-C may
            come between two assignments.
    """

    def __init__(self, model: Any, names: Sequence[str], state: Any):
        self._model, self._names = model, names
        self.found: tuple[Any, bool] = state, False

    def store(self, values: Any) -> None:
        """Note the new state of a program, as a `State` of programs in flight, where other threads find it."""
        self.found = values, self.found[1]
        _running_loops.note(self._model, self._names, values)

    def put_back(self, before: Any, _: Any) -> None:
        """Note the state from before a program that has failed."""
        self.store(before)

    def take_back(self) -> None:
        """Do nothing: `store` is a single assignment."""


class _Loop:
    """A model's ``train_function``, ``test_function`` or ``predict_function``: ``(state, iterator) -> (outputs, state)``."""

    def __init__(
        self, make_step: Callable[[], StepFunction], stateful: StatefulStep | None, model: Any, name: str, *, is_bare: bool
    ):
        self._make_step = make_step
        self._is_bare = is_bare  # whether nothing, such as micro-batches, is around the step: then its first trace is kept
        self._step = make_step()
        self._stateful = stateful
        self._version = 0 if stateful is None else stateful.version()
        self._model = model
        self._state_names = _STATE_NAMES[name]
        self._steps = model.steps_per_execution
        self._concatenate = name == "predict_function"

    def __call__(self, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        newest = _Newest(self._model, self._state_names, state)
        try:
            outputs, state = self._advance(newest, iterator)
            _running_loops.note(self._model, self._state_names, state)  # so that Ctrl-C loses nothing before Keras does the same
        except BaseException:
            self._give_back(newest)
            raise
        return outputs, state

    def _give_back(self, newest: "_Newest") -> None:
        """Give the variables their values back: Keras empties them during its loop, and an error would leave them empty."""
        state, has_others = newest.found
        if any(map(_running_loops.is_gone, jax.tree.leaves(state))):
            return
        if has_others and self._stateful is not None:
            state = self._stateful.keras_part(state)
        _running_loops.note(self._model, self._state_names, state)
        self._model._jax_state_synced = False
        self._model.jax_state_sync()

    def _advance(self, newest: "_Newest", iterator: Iterator[Any]) -> tuple[Any, Any]:
        batches = [next(iterator)] if self._steps == 1 else several(iterator, self._steps)
        if not batches:
            raise StopIteration
        if self._stateful is not None:
            batches = [_stateful_step.without_none(batch) for batch in batches]
        outputs, (state, _) = list[Any](), newest.found
        for group in _groups(batches):
            traced = None if self._model.run_eagerly else self._stateful
            if traced is not None:
                if traced.version() != self._version:
                    self._step, self._version = self._make_step(), traced.version()
                traced.trace(_first_of(group), self._step.around if self._is_bare else None)
                state = traced.complete(state)
                newest.found = state, True
            parts, state = self._step(state, group, all_outputs=self._concatenate, keeper=newest)
            if traced is not None:
                state = traced.keras_part(state)
            newest.found = state, False
            outputs += parts
        if not self._concatenate:
            return outputs[-1], state
        return outputs[0] if len(outputs) == 1 else jax.tree.map(lambda *parts: np.concatenate(parts), *outputs), state


def _groups(batches: list[Any]) -> Iterator[list[Any] | Several]:
    """Group consecutive batches of equal structure and shapes: only such batches fit into one loop."""
    group: list[Any] = []
    for batch in batches:
        gathered = isinstance(batch, Several)  # grouped by the reader already
        if group and (gathered or signature(batch) != signature(group[0])):
            yield group
            group = []
        if gathered:
            yield batch
        else:
            group.append(batch)
    if group:
        yield group


def _first_of(group: list[Any] | Several) -> Any:
    return group[0] if isinstance(group, list) else jax.tree.map(lambda x: x[0], group.stacked)


def make_train(original: Callable[..., Any], model: Any, force: bool = False) -> Any:
    """Make the train function of a model. If the model belongs to a strategy, it uses all its devices."""
    strategy = strategy_of(model)
    if strategy is not None and strategy.gradient_dtype is not None:
        raise ArgumentError(
            f"{strategy!r} was made with gradient_dtype={str(strategy.gradient_dtype)!r}, which only applies where the replicas "
            "sum their gradients: in optimizer.apply inside strategy.run. In `fit`, XLA sums them as part of the computation of "
            "the global batch. Leave gradient_dtype out, or train with a custom loop."
        )
    step = _stateful_step.step_of(model, "train_step")
    step = _step.in_parts(model, step)
    if strategy is not None:
        step = _batch_statistics.with_asked(model, step, strategy.num_replicas_in_sync)
    function = _make(original, model, "train_function", step, force)
    return record(model) if _steps.recorder is not None else function


def make_test(original: Callable[..., Any], model: Any, force: bool = False) -> Any:
    """Make the test function, as `make_train` does."""
    return _make(original, model, "test_function", _stateful_step.step_of(model, "test_step"), force)


def make_predict(original: Callable[..., Any], model: Any, force: bool = False) -> Any:
    """Make the predict function, as `make_train` does."""
    step = _stateful_step.step_of(model, "predict_step")
    if isinstance(step, StatefulStep):
        return _make(original, model, "predict_function", step, force)

    def predict_step(state: Any, data: Any) -> Any:
        outputs, non_trainable_variables = step(state, data)
        return outputs, (state[0], non_trainable_variables)

    return _make(original, model, "predict_function", predict_step, force)


def _make(original: Callable[..., Any], model: Any, name: str, step: Callable[..., Any], force: bool) -> Any:
    strategy, stateful = _own_strategy(model), _stateful_step.inside(step)
    if strategy is None and stateful is None and not computes_parts(step):
        return original(model, force)
    if getattr(model, name) is None or force:
        placement = _one_device(model, step) if strategy is None else strategy.placement
        _eager.allow_compilation(model)  # again, for a model that predicts and was never compiled
        compiled = bool(model.jit_compile) and not model.run_eagerly
        if not compiled:
            _eager.warn_if_unasked(model, placement)
        own = name == "train_function" and stateful is None and _gathered_weights.follows_keras(model) and not computes_parts(step)
        make_step = functools.partial(
            StepFunction,
            step,
            placement,
            _STATE_NAMES[name],
            compiled=compiled,
            follows_keras=own,
            paths=functools.partial(_paths, model),
        )
        setattr(model, name, _Loop(make_step, stateful, model, name, is_bare=step is stateful))
    return getattr(model, name)


def _paths(model: Any, part: str) -> list[str]:
    """Return the paths of the variables of a part of a model's state."""
    return [variable.path for variable in getattr(model, part)]


def note_steps(original: Callable[..., Any], model: Any, step_function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Note the state after each step of Keras's own loop. With several steps per execution, an error in the next would lose it."""
    names_of = {len(names): names for names in _STATE_NAMES.values()}

    def step(state: Any, data: Any) -> Any:
        outputs, state = step_function(state, data)
        _running_loops.note(model, names_of[len(state)], state)
        return outputs, state

    return original(model, step, *args, **kwargs)


def _one_device(model: Any, step: Callable[..., Any]) -> Placement:
    """Return the placement of a stateful step without a strategy."""
    if keras.distribution.distribution() is not None:
        raise MixedStrategyError(
            f"The {step.__name__} of the model {model.name!r} takes only the data, and keras.distribution is active, which needs "
            f"Keras's own form, {step.__name__}(self, state, data). Use a strategy of Replicant instead of keras.distribution."
        )
    (device,) = jnp.zeros(()).devices()
    return Placement((device,))


def finalize(original: Callable[..., Any], optimizer: Any, variables: Any) -> Any:
    """Copy what Keras assigns at the end of training: a variable must not share the buffer of its moving average.

    Steps donate their state, so one buffer cannot serve two variables.
    """
    with as_they_lie():
        result = original(optimizer, variables)
        if optimizer.use_ema:
            for variable in variables:
                variable.assign(jnp.array(variable.value, copy=True))
    return result
