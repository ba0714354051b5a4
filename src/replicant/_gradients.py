"""``value_and_grad``."""

from collections.abc import Callable
from typing import Any

import jax

from ._accumulate import accumulate, check_steps
from ._function import function
from ._tape import GradientTape
from .variables._recorder import current_recorder


def value_and_grad(
    fn: Callable[..., Any], variables: Any = None, *, has_aux: bool = False, accumulate_steps: int = 1
) -> Callable[..., Any]:
    """Make a function that returns both the value of `fn` and its gradient.

    With `accumulate_steps`, the batch is cut into micro-batches, one after the other is computed, and their values and gradients
    are added up. This takes the memory of one micro-batch's activations, and gives the numbers of the whole batch if the loss is a
    sum over rows, as that of ``compute_average_loss``, and that of a row does not depend on other rows. A penalty without rows goes
    through ``scale_regularization_loss``. What the function gathers from slices is gathered for each micro-batch; the gradients are
    still the replica's own, so an optimizer sums them over the replicas once.

    Args:
        fn: A function that returns a scalar float loss, or a pair ``(loss, anything)`` with ``has_aux=True``.
        variables: The variable, or nested structure of variables, with respect to which `fn` is differentiated. By default it is
            the first argument of `fn`.
        has_aux: Whether `fn` returns a pair whose first element is the loss.
        accumulate_steps: The number of micro-batches. All arrays among the arguments except scalars (and except the first argument
            if there are no `variables`) then have the rows of the batch along axis 0. A micro-batch has ``ceil(rows /
            accumulate_steps)`` rows, and the last one the rest. Keras layers may update their variables (metrics, ``Dropout``,
            ``BatchNormalization``), which happens once for each micro-batch. So ``BatchNormalization`` uses the statistics of one
            micro-batch, and ReductionWarning says so. Arrays in ``anything`` must have the rows along axis 0, too, and are joined.

    Returns:
        A function of the same arguments that returns ``(value, gradients)``. It works anywhere: inside ``strategy.run`` it gives
        the replica's own gradients, and elsewhere it is compiled as a program of its own.

    Raises:
        ArgumentError: If `accumulate_steps` is less than 1; and, when the function is called, if the arrays to cut have different
            numbers of rows, or `fn` does not take twice as many rows as a micro-batch has, which it is traced with once.
        ArgumentTypeError: If `accumulate_steps` is not an int.
        ReductionError: When the function is called, if the losses of micro-batches do not add up: for a mean over their rows, and
            for a term without rows.

    >>> import replicant, jax.numpy as jnp
    >>> value, gradient = replicant.value_and_grad(lambda x: x * x)(jnp.asarray(3.0))
    >>> print(value, gradient)
    9.0 6.0
    >>> def loss(weight, x):
    ...     return replicant.compute_average_loss((weight * x) ** 2, global_batch_size=4)
    >>> value, gradient = replicant.value_and_grad(loss, accumulate_steps=2)(jnp.asarray(1.0), jnp.arange(4.0))
    >>> print(value, gradient)
    3.5 7.0
    """
    steps = check_steps(accumulate_steps, "value_and_grad")
    if variables is None:
        plain = jax.value_and_grad(fn, has_aux=has_aux)
        if steps == 1:
            return plain

        def in_parts(source: Any, *args: Any, **kwargs: Any) -> Any:
            return accumulate(lambda *xs, **named: plain(source, *xs, **named), args, kwargs, steps, has_aux=has_aux)

        return in_parts

    def with_tape(*args: Any, **kwargs: Any) -> Any:
        with GradientTape() as tape:
            tape.watch(variables)
            value = fn(*args, **kwargs)
        return value, tape.gradient(value[0] if has_aux else value, variables, unconnected_gradients="zero")

    def with_gradients(*args: Any, **kwargs: Any) -> Any:
        if steps == 1:
            return with_tape(*args, **kwargs)
        return accumulate(with_tape, args, kwargs, steps, has_aux=has_aux)

    compiled = function(with_gradients)

    def call(*args: Any, **kwargs: Any) -> Any:
        return with_gradients(*args, **kwargs) if current_recorder() is not None else compiled(*args, **kwargs)

    return call
