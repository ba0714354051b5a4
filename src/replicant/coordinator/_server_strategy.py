"""What the coordinator's strategy and that of its workers have in common: their variables lie on servers."""

from typing import Any

import numpy as np

from ..strategies._strategy import Strategy
from .servers._store import VariableSpec


class ServerStrategy(Strategy):
    """A strategy whose variables lie on parameter servers."""

    def place_variable(
        self, variable: Any, name: str, value: np.ndarray, *, trainable: bool, beside: VariableSpec | None = None
    ) -> VariableSpec:
        """Put a new variable on the servers; an optimizer's own goes where the variable `beside` it is."""
        raise NotImplementedError
