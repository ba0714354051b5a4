"""Models remember the strategy that they are made or compiled under."""

from collections.abc import Callable
from typing import Any

import keras

from ...errors import ArgumentError, MixedStrategyError
from ...replicas._context import ActiveStrategy, active_strategy, default_strategy
from ...strategies._strategy import Strategy
from ..state._owner import STRATEGY, check_only, strategy_of
from ..steps import _eager, _steps_of_model


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
    _steps_of_model.forget(model)
    return remember(original, model, *args, **kwargs)


def own_strategy(model: Any) -> Strategy | None:
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


def distribute_strategy(model: Any) -> ActiveStrategy:
    """The strategy that the model belongs to, as Keras on TensorFlow calls it; that of the current scope if it belongs to none."""
    return strategy_of(model) or active_strategy()


def set_distribute_reduction_method(model: Any, value: Any) -> None:
    """Accept ``"auto"``, which is the only method."""
    if value != "auto":
        raise ArgumentError(
            f'The distribute_reduction_method of {model.name!r} was set to {value!r}, but the only method is "auto": fit returns '
            "the losses and metrics of the global batch. For values of single replicas, call strategy.run(step, args) and "
            "strategy.reduce in a loop of your own."
        )
