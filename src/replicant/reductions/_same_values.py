"""Which values are the same on all replicas, if each replica was traced by itself.

Python code sees how many rows a replica has, so it may compute something else on each replica without reading a row. It is
therefore not enough that a value was computed from nothing that varies (``_varying.py``): all replicas must have computed it from
the same things in the same way. Each value gets a number, and two values have the same number if the same operations computed them
from the same inputs, constants and results of exchanges. A value that may differ gets a number of its own.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex
import numpy as np
from jax.core import Tracer

from ..errors import RaggedStepError
from ..tracing.jaxprs._closed_jaxpr import ClosedJaxpr
from ..tracing.jaxprs._fingerprint import Reader
from ..tracing.jaxprs._marks import exchange_p, gradient_p, has_exchanges, own_p, scan_counts, sync_p
from ..tracing.replicas._varying import Reached, Varying, body_of_call

_OWN = "own"  # stands for an operand that differs, where the result does not depend on it


class Numbering:
    """Numbers the results of several replicas' traces, so that equal numbers mean equal values.

    Args:
        programs: The traces of the replicas.
    """

    def __init__(self, programs: Sequence[ClosedJaxpr]):
        self._numbers: dict[Any, int] = {}
        self._next = itertools.count()
        self._differing: set[int] = set()
        self._reader = Reader()
        self._shared = set.intersection(*[{id(value) for value in program.consts} for program in programs])
        self._exchanges = 0  # so far, in one trace
        self._conditions: list[Any] = []  # of branches and loops with exchanges, in the first trace
        self._met = 0  # of these, so far
        self._depth = 0  # of loops in loops

    def results(self, program: ClosedJaxpr, varying: Sequence[bool]) -> list[int]:
        """The numbers of the results of one replica's trace; `varying` says which of its inputs differ between the replicas."""
        self._exchanges = self._met = 0
        inputs = [self.fresh() if differs else self.input(i) for i, differs in enumerate(varying)]
        return self._walk(program.jaxpr, program.consts, inputs)

    def input(self, position: int) -> int:
        """The number of an input that all replicas share."""
        return self._number(("input", position))

    def _number(self, key: Any) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = next(self._next)
        return number

    def fresh(self) -> int:
        """A new number, for a value about which nothing is known."""
        number = next(self._next)
        self._differing.add(number)
        return number

    def _constant(self, value: Any) -> int:
        if id(value) in self._shared or isinstance(value, Tracer):  # a tracer belongs to the enclosing program, which is alive
            return self._number(("object", id(value)))
        return self._number(("constant", self._reader.array(value)))

    def _walk(self, jaxpr: jex.Jaxpr, consts: Sequence[Any], inputs: Sequence[int]) -> list[int]:
        numbers: dict[Any, int] = dict(zip(jaxpr.invars, inputs, strict=True))
        numbers.update(zip(jaxpr.constvars, map(self._constant, consts), strict=True))
        varying = Varying(jaxpr, [number in self._differing for number in inputs])

        def read(var: Any) -> int:
            return self._constant(np.asarray(var.val, _dtype(var))) if isinstance(var, jex.Literal) else numbers[var]

        for eqn in jaxpr.eqns:
            numbers.update(zip(eqn.outvars, self._equation(eqn, list(map(read, eqn.invars)), varying), strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _equation(self, eqn: jex.JaxprEqn, inputs: list[int], varying: Varying) -> list[int]:
        if eqn.primitive is own_p or _changes_nothing(eqn):
            return inputs
        if eqn.primitive is gradient_p:  # depends on the path from its sources to its target, not only on these
            return [self.fresh() for _ in eqn.outvars]
        if eqn.primitive in (sync_p, exchange_p):
            index, self._exchanges = self._exchanges, self._exchanges + 1
            agrees = eqn.primitive is sync_p or eqn.params["agrees"]
            return [self._number(("answer", index, i)) if agrees else self.fresh() for i in range(len(eqn.outvars))]
        body = body_of_call(eqn)
        if body is not None:
            closed = body if isinstance(body, ClosedJaxpr) else ClosedJaxpr(body, ())
            return self._walk(closed.jaxpr, closed.consts, inputs)
        if eqn.primitive.name in ("cond", "while") and has_exchanges([eqn]):
            self._check_condition(eqn, inputs, varying)
        if all(map(varying, eqn.outvars)):
            return [self.fresh() for _ in eqn.outvars]
        keys = self._keys(eqn, inputs, varying)
        return [self.fresh() if varying(v) else self._number(key) for v, key in zip(eqn.outvars, keys, strict=True)]

    def _check_condition(self, eqn: jex.JaxprEqn, inputs: list[int], varying: Varying) -> None:
        """Refuse exchanges where replicas may go different ways.

        Raises:
            RaggedStepError: If it is not known that all replicas compute the condition from the same things in the same way.
        """
        start, condition = self._exchanges, inputs[0]
        if eqn.primitive.name == "while":
            condition = self._number(self._while(eqn, inputs, varying, tests_only=True))
        self._exchanges, self._met = start, self._met + 1
        if self._met > len(self._conditions):
            self._conditions.append(condition)
        if self._conditions[self._met - 1] != condition:
            raise RaggedStepError(
                "The replicas have different numbers of rows in this step, and an exchange is inside a branch or loop "
                f"({eqn.primitive.name}) whose condition they do not compute in the same way, such as from their numbers of rows. "
                "Those that enter it would wait for the others forever. Compute the condition from variables or from reduced "
                "values, or move the exchange outside."
            )

    def _keys(self, eqn: jex.JaxprEqn, inputs: list[int], varying: Varying) -> list[Any]:
        """What identifies each result of an equation."""
        name, params = eqn.primitive.name, eqn.params
        if name == "cond":
            branches = [self._walk(branch.jaxpr, branch.consts, inputs[1:]) for branch in params["branches"]]
            return [("cond", inputs[0], *made) for made in zip(*branches, strict=True)]
        if name == "scan":
            return self._scan(eqn, inputs, varying)
        if name == "while":
            return self._while(eqn, inputs, varying)
        operation = self._reader.operation(eqn)
        operands = tuple(_OWN if number in self._differing else number for number in inputs)
        return [(operation, operands, v.aval.str_short(), i) for i, v in enumerate(eqn.outvars)]

    def _scan(self, eqn: jex.JaxprEqn, inputs: list[int], varying: Varying) -> list[Any]:
        body, (k, num_carry) = eqn.params["jaxpr"], scan_counts(eqn)
        start = inputs[k : k + num_carry]
        rows = [self.fresh() if x in self._differing else self._number(("row", x)) for x in inputs[k + num_carry :]]
        made, reached = self._body(body, inputs[:k], eqn.outvars[:num_carry], rows, varying)
        loop = "scan", eqn.params["length"], eqn.params["reverse"]
        return [(*loop, i, result, _system(start, made, reached[i])) for i, result in enumerate(made)]

    def _while(self, eqn: jex.JaxprEqn, inputs: list[int], varying: Varying, *, tests_only: bool = False) -> Any:
        test, body, t = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"], eqn.params["cond_nconsts"]
        k = t + eqn.params["body_nconsts"]
        made, reached = self._body(body, inputs[t:k], eqn.outvars, [], varying)
        self._depth += 1
        (goes_on,) = self._walk(test.jaxpr, test.consts, [*inputs[:t], *self._carries(eqn.outvars, varying)])
        self._depth -= 1
        asked = set().union(*[reached[i] for i in _reaching(test.jaxpr, t, len(made))[0]])
        if tests_only:
            return "while", goes_on, _system(inputs[k:], made, asked)
        return [("while", i, goes_on, _system(inputs[k:], made, reached[i] | asked)) for i in range(len(made))]

    def _carries(self, outvars: Sequence[Any], varying: Varying) -> list[int]:
        """The values that a loop carries, as its body sees them."""
        return [self.fresh() if varying(v) else self._number(("carry", self._depth, i)) for i, v in enumerate(outvars)]

    def _body(
        self, body: ClosedJaxpr, consts: Sequence[int], carries: Sequence[Any], rows: Sequence[int], varying: Varying
    ) -> tuple[list[int], list[set[int]]]:
        """The results of a loop's body, and which of the carried values reach each of them in some iteration."""
        self._depth += 1
        made = self._walk(body.jaxpr, body.consts, [*consts, *self._carries(carries, varying), *rows])
        self._depth -= 1
        count = len(carries)
        reached = [mine | ({i} if i < count else set()) for i, mine in enumerate(_reaching(body.jaxpr, len(consts), count))]
        while True:
            further = [mine.union(*[reached[j] for j in mine]) for mine in reached]
            if further == reached:
                return made, reached
            reached = further


def _reaching(body: jex.Jaxpr, start: int, count: int) -> list[set[int]]:
    """For each result, which of the `count` inputs from `start` on reach it."""
    found: list[set[int]] = [set() for _ in body.outvars]
    for k in range(count):
        outputs = Reached(body, [i == start + k for i in range(len(body.invars))]).outputs
        for mine, reaches in zip(found, outputs, strict=True):
            mine.update([k] if reaches else [])
    return found


def _system(start: Sequence[int], made: Sequence[int], reached: set[int]) -> tuple[Any, ...]:
    """How the values that a loop carries start, and how each iteration computes them."""
    return tuple((i, start[i], made[i]) for i in sorted(reached))


def _changes_nothing(eqn: jex.JaxprEqn) -> bool:
    """Whether an equation only makes a weakly typed value strongly typed."""
    return eqn.primitive.name == "convert_element_type" and _dtype(eqn.invars[0]) == _dtype(eqn.outvars[0])


def _dtype(var: Any) -> Any:
    return var.aval.dtype
