"""Makes the functions of a model that Keras's loops call: with steps that use every device, for models that belong to a strategy.

`steps/_step_function.py` compiles the steps for the devices of the strategy.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import keras

from ...errors import ArgumentError, MixedStrategyError
from ...replicas._placement import Placement
from ...runtime import _steps
from .. import _batch_statistics
from ..micro_batches import _step
from ..micro_batches._step import computes_parts
from ..state import _gathered_weights, _loop_state
from ..state._loop_state import PARTS, variables_of
from ..state._owner import strategy_of
from ..state._variables import as_they_lie
from ..steps import _eager
from ..steps._stateful_step import StatefulStep
from ..steps._step_function import StepFunction
from ..steps._steps_of_model import inside, step_of
from ..steps._traced_step import TracedStep
from ._compile import own_strategy
from ._recorded_steps import record
from ._step_loop import StepLoop


def make_train(original: Callable[..., Any], model: Any, force: bool = False) -> Any:
    """Make the train function of a model. If the model belongs to a strategy, it uses all its devices."""
    strategy = strategy_of(model)
    if strategy is not None and strategy.gradient_dtype is not None:
        raise ArgumentError(
            f"{strategy!r} was made with gradient_dtype={str(strategy.gradient_dtype)!r}, which only applies where the replicas "
            "sum their gradients: in optimizer.apply inside strategy.run. In `fit`, XLA sums them as part of the computation of "
            "the global batch. Leave gradient_dtype out, or train with a custom loop."
        )
    step = step_of(model, "train_step")
    step = _step.in_parts(model, step)
    if strategy is not None:
        step = _batch_statistics.with_asked(model, step, strategy.num_replicas_in_sync)
    function = _make(original, model, "train_step", step, force)
    return record(model) if _steps.recorder is not None else function


def make_test(original: Callable[..., Any], model: Any, force: bool = False) -> Any:
    """Make the test function, as `make_train` does."""
    return _make(original, model, "test_step", step_of(model, "test_step"), force)


def make_predict(original: Callable[..., Any], model: Any, force: bool = False) -> Any:
    """Make the predict function, as `make_train` does."""
    step = step_of(model, "predict_step")

    def predict_step(state: Any, data: Any) -> Any:
        outputs, non_trainable_variables = step(state, data)
        return outputs, (state[0], non_trainable_variables)

    return _make(original, model, "predict_step", step if isinstance(step, StatefulStep) else predict_step, force)


def _make(original: Callable[..., Any], model: Any, name: str, step: Callable[..., Any], force: bool) -> Any:
    strategy, stateful = own_strategy(model), inside(step)
    function = name.replace("step", "function")
    if strategy is None and stateful is None and not computes_parts(step):
        return original(model, force)
    if getattr(model, function) is None or force:
        placement = _one_device(model, step) if strategy is None else strategy.placement
        _eager.allow_compilation(model)  # again, for a model that predicts and was never compiled
        compiled = bool(model.jit_compile) and not model.run_eagerly
        if not compiled:
            _eager.warn_if_unasked(model, placement)
        own = name == "train_step" and stateful is None and _gathered_weights.follows_keras(model) and not computes_parts(step)

        def make_step() -> StepFunction:
            return StepFunction(TracedStep(step, placement, PARTS[name], compiled, own, functools.partial(_paths, model)))

        setattr(model, function, StepLoop(make_step, stateful, model, name, is_bare=step is stateful))
    return getattr(model, function)


def _paths(model: Any, part: str) -> list[str]:
    """Return the paths of the variables of a part of a model's state."""
    return [variable.path for variable in variables_of(model, part)]


def note_steps(original: Callable[..., Any], model: Any, step_function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Note the state after each step of Keras's own loop. With several steps per execution, an error in the next would lose it."""
    names_of = {len(names): names for names in PARTS.values()}

    def step(state: Any, data: Any) -> Any:
        outputs, state = step_function(state, data)
        _loop_state.note(model, names_of[len(state)], state)
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
