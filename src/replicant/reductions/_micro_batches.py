"""Losses of which k micro-batches do not add up to that of the whole batch, found in the trace of one of them.

A loss is taken apart into the terms that are added in it. A mean over the rows of a micro-batch is k times as large as its part of
the whole, and a term without rows, such as a penalty on weights, is added k times. Whatever cannot be known for certain is taken to
be right.
"""

import math
from collections.abc import Iterator, Sequence

import jax.extend.core as jex

from ..errors import ReductionError
from ..tracing._graph import Graph, Line, Node, Operand, Value
from ..tracing._primitive_names import ADDITIVE, LINEAR
from ._causes import Input, Mean
from ._search import Search

# The name of the part of a program in which scale_regularization_loss divides a penalty.
PENALTY = "replicant_regularization_loss"


def check(jaxpr: jex.Jaxpr, names: Sequence[str], number: int) -> None:
    """Check the loss of one micro-batch, which is the first result of `jaxpr`.

    Args:
        jaxpr: The trace. Its inputs are the rows.
        names: The names of its inputs, as messages show them.
        number: The number of micro-batches.

    Raises:
        ReductionError: If the losses of all micro-batches do not add up to that of the whole batch.
    """
    graph = Graph(jaxpr)
    search = Search(graph, [Input(differs=True, argument=name) for name in names], number, least=1)
    search.read()
    for term, divisor, mean in _terms(graph, search):
        if mean is not None and not _is_multiple(divisor / mean.size, number):
            _refuse(
                mean.node.line,
                f"This mean is taken over the {mean.size} values of one micro-batch, and the losses of {number} micro-batches are "
                f"added up: the result is {number} times that of the whole batch. Write replicant.compute_average_loss("
                "per_example_loss, global_batch_size=...), or divide a sum by the number of rows of the whole batch.",
            )
        if term is not None:
            _refuse(
                None if term.maker is None else term.maker.line,
                f"A term of the loss does not depend on the rows of the micro-batch, and is added once for each of {number} "
                "micro-batches. Write replicant.scale_regularization_loss(penalty), or add it outside of the function.",
            )


def _refuse(line: Line | None, text: str) -> None:
    raise ReductionError(f"{line[0]}:{line[1]}: {text}" if line else text)


def _is_multiple(ratio: float, number: int) -> bool:
    """Whether a mean is also divided by the number of micro-batches, or by a multiple of it."""
    whole = round(ratio)
    return whole != 0 and whole % number == 0 and abs(ratio - whole) < 1e-4 * whole


def _terms(graph: Graph, search: Search) -> Iterator[tuple[Value | None, float, Mean | None]]:
    """Yield the terms of the loss that need a look: one without rows, or the divisor of a sum, and the mean that it belongs to."""
    rows = _with_rows(graph)
    todo: list[tuple[Operand, float, Mean | None]] = [(graph.outputs[0], 1.0, None)]
    seen: set[int] = set()
    while todo:
        value, divisor, mean = todo.pop()
        if not isinstance(value, Value) or id(value) in seen:
            continue
        seen.add(id(value))
        node = value.maker
        if node is not None and PENALTY in str(node.eqn.source_info.name_stack):
            continue
        if id(value) not in rows:
            yield value, divisor, None
            continue
        assert node is not None or mean is None, "an input is no sum"
        factor = None if node is None else node.factor()
        if node is None:
            continue
        if factor is not None:
            todo.append((factor[0], divisor * abs(factor[1]), search.mean_at(node) or mean))
        elif node.name in ADDITIVE:
            todo += [(x, divisor, mean) for x in node.inputs]
        elif (rest := _rest(node, rows)) is not None:
            todo.append((rest, divisor, mean))
        elif mean is not None:
            yield None, divisor, mean


def _rest(node: Node, rows: set[int]) -> Operand | None:
    """What is scaled or reshaped; None if the equation does something else."""
    if node.name in LINEAR:
        return node.inputs[0]
    if node.name in ("mul", "div"):
        a, b = node.inputs
        if math.prod(b.shape) == 1 and id(b) not in rows:
            return a
        if node.name == "mul" and math.prod(a.shape) == 1 and id(a) not in rows:
            return b
    return None


def _with_rows(graph: Graph) -> set[int]:
    """The values that were computed from rows."""
    found = {id(value) for value in graph.inputs}
    for node in graph.nodes:
        if any(id(x) in found for x in node.inputs):
            found |= {id(value) for value in node.outputs}
    return found
