"""Steps in which the replicas have different sizes: the last batch of an epoch, or a batch smaller than the number of replicas.

An SPMD program needs equal shapes. So here every device gets the whole (small) batch, the replica function is traced once per
replica on its exact rows, and one program computes the traces side by side. At an exchange, each replica waits for the others. The
answers are computed from the exact values, and all continue. The result equals that of one device, and the step takes at most as
long as n ordinary steps. XLA merges what is the same on all replicas (the optimizer's update).
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from ...errors import RaggedStepError
from ...reductions import _checks, _unequal
from ...reductions._causes import Input
from ...reductions._same_values import Numbering
from ...replicas._collectives import AXIS
from ...replicas._context import as_mirrored
from ...replicas._values import PerReplica, is_array, is_same_object
from ...tracing.jaxprs._closed_jaxpr import ClosedJaxpr
from ...tracing.replicas._interpreter import evaluate
from ...variables._ref import Ref
from ..arguments._result_template import ResultTemplate
from ..arguments._signature import ARRAY
from ._named_axis import with_exchanges
from ._ragged_exchanges import Questions, RaggedGroup, Rows, Suspended, agree
from ._rehearsal import Rehearsal, rehearse, rehearse_until_learned
from ._side_by_side import answer_alone, side_by_side
from ._step_inputs import StepInputs
from ._variable_checks import check_agreement


def run_ragged(step: StepInputs) -> Any:
    """Compute one step with replicas of different sizes."""
    n, moving = step.num_replicas, step.moving
    rows = [step.arguments.of_replica(r) for r in range(n)]
    arrays = [[jnp.asarray(rows[r][i]) for i in moving] for r in range(n)]
    step.facts.several = True
    refs, traces = rehearse_until_learned(step, lambda: _rehearse_all(step, arrays))
    flags, raws = [ref.copies(n) for ref in refs], [step.cross.read_raw(ref) for ref in refs]
    inputs = [
        [*[raw[r] if flag else raw for raw, flag in zip(raws, flags, strict=True)], jnp.asarray(r, jnp.int32), *arrays[r]]
        for r in range(n)
    ]
    varying = [*flags, True, *[isinstance(step.arguments.leaves[i], PerReplica) for i in moving]]
    _check_reductions(step, traces, varying, len(refs))
    numbers = _number(step, traces, refs, varying)
    has_rows = [step.arguments.has_rows(r) for r in range(n)]
    answers = _compute_together([traced.closed for traced in traces], inputs, varying, has_rows)
    _write_back(step, traces, answers)
    templates = [traced.template for traced in traces]
    results = [template.leaves(made, given) for template, made, given in zip(templates, answers, rows, strict=True)]
    return _regroup(templates, results, numbers)


def _rehearse_all(step: StepInputs, arrays: Rows) -> list[Rehearsal]:
    """Trace all replicas. When they meet in an exchange with unknown shapes, work the shapes out and start again.

    A gradient is None if no replica has a path to its source. So all replicas exchange the same gradients. If only some replicas
    have no path, these get zeros. This decides what the exchanges carry, so their answers are worked out again each time.
    """
    step.facts.answers.clear()
    guesses = True
    while True:
        traces: list[Rehearsal] = []
        asked: list[Questions] = [{} for _ in arrays]
        try:
            for r in range(step.num_replicas):
                with contextlib.suppress(Suspended):
                    traces.append(_rehearse(step, arrays[r], r, asked[r], guesses=guesses))
        except Exception:
            if not (guesses and any(asked)):
                raise
            guesses = False  # if a guess was wrong, that is told, and not what came of it
        else:
            agree(asked, step.facts)
            if len(traces) == step.num_replicas:
                return traces
        step.cross.undo_effects()


def _rehearse(step: StepInputs, arrays: list[Any], index: int, asked: Questions, *, guesses: bool) -> Rehearsal:
    """Trace one replica. Its number is the first input of the trace."""

    def group_of(replica_id: Any) -> RaggedGroup:
        return RaggedGroup(step.num_replicas, index, replica_id, step.facts, asked, guesses=guesses)

    number = jnp.asarray(index, jnp.int32)
    found = rehearse(step, group_of, number, arrays, index=index, axes=[(AXIS, step.num_replicas)])
    return dataclasses.replace(found, closed=with_exchanges(found.closed, step.num_replicas))


def _check_reductions(step: StepInputs, traces: Sequence[Rehearsal], varying: list[bool], num_refs: int) -> None:
    """Warn of means over the rows of one replica; see ``reductions/_unequal.py``."""
    kinds = [Input(varies, None if i <= num_refs else "args") for i, varies in enumerate(varying)]
    unequal = _unequal.find([traced.closed.jaxpr for traced in traces], kinds, [traced.counts for traced in traces])
    _checks.tell(unequal, step.strategy.told, strict=step.strategy.strict)


def _number(step: StepInputs, traces: Sequence[Rehearsal], refs: list[Ref], varying: list[bool]) -> list[list[int]]:
    """Number the replicas' results: equal numbers mean equal values. Raise if a variable's copies would differ."""
    numbering = Numbering([traced.closed for traced in traces])
    rows = [numbering.results(traced.closed, varying) for traced in traces]
    if step.arguments.objects_differ:  # then code that the traces do not show, such as a callback to the host, may differ too
        rows = [[numbering.fresh() for _ in row] for row in rows]
    written = [dict(zip(each.written, row[each.num_results :], strict=True)) for each, row in zip(traces, rows, strict=True)]
    all_written = list(dict.fromkeys(ref for stored in written for ref in stored))
    # A replica that does not write a variable leaves it as it was.
    stored = [[mine.get(ref, numbering.input(refs.index(ref))) for mine in written] for ref in all_written]
    check_agreement(all_written, [len(set(numbers)) > 1 for numbers in stored], step.num_replicas)
    return [row[: each.num_results] for each, row in zip(traces, rows, strict=True)]


def _compute_together(jaxprs: Sequence[ClosedJaxpr], inputs: Rows, varying: list[bool], has_rows: list[bool]) -> Rows:
    """Evaluate the replicas' traces side by side, in the trace of the surrounding program."""
    answer = answer_alone(has_rows) if len(jaxprs) == 1 else None
    traces = zip(jaxprs, inputs, strict=True)
    return side_by_side([evaluate(closed.jaxpr, closed.consts, values, varying, answer) for closed, values in traces], has_rows)


