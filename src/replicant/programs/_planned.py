"""Describes a training step under ``strategy.run`` in the form that a plan needs."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..errors import ArgumentError
from ..replicas._placement import Placement
from ..replicas._planning import Held, StepFound
from ..replicas._values import PerReplica, is_distributed
from ..variables._ref import Ref
from ._program import Program
from ._trace import Trace
from .arguments._signature import ARRAY
from .running._executable import found_step


def found_in_run(
    make: Callable[[Trace], Program], trace: Trace, arrays: list[Any], tree: Any, static: Sequence[Any]
) -> StepFound | ArgumentError:
    """Return the exception that ends planning at the first training step: the step, or an error.

    Args:
        make: Makes the program from a trace.
        trace: The trace.
        arrays: The inputs.
        tree: The structure of the arguments.
        static: The leaves of the arguments, with ARRAY for each input.
    """
    numbers = iter(range(len(arrays)))
    marked = jax.tree.unflatten(tree, [next(numbers) if s is ARRAY else None for s in static])
    by_replica = [leaf for leaf in jax.tree.leaves(marked, is_leaf=is_distributed) if isinstance(leaf, PerReplica)]
    n = trace.placement.num_replicas
    if any(leaf.stacked is None and any(v is not None for v in leaf.values) for leaf in by_replica):
        return ArgumentError(
            f"The first batch gives the {n} replicas different numbers of rows. Plan with a first batch of a multiple of {n} "
            "rows, for example `dataset.repeat().batch(global_batch_size)`."
        )
    stacked = {leaf.stacked for leaf in by_replica}
    batch = [
        Held(f"input {i}", "batch", tuple(x.shape), x.dtype, "stacked" if i in stacked else "mirrored")
        for i, x in enumerate(arrays)
    ]

    def program(placement: Placement) -> Program:
        return make(dataclasses.replace(trace, placement=placement, closed=None if placement != trace.placement else trace.closed))

    def inputs(placement: Placement) -> tuple[list[Held], list[Held], list[Held]]:
        found = program(placement)
        return [_held(ref, placement) for ref in found.written], [_held(ref, placement) for ref in found.kept], batch

    return found_step(lambda placement: program(placement).executable, inputs, trace.placement)


def _held(ref: Ref, placement: Placement) -> Held:
    is_weight = not ref.on_read and jnp.issubdtype(ref.dtype, jnp.inexact)
    untrained = "optimizer state" if ref.slot else "untrained weights" if is_weight else "other state"
    kind = "weights" if ref.trainable else untrained
    if ref.copies(placement.num_replicas):
        return Held(ref.name, kind, (placement.num_replicas, *ref.shape), ref.dtype, "stacked")
    if ref.slice_axis(placement) is None:
        return Held(ref.name, kind, tuple(ref.shape), ref.dtype, "mirrored")
    used = placement.pieces_in_use(ref.model_cut(placement))
    return Held(ref.name, kind, tuple(ref.shape), ref.dtype, "sliced", placement.pieces(tuple(ref.shape)), used)
