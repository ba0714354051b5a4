"""Steps in which the replicas have different sizes: the last batch of an epoch, or a batch smaller than the number of replicas.

An SPMD program needs equal shapes. So here every device gets the whole (small) batch, the replica function is traced once per
replica on its exact rows, and one program computes the traces side by side. At an exchange, each replica waits for the others. The
answers are computed from the exact values, and all continue. The result equals that of one device, and the step takes at most as
long as n ordinary steps. XLA merges what is the same on all replicas (the optimizer's update).
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...errors import RaggedStepError
from ...reductions import _checks, _unequal
from ...reductions._causes import Input
from ...reductions._same_values import Numbering
from ...replicas._collectives import ReduceOp, mean_of
from ...replicas._context import as_mirrored
from ...replicas._copies import VariableAggregation
from ...replicas._values import PerReplica, is_array, is_same_object
from ...tracing._inputs import Inputs, make_jaxpr
from ...tracing.gradients._exchange_gradients import exchange
from ...tracing.jaxprs._closed_jaxpr import ClosedJaxpr
from ...tracing.jaxprs._marks import exchange_p, sync_p
from ...tracing.replicas._interpreter import Question, evaluate
from ...variables._recorder import Facts
from ...variables._ref import Ref
from ..arguments._replica_inputs import moves
from ._pathless_gradients import learn
from ._replica_step import Replica, ReplicaStep, check_agreement

Rows = list[list[Any]]  # one list per replica


class _Suspended(BaseException):
    """A replica's trace has reached an exchange for which the shapes of the answer are not known yet. Never reaches the user.

    Not an Exception: Keras replaces those that come out of a layer, and a replica function may catch them.
    """


class _Question:
    """One replica's side of an exchange: its name, what the replica contributes, and how to compute the answers of all replicas."""

    def __init__(self, label: str, shapes: list[jax.ShapeDtypeStruct], objects: Sequence[Any], joint: Callable[[Rows], Rows]):
        self.label = label
        self.shapes = shapes
        self.objects = objects
        self.joint = joint


class RaggedGroup:
    """The group of a replica that is traced separately. `replica_id` is an input of the trace.

    Attributes:
        open: The questions, by their numbers, on which the replicas have not agreed yet.
    """

    def __init__(self, num_replicas: int, index: int, facts: Facts, *, guesses: bool):
        self.num_replicas = num_replicas
        self.index = index
        self.open: dict[int, _Question] = {}
        self._id: Any = None
        self._facts = facts
        self._guesses = guesses
        self._count = 0

    def begin(self, replica_id: Any) -> None:
        """Start a new trace."""
        self._id, self._count = replica_id, 0

    def replica_id(self) -> jax.Array:
        return self._id

    def all_reduce(self, op: ReduceOp, leaves: Sequence[jax.Array]) -> list[jax.Array]:
        def joint(rows: Rows) -> Rows:
            sums = [_total(column) for column in zip(*rows, strict=True)]
            answer = [mean_of(x, self.num_replicas) for x in sums] if op is ReduceOp.MEAN else sums
            return [answer] * self.num_replicas

        return self._ask("all_reduce", leaves, joint, same_shapes=True, rule=op.name)

    def all_gather(self, leaf: jax.Array, axis: int) -> jax.Array:
        def joint(rows: Rows) -> Rows:
            return [[jnp.concatenate([row[0] for row in rows], axis=axis)]] * self.num_replicas

        return self._ask("all_gather", [leaf], joint, same_shapes=False, free_axis=axis)[0]

    def merge(self, fn: Callable[..., Any], leaves: Sequence[jax.Array], objects: Sequence[Any]) -> list[jax.Array]:
        index = self._count

        def joint(rows: Rows) -> Rows:
            columns = fn([list(column) for column in zip(*rows, strict=True)], self._facts.objects[index])
            return [list(row) for row in zip(*columns, strict=True)] or [[] for _ in rows]

        return self._ask("merge_call", leaves, joint, same_shapes=False, free_axis=None, check=False, objects=objects)

    def _ask(
        self,
        label: str,
        leaves: Sequence[jax.Array],
        joint: Callable[[Rows], Rows],
        *,
        same_shapes: bool,
        free_axis: int | None = None,
        check: bool = True,
        rule: str = "",
        objects: Sequence[Any] = (),
    ) -> list[jax.Array]:
        index, self._count = self._count, self._count + 1
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]

        def checked(rows: Rows) -> Rows:
            if check:
                _check_shapes(label, rows, None if same_shapes else free_axis)
            return joint(rows)

        if index in self._facts.answers:
            asked, answers = self._facts.answers[index]
        else:
            self.open[index] = _Question(label, shapes, objects, checked)
            if not (same_shapes and self._guesses):
                raise _Suspended
            asked = [shapes] * self.num_replicas  # the others must have the same, so the trace goes on
            answers = jax.eval_shape(checked, asked)
        if label == "merge_call":  # calling its function also determines the structure of the result
            jax.eval_shape(checked, asked)
        out_shapes = tuple(answers[self.index])
        agrees = label != "merge_call"
        answer = exchange(*leaves, joint=checked, label=label, rule=rule, index=index, agrees=agrees, out_shapes=out_shapes)
        return list(answer)


