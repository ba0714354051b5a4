"""``run`` inside the trace of a program, which owns the state.

One replica is part of the program that contains it (this file). Several equal ones are traced once (``_spmd.py``), and replicas of
different sizes one by one (``_ragged.py``). In all of them, JAX's collectives may name the axis of the replicas.
"""

from collections.abc import Callable
from typing import Any

from ...replicas._collectives import AXIS, SingleReplica
from ...replicas._context import ActiveStrategy
from ...variables._recorder import cross_recorder
from ..arguments._opaque import hide, show
from ..arguments._replica_inputs import Inputs
from ._ragged import run_ragged
from ._rehearsal import call
from ._spmd import run_spmd
from ._step_inputs import StepInputs
from ._variable_checks import check_owners


def run_replicas(strategy: ActiveStrategy, fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    """Run ``fn(*args, **kwargs)`` on all replicas, inside the trace of a program."""
    cross = cross_recorder()
    cross.use(strategy.placement)
    arguments = Inputs.of(hide((args, kwargs)), strategy.num_replicas_in_sync)
    step = StepInputs(strategy, fn, arguments, cross, cross.facts_of_next_run())
    if step.num_replicas == 1:
        return show(_alone(step))
    return show(run_ragged(step) if arguments.ragged else run_spmd(step))


class AxisNamed(BaseException):
    """The only replica's step names the axis of the replicas, so it needs a trace of its own. That of the program begins again.

    This never reaches the user. Not an Exception: the traced code may catch these.
    """


def _alone(step: StepInputs) -> Any:
    """Compute the only replica's step, in the trace of the program if it does not name the axis of the replicas."""
    if step.facts.names_axis:
        return run_ragged(step)
    try:
        return _inside(step)
    except NameError as error:
        if f"unbound axis name: {AXIS}" not in str(error):
            raise
        step.facts.names_axis = True
        step.cross.undo_effects()
        raise AxisNamed from error


def _inside(step: StepInputs) -> Any:
    before = {*step.cross.values}
    result, _ = call(step, step.arguments.of_replica(0), SingleReplica(), step.cross)
    check_owners(step.strategy, [ref for ref in step.cross.values if ref not in before])
    return result
