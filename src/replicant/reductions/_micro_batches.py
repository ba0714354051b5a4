"""How the losses of micro-batches make that of the whole batch, found in the trace of one of them.

A loss is taken apart into the terms that are added in it. A sum over rows adds up with those of the other micro-batches. A mean
over the rows of a micro-batch is k times as large as its part of the whole. A term without rows, such as a penalty on weights,
would be added k times.
"""

import enum
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.extend.core as jex
import numpy as np

from ..errors import ReductionError
from ..tracing._graph import Constant, Graph, Line, Node, Operand, Value
from ..tracing._primitive_names import ADDITIVE, LINEAR
from ._causes import Input
from ._search import AVERAGE, Search

# The name of the part of a program in which scale_regularization_loss divides a penalty.
PENALTY = "replicant_regularization_loss"


class Kind(enum.Enum):
    """How a loss depends on the rows of a batch."""

    SUM = "a sum over rows"
    MEAN = "a mean over rows"
    CONSTANT = "the same for all rows"
    RATIO = "divided by what rows add up to"
    UNKNOWN = "unknown"


class _Term(NamedTuple):
    """A term of a loss: a product of known numbers and something else.

    Attributes:
        kind: How it depends on rows.
        size: Over how many values a mean is taken.
        divisor: By what it is divided in all.
        line: The line of the user's code that makes it.
    """

    kind: Kind
    size: int
    divisor: float
    line: Line | None


def kinds(jaxpr: jex.Jaxpr) -> list[Kind]:
    """Return of which kind each result of `jaxpr` is, whose inputs are the rows of a batch."""
    walk = _Walk(jaxpr, [f"input {i}" for i in range(len(jaxpr.invars))])
    found = [{term.kind for term in walk.terms(value)} for value in walk.graph.outputs]
    return [each.pop() if len(each) == 1 else Kind.UNKNOWN if each else Kind.CONSTANT for each in found]


def check(jaxpr: jex.Jaxpr, names: Sequence[str], number: int) -> None:
    """Check the loss of one micro-batch, which is the first result of `jaxpr`. What cannot be known is taken to be right.

    Args:
        jaxpr: The trace. Its inputs are the rows.
        names: The names of its inputs, as messages show them.
        number: The number of micro-batches.

    Raises:
        ReductionError: If the losses of all micro-batches do not add up to that of the whole batch.
    """
    walk = _Walk(jaxpr, names)
    for term in walk.terms(walk.graph.outputs[0]):
        if term.kind is Kind.MEAN and not _is_multiple(term.divisor / term.size, number):
            _refuse(
                term.line,
                f"This mean is taken over the {term.size} values of one micro-batch, and the losses of {number} micro-batches are "
                f"added up: the result is {number} times that of the whole batch. Write replicant.compute_average_loss("
                "per_example_loss, global_batch_size=...), or divide a sum by the number of rows of the whole batch.",
            )
        if term.kind is Kind.RATIO:
            _refuse(
                term.line,
                f"The loss is divided by a number that is computed from the rows of a micro-batch, and the losses of {number} "
                "micro-batches are added up, which is not the ratio of the whole batch. Divide by a number for the whole batch, "
                "computed outside of the function.",
            )
        if term.kind is Kind.CONSTANT:
            _refuse(
                term.line,
                f"A term of the loss does not depend on the rows of the micro-batch, and is added once for each of {number} "
                "micro-batches. Write replicant.scale_regularization_loss(penalty), or add it outside of the function.",
            )


def _refuse(line: Line | None, text: str) -> None:
    raise ReductionError(f"{line[0]}:{line[1]}: {text}" if line else text)


def _is_multiple(ratio: float, number: int) -> bool:
    """Whether a mean is also divided by the number of micro-batches, or by a multiple of it."""
    whole = round(ratio)
    return whole != 0 and whole % number == 0 and abs(ratio - whole) < 1e-4 * whole


def _sums(node: Node) -> bool:
    """Whether an equation adds up elements. A sum over no axis, as of a scalar, does not."""
    return node.name == "reduce_sum" and bool(node.eqn.params["axes"])


