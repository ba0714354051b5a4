"""The strategy of a whole program, which ``replicant run --strategy`` gives to a program that names none."""

from collections.abc import Callable, Mapping

from ..errors import ArgumentError, BackendError
from ..replicas._context import program_strategy_is_made, set_program_strategy
from ._mirrored import MirroredStrategy
from ._strategy import Strategy

STRATEGIES: Mapping[str, Callable[[], Strategy]] = {"mirrored": MirroredStrategy}


def check_name(name: str) -> None:
    """Check that a strategy has this name.

    Raises:
        ArgumentError: If none has.
    """
    if name not in STRATEGIES:
        raise ArgumentError(f"--strategy {name!r} is not known. It is one of: {', '.join(STRATEGIES)}.")


def use(name: str) -> None:
    """Make a strategy that of the whole program. It is made when the program first needs it."""
    set_program_strategy(STRATEGIES[name])


def is_made() -> bool:
    """Whether the program has needed its strategy."""
    return program_strategy_is_made()


def check_backend(environ: Mapping[str, str]) -> None:
    """Check, before Keras is imported, that it will run on JAX.

    Raises:
        BackendError: If it will not.
    """
    backend = environ.get("KERAS_BACKEND", "jax")
    if backend != "jax":
        raise BackendError(
            f"replicant run --strategy: KERAS_BACKEND is {backend!r} when Keras is imported, but strategies need Keras on JAX. Set "
            "it to 'jax', or do not set it. `replicant migrate` changes it in programs for TensorFlow."
        )
