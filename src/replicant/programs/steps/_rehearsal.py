"""The trace of a replica function on the arrays of one replica, before anything is computed."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from jax.core import Tracer

from ...reductions._checks import Count
from ...replicas._collectives import Group
from ...replicas._context import ReplicaContext, entered
from ...replicas._values import PerReplica
from ...tracing._inputs import Inputs, make_jaxpr
from ...tracing.jaxprs._closed_jaxpr import ClosedJaxpr
from ...variables._recorder import Recorder, ReplicaRecorder, recording
from ...variables._ref import Ref
from ..arguments._call_arguments import arguments_explained
from ..arguments._opaque import hide, show
from ..arguments._replica_inputs import stays_on_host
from ..arguments._result_template import Passed, ResultTemplate
from ..arguments._signature import ARRAY
from ..validity._leaked_tracers import Arguments
from ._no_rows import no_rows_explained
from ._pathless_gradients import learn
from ._step_inputs import Layout, StepInputs
from ._variable_checks import check_owners


@dataclasses.dataclass(frozen=True)
class Rehearsal:
    """A finished trace.

    Attributes:
        layouts: How the replica sees each variable that it uses.
        written: The variables that it has written.
        cut: Those that it was given whole values for, and cut into slices.
        template: The function's result without its arrays.
        counts: What ``compute_average_loss`` was called with.
        closed: The jaxpr. Its outputs are the arrays of the result, then the values of `written`. Last come the values for `cut`,
            which are there for one check only, and no program computes them.
        inputs: The variables that the trace got under way, which `rehearse_until_learned` makes the first inputs of the jaxpr.
    """

    layouts: dict[Ref, Layout]
    written: list[Ref]
    cut: list[Ref]
    template: ResultTemplate
    counts: list[Count]
    closed: ClosedJaxpr
    inputs: Inputs

    @property
    def num_results(self) -> int:
        return self.template.num_arrays


def rehearse(
    step: StepInputs, group_of: Callable[..., Group], *given: Any, index: int = 0, axes: Sequence[tuple[str, int]] = ()
) -> Rehearsal:
    """Trace the replica function of replica `index`.

    Args:
        step: The call of ``run``.
        group_of: Returns the replicas to which it belongs, given the inputs of the trace but the last one.
        *given: The inputs of the trace, the last of which are the replica's arrays.
        index: The number of the replica.
        axes: The names and sizes of axes that JAX's collectives may name, and that are not bound where this is called.
    """
    made: list[Callable[..., Rehearsal]] = []

    def flat(inputs: Inputs, *given: Any) -> list[Any]:
        values, found = _play(step, inputs, group_of(*given[:-1]), given[-1], index)
        made.append(found)
        return values

    closed, inputs = make_jaxpr(flat, *given, axes=axes)
    return made[-1](closed, inputs)


def rehearse_until_learned(step: StepInputs, attempt: Callable[[], list[Rehearsal]]) -> tuple[list[Ref], list[Rehearsal]]:
    """Trace all replicas, and again while the traces teach which gradients have no path to their sources.

    Args:
        step: The call of ``run``.
        attempt: Traces the replicas: one of several equal ones, or all of them.

    Returns:
        The variables that any of them uses, and the traces, whose jaxprs have these variables as their first inputs.

    Raises:
        VariablesMade: If the function has made variables: all that follows would be in vain.
    """
    while True:
        found = attempt()
        step.cross.check_made(found[0].layouts)
        if not learn(step.facts, [each.closed.jaxpr for each in found]):
            break
        step.cross.undo_effects()
    refs = list(dict.fromkeys(ref for each in found for ref in each.layouts))
    check_owners(step.strategy, refs)
    first = [(ref, step.local(ref)) for ref in refs]
    return refs, [dataclasses.replace(each, closed=each.inputs.arranged(each.closed, first)) for each in found]


def _play(
    step: StepInputs, inputs: Inputs, group: Group, arrays: Sequence[Any], index: int
) -> tuple[list[Any], Callable[[ClosedJaxpr, Inputs], Rehearsal]]:
    """Call the function in a trace. Return the outputs of the jaxpr, and what makes the Rehearsal of it."""

    def take(ref: Ref) -> Any:
        step.cross.read_raw(ref)  # so that the program that contains this trace gets the variable, too
        return inputs.take(ref, step.local(ref))

    has_rows = step.arguments.has_rows(index)
    recorder = ReplicaRecorder(take, group, step.facts, has_rows=has_rows, slice_axis=step.slice_axis, model_cut=step.model_cut)
    leaves = step.leaves_of(index, arrays)
    result, counts = call(step, leaves, group, recorder, has_rows=has_rows)
    template, results = ResultTemplate.of(result, _kind_of_result(step, leaves))
    written, cut = list(recorder.written), [ref for ref, _ in recorder.cut_values]
    layouts = {ref: step.layout_of(ref) for ref in (*recorder.known, *written)}
    values = [*results, *[recorder.values[ref] for ref in written], *[value for _, value in recorder.cut_values]]
    return values, partial(Rehearsal, layouts, written, cut, template, counts)


def _kind_of_result(step: StepInputs, leaves: Sequence[Any]) -> Callable[[Any], Any]:
    """Return what tells the kind of each leaf of a replica's result, for its template. `leaves` are the replica's arguments."""
    given, moving = step.arguments.leaves, {*step.moving}
    passed = {
        id(leaves[p]): Passed(p) for p, x in enumerate(given) if (p in moving and not isinstance(x, PerReplica)) or stays_on_host(x)
    }

    def kind_of(leaf: Any) -> Any:
        # As in TensorFlow, an object that is the same on all replicas (a constant, a captured array) is returned as it is.
        return passed.get(id(leaf)) or (ARRAY if isinstance(leaf, Tracer) else leaf)

    return kind_of


def call(
    step: StepInputs, leaves: Sequence[Any], group: Group, recorder: Recorder, *, has_rows: bool = True
) -> tuple[Any, list[Count]]:
    """Call the replica function on one replica's leaves. Return its result, and what ``compute_average_loss`` was called with."""
    args, kwargs = show(step.arguments.tree.unflatten(leaves))
    context = ReplicaContext(step.strategy, group, has_rows=has_rows)
    given = Arguments(args, kwargs, _rows(step, leaves))
    with (
        recording(recorder),
        entered(step.strategy, context),
        no_rows_explained(step.arguments, leaves),
        arguments_explained(step.fn, args, kwargs),
    ):
        result = hide(step.fn(*args, **kwargs))
    _check_layouts(step, recorder)
    given.check(f"run: {step.name}", result, copies_are_theirs=True)
    return result, [Count(*count) for count in context.counts]


def _check_layouts(step: StepInputs, recorder: Recorder) -> None:
    """Raise if a training step leaves a rule of a layout map without a variable."""
    layouts = step.placement.layouts
    if layouts is None or recorder.made_variables or not any(ref.trainable for ref in recorder.written):
        return
    for ref in (*recorder.known, *recorder.written):
        layouts.note(ref.name)
    layouts.check_all_matched()


def _rows(step: StepInputs, leaves: Sequence[Any]) -> list[Any]:
    """Return those of one replica's leaves that are its part of the batch. With one replica, any of them may be."""
    if step.num_replicas == 1:
        return list(leaves)
    return [x for x, given in zip(leaves, step.arguments.leaves, strict=True) if isinstance(given, PerReplica)]