class _Walk:
    """Walks from a loss back to the sums over rows in it."""

    def __init__(self, jaxpr: jex.Jaxpr, names: Sequence[str]):
        self.graph = Graph(jaxpr)
        self._search = Search(self.graph, [Input(differs=True, argument=name) for name in names], 1)
        self._search.read()
        self._rows = {id(value) for value in self.graph.inputs}  # what is computed from rows
        self._unknown = {id(value) for value in (*self.graph.inputs, *self.graph.constants)}  # what is not made of numbers alone
        for node in self.graph.nodes:
            for found in (self._rows, self._unknown):
                if any(id(x) in found for x in node.inputs):
                    found |= {id(value) for value in node.outputs}

    def terms(self, loss: Operand) -> Iterator[_Term]:
        """Yield the terms of a loss."""
        todo: list[tuple[Operand, tuple[Node, ...], tuple[float, ...]]] = [(loss, (), ())]
        while todo:
            value, path, divisors = todo.pop()
            node = value.maker if isinstance(value, Value) else None
            if node is not None and PENALTY in str(node.eqn.source_info.name_stack):
                continue
            found = None if node is None else self._behind(node, summed=any(map(_sums, path)))
            if found is None:
                if not (isinstance(value, Constant) and value.number == 0):
                    yield self._term(value, path, divisors)
                continue
            assert node is not None, "something is behind it"
            further, divisor = found
            if divisor is not None and AVERAGE not in str(node.eqn.source_info.name_stack):
                divisors = (*divisors, divisor)
            todo += [(x, (*path, node), divisors) for x in further]

    def _behind(self, node: Node, *, summed: bool) -> tuple[Sequence[Operand], float | None] | None:
        """Return the operands of which an equation's result is a sum or multiple, and the divisor; None if it is neither.

        Once something is `summed`, only its factors matter: constants in a sum over rows are not terms of the loss.
        """
        if node.name in LINEAR:
            return node.inputs[:1], None
        if node.name in ADDITIVE and not summed:
            return node.inputs, None
        if node.name == "select_n" and not summed:  # as in a division that guards against zero
            return node.inputs[1:], None
        if node.name not in ("mul", "div"):
            return None
        a, b = node.inputs
        if math.prod(b.shape) == 1 and id(b) not in self._rows:
            number = self._number(b)
            return [a], None if not number else number if node.name == "div" else 1 / number
        if node.name == "mul" and math.prod(a.shape) == 1 and id(a) not in self._rows:
            number = self._number(a)
            return [b], 1 / number if number else None
        return None

    def _number(self, x: Operand) -> float | None:
        """Return the value of a scalar if it is made of numbers alone."""
        if isinstance(x, Constant):
            return x.number
        node = x.maker
        if node is None or id(x) in self._unknown or node.eqn.primitive.multiple_results or math.prod(x.shape) != 1:
            return None
        numbers = [self._number(each) for each in node.inputs]
        if None in numbers:
            return None
        operands = [np.full(v.aval.shape, number, v.aval.dtype) for v, number in zip(node.eqn.invars, numbers, strict=True)]
        with jax.ensure_compile_time_eval():
            return float(node.eqn.primitive.bind(*operands, **node.eqn.params).reshape(()))

    def _term(self, value: Operand, path: Sequence[Node], divisors: Sequence[float]) -> _Term:
        line = next((node.line for node in reversed(path)), None)
        divisor = math.prod(map(abs, divisors))
        if id(value) not in self._rows:
            return _Term(Kind.CONSTANT, 0, divisor, line)
        total = next((node for node in path if self._search.sums_rows(node)), None)
        maker = value.maker if isinstance(value, Value) else None
        if total is None and maker is not None and maker.name == "div" and math.prod(maker.inputs[1].shape) == 1:
            return _Term(Kind.RATIO, 0, divisor, maker.line)
        if total is None:
            return _Term(Kind.UNKNOWN, 0, divisor, line)
        shape = total.inputs[0].shape
        sizes = (math.prod(shape[axis] for axis in total.eqn.params["axes"]), shape[0], math.prod(shape))
        size = next((size for size in sizes for x in divisors if abs(x - size) < 1e-4 * size), 0)
        return _Term(Kind.MEAN if size else Kind.SUM, size, divisor, path[0].line if size else line)
