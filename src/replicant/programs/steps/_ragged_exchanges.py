"""The exchanges of replicas that are traced one by one: what each of them asks, and how they agree on the answers."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from ...errors import RaggedStepError
from ...replicas._collectives import ReduceOp, mean_of
from ...replicas._values import PerReplica, is_same_object
from ...tracing.gradients._exchange_gradients import exchange
from ...variables._recorder import Facts

Rows = list[list[Any]]  # one list per replica


class Suspended(BaseException):
    """A replica's trace has reached an exchange for which the shapes of the answer are not known yet. Never reaches the user.

    Not an Exception: Keras replaces those that come out of a layer, and a replica function may catch them.
    """


@dataclasses.dataclass(frozen=True)
class Question:
    """One replica's side of an exchange: its name, what the replica contributes, and how to compute the answers of all replicas."""

    label: str
    shapes: list[jax.ShapeDtypeStruct]
    objects: Sequence[Any]
    joint: Callable[[Rows], Rows]


Questions: TypeAlias = dict[int, Question]  # by their numbers


class RaggedGroup:
    """The group of a replica that is traced separately.

    Args:
        num_replicas: The number of replicas.
        index: The number of this one.
        replica_id: The same number, as an input of the trace.
        facts: Which answers are known. The others are asked for.
        asked: Receives the questions, by their numbers, on which the replicas have not agreed yet.
        guesses: Whether to go on as if the others asked with the same shapes, where all must.
    """

    def __init__(self, num_replicas: int, index: int, replica_id: Any, facts: Facts, asked: Questions, *, guesses: bool):
        self.num_replicas = num_replicas
        self.index = index
        self._id = replica_id
        self._facts = facts
        self._asked = asked
        self._guesses = guesses
        self._count = 0

    def replica_id(self) -> jax.Array:
        return self._id

    def all_reduce(self, op: ReduceOp, leaves: Sequence[jax.Array]) -> list[jax.Array]:
        def joint(rows: Rows) -> Rows:
            sums = [total_of(column) for column in zip(*rows, strict=True)]
            answer = [mean_of(x, self.num_replicas) for x in sums] if op is ReduceOp.MEAN else sums
            return [answer] * self.num_replicas

        return self._ask("all_reduce", leaves, joint, rule=op.name)

    def all_gather(self, leaf: jax.Array, axis: int) -> jax.Array:
        def joint(rows: Rows) -> Rows:
            return [[jnp.concatenate([row[0] for row in rows], axis=axis)]] * self.num_replicas

        return self._ask("all_gather", [leaf], joint, free_axis=axis)[0]

    def merge(self, fn: Callable[..., Any], leaves: Sequence[jax.Array], objects: Sequence[Any]) -> list[jax.Array]:
        index = self._count

        def joint(rows: Rows) -> Rows:
            columns = fn([list(column) for column in zip(*rows, strict=True)], self._facts.objects[index])
            return [list(row) for row in zip(*columns, strict=True)] or [[] for _ in rows]

        return self._ask("merge_call", leaves, joint, objects=objects)

    def _ask(
        self,
        label: str,
        leaves: Sequence[jax.Array],
        joint: Callable[[Rows], Rows],
        *,
        free_axis: int | None = None,
        rule: str = "",
        objects: Sequence[Any] = (),
    ) -> list[jax.Array]:
        index, self._count = self._count, self._count + 1
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
        agrees = label != "merge_call"

        def checked(rows: Rows) -> Rows:
            if agrees:
                _check_shapes(label, rows, free_axis)
            return joint(rows)

        if index in self._facts.answers:
            asked, answers = self._facts.answers[index]
        else:
            self._asked[index] = Question(label, shapes, objects, checked)
            if not (agrees and free_axis is None and self._guesses):
                raise Suspended
            asked = [shapes] * self.num_replicas  # the others must have the same, so the trace goes on
            answers = jax.eval_shape(checked, asked)
        if not agrees:  # calling its function also determines the structure of the result
            jax.eval_shape(checked, asked)
        out_shapes = tuple(answers[self.index])
        in_shapes = tuple(map(tuple, asked)) if agrees else None
        kind = {"label": label, "rule": rule, "index": index, "agrees": agrees}
        return list(exchange(*leaves, joint=checked, in_shapes=in_shapes, out_shapes=out_shapes, **kind))


def total_of(values: Sequence[Any]) -> Any:
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


def agree(questions: Sequence[Questions], facts: Facts) -> None:
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
            f"{listing} (None means an array)."
        )
    return [x[0] if all(is_same_object(x[0], other) for other in x) else PerReplica(x) for x in zip(*rows, strict=True)]