def _total(values: Sequence[Any]) -> Any:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def _check_shapes(label: str, rows: Rows, free_axis: int | None) -> None:
    if len({len(row) for row in rows}) > 1:
        listing = ", ".join(f"replica {i}: {len(row)}" for i, row in enumerate(rows))
        raise RaggedStepError(f"{label} needs the same number of arrays on each replica; got {listing}.")
    for column in zip(*rows, strict=True):
        shapes = [x.shape for x in column]
        fixed = {tuple(d for k, d in enumerate(s) if k != free_axis) for s in shapes}
        if len(fixed) > 1 or len({x.dtype for x in column}) > 1:
            listing = ", ".join(f"replica {i}: {x.dtype}{list(x.shape)}" for i, x in enumerate(column))
            rule = "equal shapes and dtypes" if free_axis is None else f"equal dtypes and (except along axis {free_axis}) shapes"
            raise RaggedStepError(f"{label} needs {rule} on all replicas; got {listing}.")


def run_ragged(step: ReplicaStep) -> Any:
    """Compute one step with replicas of different sizes."""
    n, cross = step.num_replicas, step.cross
    leaves = step.inputs.leaves
    moving = [i for i, x in enumerate(leaves) if moves(x)]
    rows = [step.inputs.of_replica(r) for r in range(n)]
    arrays = [[jnp.asarray(rows[r][i]) for i in moving] for r in range(n)]
    replicas = [_RaggedReplica(step, moving, r) for r in range(n)]
    refs, jaxprs = _trace_together(step, replicas, arrays)
    step.check_owners(refs)
    flags = [ref.copies(n) for ref in refs]
    raws = [cross.read_raw(ref) for ref in refs]
    inputs = [
        [*[raw[r] if flag else raw for raw, flag in zip(raws, flags, strict=True)], jnp.asarray(r, jnp.int32), *arrays[r]]
        for r in range(n)
    ]
    varying_inputs = [*flags, True, *[isinstance(leaves[i], PerReplica) for i in moving]]
    kinds_of_inputs = [Input(varies, None if i <= len(refs) else "args") for i, varies in enumerate(varying_inputs)]
    unequal = _unequal.find([closed.jaxpr for closed in jaxprs], kinds_of_inputs, [replica.counts for replica in replicas])
    _checks.tell(unequal, step.strategy.told, strict=step.strategy.strict)

    made = _number(step, replicas, refs, jaxprs, varying_inputs)
    has_rows = [step.inputs.has_rows(r) for r in range(n)]
    answers = _compute_together(jaxprs, inputs, varying_inputs, has_rows)
    _write_back(step, replicas, answers)
    filled = [replica.fill(answers[r][: replica.num_results], rows[r]) for r, replica in enumerate(replicas)]
    given = [_GIVEN] * len(leaves)
    kinds = [replica.fill(numbers, given, _GIVEN) for replica, numbers in zip(replicas, made, strict=True)]
    return _regroup(filled, kinds)


_GIVEN = "given"  # the kind of a result that was not computed; the kind of any other result is its number


def _number(
    step: ReplicaStep,
    replicas: "Sequence[_RaggedReplica]",
    refs: list[Ref],
    jaxprs: Sequence[ClosedJaxpr],
    varying_inputs: list[bool],
) -> list[list[int]]:
    """Number the replicas' results: equal numbers mean equal values. Raise if a variable's copies would differ."""
    n = step.num_replicas
    numbering = Numbering(jaxprs)
    rows = [numbering.results(closed, varying_inputs) for closed in jaxprs]
    if step.inputs.objects_differ:  # then code that the traces do not show, such as a callback to the host, may differ too
        rows = [[numbering.fresh() for _ in row] for row in rows]
    written = [
        dict(zip(replica.written, row[replica.num_results :], strict=True)) for replica, row in zip(replicas, rows, strict=True)
    ]
    all_written = list(dict.fromkeys(ref for stored in written for ref in stored))
    # A replica that does not write a variable leaves it as it was.
    stored = [[mine.get(ref, numbering.input(refs.index(ref))) for mine in written] for ref in all_written]
    check_agreement(all_written, [len(set(numbers)) > 1 for numbers in stored], n)
    return [row[: replica.num_results] for replica, row in zip(replicas, rows, strict=True)]


