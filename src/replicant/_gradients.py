"""``value_and_grad``."""

from collections.abc import Callable
from typing import Any

import jax

from ._function import function
from ._tape import GradientTape
from .variables._recorder import current_recorder


def value_and_grad(fn: Callable[..., Any], variables: Any = None, *, has_aux: bool = False) -> Callable[..., Any]:
    """Make a function that returns both the value of `fn` and its gradient.

    Args:
        fn: A function that returns a scalar float loss, or a pair ``(loss, anything)`` with ``has_aux=True``.
        variables: The variable, or nested structure of variables, with respect to which `fn` is differentiated. By default it is
            the first argument of `fn`.
        has_aux: Whether `fn` returns a pair whose first element is the loss.

    Returns:
        A function of the same arguments that returns ``(value, gradients)``. It works anywhere: inside ``strategy.run`` it gives
        the replica's own gradients, and elsewhere it is compiled as a program of its own.

    >>> import replicant, jax.numpy as jnp
    >>> value, gradient = replicant.value_and_grad(lambda x: x * x)(jnp.asarray(3.0))
    >>> print(value, gradient)
    9.0 6.0
    """
    if variables is None:
        return jax.value_and_grad(fn, has_aux=has_aux)

    def with_gradients(*args: Any, **kwargs: Any) -> Any:
        with GradientTape() as tape:
            tape.watch(variables)
            value = fn(*args, **kwargs)
        return value, tape.gradient(value[0] if has_aux else value, variables, unconnected_gradients="zero")

    compiled = function(with_gradients)

    def call(*args: Any, **kwargs: Any) -> Any:
        return with_gradients(*args, **kwargs) if current_recorder() is not None else compiled(*args, **kwargs)

    return call
