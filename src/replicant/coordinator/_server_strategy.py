"""The base of the coordinator's strategy and the workers' strategy: their variables live on servers."""

from typing import Any

import numpy as np

from ..errors import ParameterServerError
from ..strategies._strategy import Strategy
from .servers._store import VariableSpec


class ServerStrategy(Strategy):
    """A strategy whose variables live on parameter servers."""

    def place_variable(
        self, variable: Any, name: str, value: np.ndarray, *, trainable: bool, beside: VariableSpec | None = None
    ) -> VariableSpec:
        """Put a new variable on the servers: a slot of an optimizer on those of `beside`, the variable it belongs to."""
        raise NotImplementedError

    def memory(self, model: Any, batch: Any, *, limit: float | None = None) -> Any:
        """Raise: there is no step that computes on equal devices, each with its part of the state.

        Raises:
            ParameterServerError: Always.
        """
        raise ParameterServerError(
            f"memory does not work under {type(self).__name__}, whose variables lie on servers. Ask a MirroredStrategy, or call "
            "`replicant plan`, for a step of the workers."
        )
