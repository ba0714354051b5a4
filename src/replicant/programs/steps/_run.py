"""``run`` inside the trace of a program: chooses between steps with equal replicas and with replicas of different sizes."""

from collections.abc import Callable
from typing import Any

from ...replicas._context import ActiveStrategy
from ...variables._recorder import cross_recorder
from ..arguments._opaque import hide, show
from ..arguments._replica_inputs import Inputs
from ._ragged import run_ragged
from ._replica_step import ReplicaStep


def run_replicas(strategy: ActiveStrategy, fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    """Run ``fn(*args, **kwargs)`` on all replicas, inside the trace of a program."""
    cross = cross_recorder()
    cross.use(strategy.placement)
    n = strategy.num_replicas_in_sync
    inputs = Inputs.of(hide((args, kwargs)), n)
    return show(_run(ReplicaStep(strategy, fn, inputs, cross), inputs, n))


def _run(step: ReplicaStep, inputs: Inputs, n: int) -> Any:
    if n == 1:
        return step.alone()
    return run_ragged(step) if inputs.ragged else step.spmd()
