"""Evaluates replicas of different sizes side by side: at an exchange, each waits for the others, and all get their answers.

Where exchanges lie on the path of a gradient, what one replica computes also depends on the sources of the others. So the paths of
all replicas are one function, from the sources of all to the targets of all, and ``jax.vjp`` differentiates that. Each replica's
gradient is then the sum over the targets of all replicas, as where equal replicas differentiate a collective.
"""

from collections.abc import Sequence
from typing import Any

import jax

from ...errors import RaggedStepError
from ...replicas._copies import VariableAggregation
from ...tracing.jaxprs._marks import exchange_p, gradient_p, sync_p
from ...tracing.replicas._interpreter import pull_rows
from ...tracing.replicas._requests import Answer, JointControl, JointPath, JointPull, JointPullback, Question, Request, Steps
from ._joint_control import compute_together, kind_of
from ._ragged_exchanges import Rows, total_of


def side_by_side(replicas: Sequence[Steps[Any]], has_rows: Sequence[bool]) -> list[Any]:
    """Evaluate all replicas, and return what each of them returns.

    Args:
        replicas: The steps of each replica.
        has_rows: Whether each replica has rows.

    Raises:
        RaggedStepError: If not all replicas make the same exchanges.
    """
    results: list[Any] = [None] * len(replicas)
    requests: dict[int, Request] = {}
    for r, steps in enumerate(replicas):
        _advance(steps, None, r, requests, results)
    while requests:
        asked = _of_all(requests, len(replicas))
        requests = {}
        for r, answer in enumerate(_answer(asked, has_rows)):
            _advance(replicas[r], answer, r, requests, results)
    return results


def _advance(steps: Steps[Any], answer: Any, r: int, requests: dict[int, Request], results: list[Any]) -> None:
    try:
        requests[r] = steps.send(answer)
    except StopIteration as stop:
        results[r] = stop.value


def _of_all(requests: dict[int, Request], num_replicas: int) -> list[Any]:
    if len(requests) < num_replicas or len({_kind(request) for request in requests.values()}) > 1:
        listing = ", ".join(f"replica {r}: {_kind(request)[1]}" for r, request in requests.items())
        raise RaggedStepError(
            f"Only some replicas make the exchange ({listing}). All replicas must make the same exchanges in the same order: "
            "do not let the size of the batch decide whether to exchange."
        )
    return [requests[r] for r in range(num_replicas)]


def _kind(request: Request) -> tuple[str, str, int]:
    if isinstance(request, JointControl):
        return kind_of(request)
    name, params = request.eqn.primitive.name, request.eqn.params
    if request.eqn.primitive is exchange_p:
        return name, f"{params['label']}{params['rule'] and ' ' + params['rule']}", params["index"]
    if request.eqn.primitive is gradient_p:
        return type(request).__name__, "a gradient through exchanges", params["call"]
    return name, f"assignment with aggregation={params['aggregation'].name}", params["index"]


def _answer(asked: list[Any], has_rows: Sequence[bool]) -> Sequence[Any]:
    match asked[0]:
        case JointPath():
            return _differentiate(asked, has_rows)
        case JointPull():
            return _pull(asked)
        case JointControl():
            return compute_together(asked, lambda replicas: side_by_side(replicas, has_rows))
        case _ if asked[0].eqn.primitive is sync_p:
            return _sync(asked, has_rows)
        case _:
            return asked[0].eqn.params["joint"]([question.values for question in asked])


def answer_alone(has_rows: Sequence[bool]) -> Answer:
    """Return what answers the exchanges of the only replica, also in loops and on the paths of gradients."""
    return lambda question: _answer([question], has_rows)[0]


def _differentiate(asked: Sequence[JointPath], has_rows: Sequence[bool]) -> list[tuple[JointPullback, list[Any]]]:
    """Evaluate the paths of all replicas as one function, and return its pullback to each, with the replica's inner values."""

    def forward(sources: Rows) -> tuple[Rows, Rows]:
        paths = [request.evaluate(mine) for request, mine in zip(asked, sources, strict=True)]
        targets, made = zip(*side_by_side(paths, has_rows), strict=True)
        return list(targets), list(made)

    _, pull, made = jax.vjp(forward, [request.sources for request in asked], has_aux=True)
    shared = JointPullback(lambda cotangents: pull(cotangents)[0])
    return [(shared, values) for values in made]


def _pull(asked: Sequence[JointPull]) -> Rows:
    """Return the gradients of each replica: of the targets of all replicas, each with its cotangents."""
    rows = [request.eqn.params["rows"] for request in asked]
    if len(set(rows)) > 1:
        raise RaggedStepError(
            f"tape.jacobian of a target with {rows} elements on the replicas: exchanges lie between it and its sources, so all "
            "replicas compute it together, and need equal numbers. Take the jacobian of a target of the same shape on all "
            "replicas, or exchange after it."
        )
    cotangents = [request.cotangents for request in asked]
    return pull_rows(asked[0].pullback.pull, cotangents, rows[0], at_once=asked[0].eqn.params["at_once"])


def _sync(asked: Sequence[Question], has_rows: Sequence[bool]) -> Rows:
    """Compute what the replicas store in a variable with an aggregation. Replicas without rows do not count in batch statistics."""
    params = asked[0].eqn.params
    values = [q.values[0] for q in asked]
    if params["rows_only"] and any(has_rows):
        values = [v for v, rows in zip(values, has_rows, strict=True) if rows]
    match params["aggregation"]:
        case VariableAggregation.SUM:
            answer = total_of(values)
        case VariableAggregation.MEAN:
            answer = (total_of(values) / len(values)).astype(values[0].dtype)
        case _:
            answer = values[0]
    return [[answer]] * len(asked)
