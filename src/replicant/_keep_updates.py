"""``keep_updates_if`` takes back everything that a compiled function has assigned when something went wrong."""

from typing import Any

import jax.numpy as jnp

from .errors import ArgumentError, ContextError
from .replicas._context import active_replica_context
from .replicas._values import is_distributed
from .variables._recorder import CrossRecorder, current_recorder


def keep_updates_if(condition: Any) -> None:
    """Keep what a ``replicant.function`` has assigned only if `condition` holds.

    Otherwise every variable that was assigned before this call gets back the value that it had when the function began: weights,
    optimizer state, metrics, batch statistics and random seeds alike. The results of the function stay as they are. So a training
    step whose loss is NaN has no effect, and training goes on as if the data did not contain that batch. The compiled program
    makes this decision, and nothing waits for it.

    Args:
        condition: A scalar boolean that is the same on all replicas, such as ``jnp.isfinite(loss)`` of a reduced loss.

    Raises:
        ContextError: If it is called outside a ``replicant.function``, or inside ``strategy.run``.
        ArgumentError: If `condition` is anything but one boolean.

    >>> import jax.numpy as jnp, replicant
    >>> total = replicant.Variable(0.0)
    >>> @replicant.function
    ... def add(x):
    ...     total.assign_add(x)
    ...     replicant.keep_updates_if(jnp.isfinite(x))
    >>> for x in (1.0, float("nan"), 2.0):
    ...     add(x)
    >>> float(total)
    3.0
    """
    recorder = current_recorder()
    if not isinstance(recorder, CrossRecorder) or active_replica_context() is not None:
        raise ContextError(
            "keep_updates_if was called outside a replicant.function, or inside strategy.run. Call it in a function decorated "
            "with @replicant.function, after `run`, with a reduced value: replicant.keep_updates_if(jnp.isfinite(loss))."
        )
    if is_distributed(condition) or jnp.shape(condition) != () or jnp.result_type(condition) != jnp.bool_:
        found = (
            type(condition).__name__ if is_distributed(condition) else f"{jnp.result_type(condition)}{list(jnp.shape(condition))}"
        )
        raise ArgumentError(
            f"keep_updates_if: the condition must be one boolean, the same on all replicas. Received: {found}. Reduce the loss "
            "first: jnp.isfinite(strategy.reduce('SUM', losses, axis=None))."
        )
    for ref in list(recorder.written):
        new = recorder.values[ref]
        recorder.write_raw(ref, jnp.where(condition, new, recorder.before(ref)))
