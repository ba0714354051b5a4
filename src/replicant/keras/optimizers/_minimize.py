"""``optimizer.minimize``, which optimizers had in Keras 2 and TensorFlow programs call."""

from typing import Any

import jax.numpy as jnp

from ..._tape import GradientTape
from ...errors import ArgumentError


def minimize(optimizer: Any, loss: Any, var_list: Any, tape: GradientTape | None = None) -> None:
    """Compute the gradients of a loss, and apply them.

    Semantics: ``tf.keras.optimizers.Optimizer.minimize`` of Keras 2.

    Args:
        optimizer: The optimizer.
        loss: A function without arguments that returns the loss, or a loss that `tape` has recorded.
        var_list: The variables, or a function without arguments that returns them, if `loss` is a function too.
        tape: The tape that recorded the loss. If `loss` is a function, the tape in which it is called; by default a new one.

    Raises:
        ArgumentError: If `loss` is not a function and there is no tape.
    """
    if not callable(loss) and tape is None:
        raise ArgumentError(
            f"optimizer.minimize needs the tape that recorded the loss; got loss={loss!r} and tape=None. Write "
            "minimize(loss, var_list, tape=tape), or pass a function without arguments that computes the loss."
        )
    tape = GradientTape() if tape is None else tape
    if callable(loss):
        with tape:
            if not callable(var_list):
                tape.watch(list(var_list))
            loss = loss()
    listed: Any = var_list() if callable(var_list) else var_list
    variables = list(listed)
    # Whatever the optimizer multiplies its losses by is taken back in `apply_gradients`.
    scale = optimizer.scale_loss(jnp.ones(jnp.shape(loss), getattr(loss, "dtype", None)))
    optimizer.apply_gradients(zip(tape.gradient(loss, variables, output_gradients=scale), variables, strict=True))