class _RaggedReplica(Replica):
    """The trace of one of several replicas of different sizes."""

    def __init__(self, step: ReplicaStep, moving: list[int], index: int):
        super().__init__(step, moving, may_cut=False)
        self.index = index
        self.counts: list[_checks.Count] = []
        self.open: dict[int, _Question] = {}

    def trace_with(self, arrays: list[Any], facts: Facts, *, guesses: bool) -> ClosedJaxpr:
        """Return the jaxpr of the replica, without its variables among the inputs. The first one is the replica id."""
        group = RaggedGroup(self._step.num_replicas, self.index, facts, guesses=guesses)
        self.open = group.open

        def flat(inputs: Inputs, replica_id: Any, values: list[Any]) -> list[Any]:
            group.begin(replica_id)
            has_rows = self._step.inputs.has_rows(self.index)
            try:
                return self._flat(inputs, values, group, facts, has_rows=has_rows, index=self.index)
            finally:
                self.counts = [_checks.Count(*count) for count in self._step.counts]

        return make_jaxpr(flat, jnp.asarray(self.index, jnp.int32), arrays)[0]


def _trace_together(step: ReplicaStep, replicas: Sequence[_RaggedReplica], arrays: Rows) -> tuple[list[Ref], list[ClosedJaxpr]]:
    """Trace all replicas, and repeat that while the traces teach which gradients are None.

    Returns:
        The variables that any of the replicas uses, and the jaxprs. These have the variables as their first inputs.

    A gradient is None if no replica has a path to its source. So all replicas exchange the same gradients. If only some replicas
    have no path, these get zeros. This decides what the exchanges carry, so their answers are worked out again each time.
    """
    facts, undo_effects = step.facts(), step.cross.undo_effects
    facts.several = True
    while True:
        facts.answers.clear()
        jaxprs = _until_answered(replicas, arrays, facts, undo_effects)
        replicas[0].check_made()
        if not learn(facts, [closed.jaxpr for closed in jaxprs]):
            refs = list(dict.fromkeys(ref for replica in replicas for ref in replica.layouts))
            return refs, [replica.arranged(closed, refs) for replica, closed in zip(replicas, jaxprs, strict=True)]
        undo_effects()


def _until_answered(
    replicas: Sequence[_RaggedReplica], arrays: Rows, facts: Facts, undo_effects: Callable[[], None]
) -> list[ClosedJaxpr]:
    """Trace all replicas. When they meet in an exchange with unknown shapes, work the shapes out and start again."""
    guesses = True
    while True:
        traces: list[ClosedJaxpr] = []
        try:
            for replica in replicas:
                with contextlib.suppress(_Suspended):
                    traces.append(replica.trace_with(arrays[replica.index], facts, guesses=guesses))
        except Exception:
            if not (guesses and any(replica.open for replica in replicas)):
                raise
            guesses = False  # if a guess was wrong, that is told, and not what came of it
        else:
            _agree([replica.open for replica in replicas], facts)
            if len(traces) == len(replicas):
                return traces
        undo_effects()


def _agree(questions: Sequence[dict[int, _Question]], facts: Facts) -> None:
    """Note the answers to the replicas' questions. Raise if they do not ask the same."""
    for index in sorted(set().union(*questions)):
        asked = [mine[index] for mine in questions if index in mine]
        if len(asked) < len(questions) or len({question.label for question in asked}) > 1:
            listing = ", ".join(question.label for question in asked)
            raise RaggedStepError(
                f"{len(asked)} of {len(questions)} replicas wait in an exchange ({listing}) that the others do not make. All "
                "replicas must make the same exchanges in the same order: do not let the size of the batch decide whether to "
                "exchange."
            )
        shapes = [question.shapes for question in asked]
        facts.objects[index] = _together([question.objects for question in asked])
        facts.answers[index] = (shapes, jax.eval_shape(asked[0].joint, shapes))


