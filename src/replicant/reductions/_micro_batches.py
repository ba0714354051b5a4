"""How the losses of micro-batches make that of the whole batch, found in the trace of one of them.

A loss is taken apart into the terms that are added in it. A sum over rows adds up with those of the other micro-batches. A mean
over the rows of a micro-batch is k times as large as its part of the whole. A term without rows, such as a penalty on weights,
would be added k times.
"""

import enum
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.core import Tracer

from ..errors import ReductionError
from ..replicas._own_mesh import at_once
from ..tracing.jaxprs._closed_jaxpr import ClosedJaxpr
from ..tracing.jaxprs._graph import Constant, Graph, Line, Node, Operand, Value
from ..tracing.jaxprs._primitive_names import ADDITIVE, CONCATENATE, LINEAR
from ._causes import Input
from ._search import AVERAGE, Search

# The name of the part of a program in which scale_regularization_loss divides a penalty.
PENALTY = "replicant_regularization_loss"
_MOST_NUMBERS = 16  # of a constant, such as a shape
_DIGITS = 0.02  # of a divisor; 16 bits hold no more


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
        divisor: By what it is divided in all.
        line: The line of the user's code that makes it.
    """

    kind: Kind
    divisor: float
    line: Line | None


def kinds(jaxpr: ClosedJaxpr, double: ClosedJaxpr) -> list[Kind]:
    """Return of which kind each result of `jaxpr` is, whose inputs are rows. `double` is the trace for twice as many."""
    names = [f"input {i}" for i in range(len(jaxpr.jaxpr.invars))]
    found = [{term.kind for term in terms} for terms in _compared(jaxpr, double, names)]
    return [each.pop() if len(each) == 1 else Kind.UNKNOWN if each else Kind.CONSTANT for each in found]


def _compared(jaxpr: ClosedJaxpr, double: ClosedJaxpr, names: Sequence[str]) -> Iterator[list[_Term]]:
    """Yield the terms of each result. What is divided by twice as much for twice as many rows is a mean over them.

    The divisor alone does not tell: 0.5 may be a factor, or the share of one of two rows.
    """
    walks = _Walk(jaxpr, names), _Walk(double, names)
    for one, two in zip(walks[0].graph.outputs, walks[1].graph.outputs, strict=True):
        terms, others = list(walks[0].terms(one)), list(walks[1].terms(two))
        if [term.kind for term in terms] != [term.kind for term in others]:
            terms, others = [_Term(Kind.UNKNOWN, 1, None)], [_Term(Kind.UNKNOWN, 1, None)]
        yield [_grown(*pair) for pair in zip(terms, others, strict=True)]


def _grown(term: _Term, other: _Term) -> _Term:
    growth = other.divisor / term.divisor
    if term.kind in (Kind.CONSTANT, Kind.RATIO) or abs(growth - 1) < _DIGITS:
        return term
    return term._replace(kind=Kind.MEAN if abs(growth - 2) < _DIGITS else Kind.UNKNOWN)


def check(jaxpr: ClosedJaxpr, double: ClosedJaxpr, names: Sequence[str], number: int) -> None:
    """Check the loss of one micro-batch, which is the first result of `jaxpr`. What cannot be known is taken to be right.

    Args:
        jaxpr: The trace. Its inputs are the rows.
        double: The trace for twice as many rows.
        names: The names of its inputs, as messages show them.
        number: The number of micro-batches.

    Raises:
        ReductionError: If the losses of all micro-batches do not add up to that of the whole batch.
    """
    for term in next(_compared(jaxpr, double, names)):
        if term.kind is Kind.MEAN:
            _refuse(
                term.line,
                f"This mean is taken over the rows of one micro-batch, but the losses of {number} micro-batches are added up, "
                "whatever number of rows each has. Write replicant.compute_average_loss(per_example_loss, global_batch_size=...), "
                "or divide a sum by the number of rows of the whole batch.",
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


def _sums(node: Node) -> bool:
    """Whether an equation adds up elements. A sum over no axis, as of a scalar, does not."""
    return node.name == "reduce_sum" and bool(node.eqn.params["axes"])


def _stack_of_scalars(node: Node) -> Node | None:
    """Return the equation that stacks scalars which `node` adds up, or None if that is not what `node` does."""
    stack = node.inputs[0].maker if _sums(node) and isinstance(node.inputs[0], Value) else None
    if stack is None or stack.name != CONCATENATE or any(math.prod(x.shape) != 1 for x in stack.inputs):
        return None
    return stack


class _Walk:
    """Walks from a loss back to the sums over rows in it."""

    def __init__(self, closed: ClosedJaxpr, names: Sequence[str]):
        self.graph = Graph(closed.jaxpr)
        self._small = {  # constants such as shapes, from which Keras computes the divisor of a mean
            id(value): np.asarray(x)
            for value, x in zip(self.graph.constants, closed.consts, strict=True)
            if not isinstance(x, Tracer) and math.prod(np.shape(x)) <= _MOST_NUMBERS
        }
        self._search = Search(self.graph, [Input(differs=True, argument=name) for name in names], 1)
        self._search.read()
        self._rows = {id(value) for value in self.graph.inputs}  # what is computed from rows
        outer = (*self.graph.inputs, *self.graph.constants)
        self._unknown = {id(value) for value in outer if id(value) not in self._small}  # what is not made of numbers alone
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
            node = _stack_of_scalars(node) or node
            if divisor is not None and AVERAGE not in str(node.eqn.source_info.name_stack):
                divisors = (*divisors, divisor)
            todo += [(x, (*path, node), divisors) for x in further]

    def _behind(self, node: Node, *, summed: bool) -> tuple[Sequence[Operand], float | None] | None:
        """Return the operands of which an equation's result is a sum or multiple, and the divisor; None if it is neither.

        Once something is `summed`, only its factors matter: constants in a sum over rows are not terms of the loss.
        """
        stack = _stack_of_scalars(node)
        if stack is not None:
            return stack.inputs, None
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
        found = self._value(x) if math.prod(x.shape) == 1 else None
        return None if found is None else float(found.reshape(()))

    def _value(self, x: Operand) -> Any:
        """Return the array of a few numbers that `x` is, if it is made of numbers alone."""
        if isinstance(x, Constant):
            return None if x.number is None else np.asarray(x.number)
        if id(x) in self._small:
            return self._small[id(x)]
        node = x.maker
        if node is None or id(x) in self._unknown or node.eqn.primitive.multiple_results or math.prod(x.shape) > _MOST_NUMBERS:
            return None
        values = [self._value(each) for each in node.inputs]
        if any(value is None for value in values):
            return None
        operands = [
            np.broadcast_to(value.astype(v.aval.dtype), v.aval.shape) for v, value in zip(node.eqn.invars, values, strict=True)
        ]
        with at_once():
            return np.asarray(node.eqn.primitive.bind(*operands, **node.eqn.params))

    def _term(self, value: Operand, path: Sequence[Node], divisors: Sequence[float]) -> _Term:
        line = next((node.line for node in reversed(path)), None)
        divisor = math.prod(map(abs, divisors))
        if id(value) not in self._rows:
            return _Term(Kind.CONSTANT, divisor, line)
        total = next((node for node in path if self._search.sums_rows(node)), None)
        maker = value.maker if isinstance(value, Value) else None
        if total is None and maker is not None and maker.name == "div" and math.prod(maker.inputs[1].shape) == 1:
            return _Term(Kind.RATIO, divisor, maker.line)
        return _Term(Kind.UNKNOWN if total is None else Kind.SUM, divisor, line if total is None else path[0].line)
