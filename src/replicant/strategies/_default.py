"""The default strategy, which is active outside every scope and made on first use."""

from typing import cast

from ..replicas._context import active_strategy, set_default_strategy
from ..replicas._placement import Placement
from ._strategy import Strategy


class DefaultStrategy(Strategy):
    """The strategy outside all scopes: one replica on JAX's default device."""

    def __init__(self) -> None:
        super().__init__(Placement())

    def _planned(self, placement: Placement) -> Placement:
        return placement  # it exists before any plan

    def __repr__(self) -> str:
        return "DefaultStrategy()"


def get_strategy() -> Strategy:
    """Return the strategy in whose scope or ``run`` you call this; outside all scopes, the default strategy (one replica).

    Semantics: tf.distribute.get_strategy.

    >>> import replicant
    >>> replicant.get_strategy().num_replicas_in_sync
    1
    """
    return cast(Strategy, active_strategy())


def install_default_strategy() -> None:
    """Tell the context how to make the default strategy."""
    set_default_strategy(DefaultStrategy)