def _together(rows: Sequence[Sequence[Any]]) -> list[Any]:
    """Combine the Python objects that the replicas bring to an exchange, with None in place of arrays."""
    kinds = [[x is None for x in row] for row in rows]
    if any(kind != kinds[0] for kind in kinds):
        listing = ", ".join(f"replica {r}: {list(row)}" for r, row in enumerate(rows))
        raise RaggedStepError(
            "merge_call needs arguments of the same structure on all replicas, with arrays in the same places; got "
            f"{listing} (None stands for an array)."
        )
    return [x[0] if all(is_same_object(x[0], other) for other in x) else PerReplica(x) for x in zip(*rows, strict=True)]


def _compute_together(jaxprs: Sequence[ClosedJaxpr], inputs: Rows, varying: list[bool], has_rows: list[bool]) -> Rows:
    """Evaluate the replicas' traces side by side, in the trace of the surrounding program."""
    machines = [evaluate(closed.jaxpr, closed.consts, values, varying, None) for closed, values in zip(jaxprs, inputs, strict=True)]
    results: Rows = [[] for _ in machines]
    questions: dict[int, Question] = {}
    for r, machine in enumerate(machines):
        _advance(machine, None, r, questions, results)
    while questions:
        if len(questions) < len(machines) or len({_kind(q) for q in questions.values()}) > 1:
            listing = ", ".join(f"replica {r}: {_kind(q)[1]}" for r, q in questions.items())
            raise RaggedStepError(
                f"Only some replicas make the exchange ({listing}). All replicas must make the same exchanges in the same order: "
                "do not let the size of the batch decide whether to exchange."
            )
        asked = [questions[r] for r in range(len(machines))]
        questions = {}
        for r, answer in enumerate(_answer(asked, has_rows)):
            _advance(machines[r], answer, r, questions, results)
    return results


def _advance(machine: Any, answer: Any, r: int, questions: dict[int, Question], results: Rows) -> None:
    try:
        questions[r] = machine.send(answer)
    except StopIteration as stop:
        results[r] = stop.value


def _kind(question: Question) -> tuple[str, str, int]:
    name, params = question.eqn.primitive.name, question.eqn.params
    if question.eqn.primitive is exchange_p:
        return name, f"{params['label']}{params['rule'] and ' ' + params['rule']}", params["index"]
    return name, f"assignment with aggregation={params['aggregation'].name}", params["index"]


def _answer(asked: list[Question], has_rows: list[bool]) -> Rows:
    if asked[0].eqn.primitive is sync_p:
        return _answer_sync(asked, has_rows)
    return asked[0].eqn.params["joint"]([q.values for q in asked])


def _answer_sync(asked: list[Question], has_rows: list[bool]) -> Rows:
    """Compute what the replicas store in a variable with an aggregation. Replicas without rows do not count in batch statistics."""
    params = asked[0].eqn.params
    values = [q.values[0] for q in asked]
    if params["rows_only"] and any(has_rows):
        values = [v for v, rows in zip(values, has_rows, strict=True) if rows]
    match params["aggregation"]:
        case VariableAggregation.SUM:
            answer = _total(values)
        case VariableAggregation.MEAN:
            answer = (_total(values) / len(values)).astype(values[0].dtype)
        case _:
            answer = values[0]
    return [[answer]] * len(asked)


def _write_back(step: ReplicaStep, replicas: Sequence[_RaggedReplica], answers: Rows) -> None:
    n, cross = step.num_replicas, step.cross
    written: dict[Any, None] = {}
    for replica in replicas:
        written.update(dict.fromkeys(replica.written))
    for ref in written:
        copies = []
        for r, replica in enumerate(replicas):
            if ref in replica.written:
                copies.append(answers[r][replica.num_results + replica.written.index(ref)])
            else:  # this replica has not written it
                copies.append(cross.read_raw(ref)[r] if ref.copies(n) else None)
        cross.write_raw(ref, jnp.stack(copies) if ref.copies(n) else next(c for c in copies if c is not None))


def _regroup(results: Sequence[Any], kinds: Sequence[Any]) -> Any:
    """Join the replicas' results into one structure, given the kinds of their leaves."""
    flat = [jax.tree.flatten(result, is_leaf=lambda x: x is None) for result in results]
    trees = [tree for _, tree in flat]
    if any(tree != trees[0] for tree in trees):
        listing = ", ".join(f"replica {r}: {tree}" for r, tree in enumerate(trees))
        raise RaggedStepError(f"The replicas returned results of different structures: {listing}.")
    kind_rows = [jax.tree.leaves(kind, is_leaf=lambda x: x is None) for kind in kinds]
    columns = zip(zip(*[leaves for leaves, _ in flat], strict=True), zip(*kind_rows, strict=True), strict=True)
    return jax.tree.unflatten(trees[0], [_column(list(values), set(kind)) for values, kind in columns])


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
