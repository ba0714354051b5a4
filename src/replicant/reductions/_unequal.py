"""Means over the rows of replicas that have different numbers of rows, as in the last batch of an epoch.

The sum of such means over the replicas is not the mean of the whole batch, whatever it is divided by: a row of a replica with few
rows counts more than one of the others. The mistake shows in the traces: what a tape differentiates is a sum over rows, divided by
a number that is not the same on all replicas.
"""

from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex

from ..tracing.jaxprs._graph import Graph, Line, Operand, Value
from ..tracing.jaxprs._marks import gradient_p
from ..tracing.jaxprs._primitive_names import ADDITIVE, LINEAR
from ._causes import Finding, Input, Mean
from ._checks import Count
from ._search import Search


def find(jaxprs: Sequence[jex.Jaxpr], inputs: Sequence[Input], counts: Sequence[Sequence[Count]]) -> list[Finding]:
    """The mistakes in the traces of unequal replicas; `inputs` describes the input variables of each trace."""
    found = _averages(counts)
    told = {finding.line for finding in found}
    divisors = [_divisors(jaxpr, inputs, len(jaxprs)) for jaxpr in jaxprs]
    for line in dict.fromkeys(line for each in divisors for line in each):
        numbers = [each[line] for each in divisors if line in each]
        # A replica without rows divides by zero.
        if line not in told and (len(numbers) < len(jaxprs) or max(numbers) - min(numbers) > 1e-4 * max(numbers)):
            found.append(
                Finding(
                    "This mean is taken over the rows of one replica, and the replicas have different numbers of rows in this "
                    "step. So rows of the smaller ones count more, and the sum over the replicas is not the mean of the whole "
                    "batch. Write replicant.compute_average_loss(per_example_loss, global_batch_size=...).",
                    line,
                )
            )
    return found


def _averages(counts: Sequence[Sequence[Count]]) -> list[Finding]:
    """The calls of ``compute_average_loss`` without a size; `counts` has one list per replica."""
    found = []
    for calls in zip(*counts, strict=False):
        rows = [call.num_rows for call in calls]
        listing = f"{', '.join(map(str, rows[:-1]))} and {rows[-1]}"
        if len(set(rows)) > 1 and all(call.global_batch_size is None and call.line == calls[0].line for call in calls):
            found.append(
                Finding(
                    f"compute_average_loss was given no global_batch_size, but the replicas have {listing} examples. The mean of "
                    "each replica then counts equally, so the sum over the replicas is not the mean of the whole batch. Pass "
                    "global_batch_size, the number of rows of the whole batch, which is the size that the dataset was batched "
                    "with.",
                    calls[0].line,
                )
            )
    return found


def _divisors(jaxpr: jex.Jaxpr, inputs: Sequence[Input], num_replicas: int) -> dict[Line, float]:
    """By what the targets of tapes divide sums over rows; for each, the line that computes the mean."""
    graph = Graph(jaxpr)
    search = Search(graph, inputs, num_replicas, least=1)
    search.read()
    found: dict[Line, float] = {}
    for mark in graph.nodes:
        if mark.eqn.primitive is gradient_p:
            for target in mark.inputs[: mark.eqn.params["num_targets"]]:
                _follow(target, search, found)
    return found


def _follow(target: Operand, search: Search, found: dict[Line, float]) -> None:
    seen: set[int] = set()
    todo: list[tuple[Operand, float, Mean | None]] = [(target, 1.0, None)]
    while todo:
        value, divisor, mean = todo.pop()
        node = value.maker if isinstance(value, Value) and id(value) not in seen else None
        seen.add(id(value))
        factor = None if node is None else node.factor()
        if node is not None and factor is not None:
            todo.append((factor[0], divisor * abs(factor[1]), search.mean_at(node) or mean))
        elif node is not None and (node.name in LINEAR or node.name in ADDITIVE):
            todo += [(x, divisor, mean) for x in node.inputs]
        elif node is not None and (rest := _scaled(node, search)) is not None:
            todo.append((rest, divisor, mean))
        elif mean is not None and mean.node.line is not None:
            found[mean.node.line] = divisor


def _scaled(node: Any, search: Search) -> Operand | None:
    """What is multiplied by a number that is the same on all replicas, such as a loss scale; None if nothing is."""
    if node.name not in ("mul", "div"):
        return None
    a, b = node.inputs
    if search.is_known_factor(b):
        return a
    return b if node.name == "mul" and search.is_known_factor(a) else None
