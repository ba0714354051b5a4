"""The strategy that a model was made, compiled or loaded under, which owns its devices."""

from typing import Any

from ...errors import MixedStrategyError
from ...replicas._context import (
    ActiveStrategy,
    active_replica_context,
    active_strategy,
)
from ...strategies._strategy import Strategy

STRATEGY = "_replicant_strategy"  # the attribute of a model that holds it


def strategy_of(model: Any) -> Strategy | None:
    """Return the strategy under which a model was made, compiled or loaded."""
    return model.__dict__.get(STRATEGY)


def check_only(model: Any, strategy: ActiveStrategy, what_was_done: str) -> None:
    """Raise if the model belongs to a strategy on other devices, since its state lies on those."""
    own = strategy_of(model)
    if own is not None and own.placement != strategy.placement:
        raise MixedStrategyError(
            f"The model {model.name!r} belongs to {own!r} but {what_was_done} under {strategy!r}. To continue with the other "
            "strategy, create the model again in its scope: use keras.models.clone_model(model) and "
            "set_weights(model.get_weights()), or save the model and call keras.models.load_model there."
        )


def call_layer(original: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a layer. Raise if it is a model of another strategy, even if it has no variables yet."""
    if strategy_of(layer) is not None and active_replica_context() is not None:
        strategy = active_strategy()
        if strategy.placement.devices and strategy.placement.planning is None:
            check_only(layer, strategy, "is called in `run`")
    return original(layer, *args, **kwargs)
