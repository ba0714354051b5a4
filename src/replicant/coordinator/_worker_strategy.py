"""The strategy that closures see on a worker."""

from typing import Any, NoReturn

from ..errors import ContextError
from ..replicas._placement import Placement
from ._libraries import connect_libraries
from ._server_strategy import ServerStrategy
from ._variable import ServerVariable


class WorkerStrategy(ServerStrategy):
    """The strategy that closures see."""

    variable_class = ServerVariable

    def __init__(self) -> None:
        super().__init__(Placement())

    def __repr__(self) -> str:
        return "ParameterServerStrategy(on a worker)"

    def place_variable(self, variable: Any, name: str, value: Any, *, trainable: bool, beside: Any = None) -> NoReturn:
        """Raise ContextError: workers cannot make variables."""
        raise ContextError(
            f"Variable {name!r} was made inside a scheduled function, on a worker. Make variables, layers and optimizers once, on "
            "the coordinator, in strategy.scope(). Build models there: call model.build(input_shape), or the model on an example."
        )


def worker_strategy() -> WorkerStrategy:
    """Make the strategy of a worker process."""
    connect_libraries()
    return WorkerStrategy()
