"""The default strategy is made on first use."""

from ..replicas._context import set_default_strategy
from ._strategy import DefaultStrategy


def install_default_strategy() -> None:
    """Tell the context how to make the strategy that is active outside of every scope."""
    set_default_strategy(DefaultStrategy)
