"""Explains what JAX says of an array without elements, where a replica has no rows in a step."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

from ...errors import RaggedStepError, ReplicantError
from ...replicas._values import PerReplica, is_array
from ..arguments._replica_inputs import Inputs


@contextmanager
def no_rows_explained(inputs: Inputs, leaves: Sequence[Any]) -> Iterator[None]:
    """Compute on one replica's leaves in the ``with`` block.

    Raises:
        RaggedStepError: In place of an error that Python, NumPy, JAX or Keras raises, if the replica has no rows.
    """
    try:
        yield
    except (ValueError, TypeError, ZeroDivisionError, IndexError) as error:
        parts = [i for i, (x, whole) in enumerate(zip(leaves, inputs.leaves, strict=True)) if _is_part(x, whole)]
        if isinstance(error, ReplicantError | jax.errors.JAXTypeError) or not parts or any(len(leaves[i]) for i in parts):
            raise
        n = inputs.num_replicas
        counts = [len(inputs.of_replica(r)[parts[0]]) for r in range(n)]
        without = [str(r) for r, count in enumerate(counts) if not count]
        which = f"replica {without[0]} of {n} has" if len(without) == 1 else f"replicas {', '.join(without)} of {n} have"
        raise RaggedStepError(
            f"run: {which} no rows in this step ({inputs.names[parts[0]]} has {counts} rows on the replicas, {sum(counts)} in "
            f"all), and with none the function raises {type(error).__name__}: {error}. Write it so that it also computes with 0 "
            "rows, such as keras.ops.max(x, initial=-float('inf')), or x.reshape(len(x), math.prod(x.shape[1:])) instead of -1, or "
            "leave incomplete batches out: dataset.batch(global_batch_size, drop_remainder=True)."
        ) from error


def _is_part(leaf: Any, whole: Any) -> bool:
    """Whether a leaf is a replica's part of an array with rows."""
    return isinstance(whole, PerReplica) and is_array(leaf) and leaf.ndim > 0