def _write_back(step: StepInputs, traces: Sequence[Rehearsal], answers: Rows) -> None:
    n, cross = step.num_replicas, step.cross
    written = [dict(zip(each.written, row[each.num_results :], strict=True)) for each, row in zip(traces, answers, strict=True)]
    for ref in dict.fromkeys(ref for mine in written for ref in mine):
        if ref.copies(n):  # a replica that has not written it keeps its copy
            copies = [mine[ref] if ref in mine else cross.read_raw(ref)[r] for r, mine in enumerate(written)]
            cross.write_raw(ref, jnp.stack(copies))
        else:
            cross.write_raw(ref, next(mine[ref] for mine in written if ref in mine))


_GIVEN = "given"  # the kind of a result that was not computed; the kind of any other result is its number


def _regroup(templates: Sequence[ResultTemplate], results: Rows, numbers: Sequence[Sequence[int]]) -> Any:
    """Join the leaves of the replicas' results into one structure, given the numbers of those that were computed."""
    trees = [template.tree for template in templates]
    if any(tree != trees[0] for tree in trees):
        listing = ", ".join(f"replica {r}: {tree}" for r, tree in enumerate(trees))
        raise RaggedStepError(f"The replicas returned results of different structures: {listing}.")
    kinds = []
    for template, computed in zip(templates, numbers, strict=True):
        rest = iter(computed)
        kinds.append([next(rest) if kind is ARRAY else _GIVEN for kind in template.kinds])
    columns = zip(zip(*results, strict=True), zip(*kinds, strict=True), strict=True)
    return trees[0].unflatten([_column(list(values), set(kind)) for values, kind in columns])


def _column(values: list[Any], kinds: set[Any]) -> Any:
    """Join one leaf of the results. It is the same on all replicas if they have one kind, and that kind is a number."""
    first = values[0]
    if not all(map(is_array, values)):
        return first if all(is_same_object(v, first) for v in values) else PerReplica(values)
    if kinds == {_GIVEN} and all(v is first for v in values):
        return first
    if len(kinds) == 1 and _GIVEN not in kinds:
        return as_mirrored(first, len(values))
    if all(v.shape == first.shape and v.dtype == first.dtype for v in values):
        return PerReplica.from_stacked(jnp.stack([jnp.asarray(v) for v in values]))
    return PerReplica(values)
