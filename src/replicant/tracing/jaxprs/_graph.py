"""A traced replica function as one flat graph, in which each body of a call, loop or branch is written out once.

It answers where a value comes from and where it goes. Loops are written out once, and so are all branches of a condition, which is
enough to follow dependence. The graph is never evaluated.
"""

import dataclasses
import functools
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax.extend.core as jex

from ._marks import inner_jaxprs, scan_counts
from ._primitive_names import CALLS


class Value:
    """A variable of the graph."""

    __slots__ = ("aval", "maker")

    def __init__(self, aval: Any):
        self.aval = aval
        self.maker: Node | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value; () if it has none."""
        return tuple(getattr(self.aval, "shape", ()))


@dataclasses.dataclass(frozen=True)
class Constant:
    """A constant that is written into the program. `number` is None unless it is a plain scalar."""

    number: float | None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a scalar, because only scalar constants matter."""
        return ()


Operand = Value | Constant


@dataclasses.dataclass(eq=False)
class Node:
    """One equation.

    Args:
        eqn: The equation.
        inputs: Its operands.
        outputs: Its results.
        backward: Whether ``jax.grad`` made it for a backward pass.
        around: The equations in whose bodies it lies, the innermost first.
    """

    eqn: Any
    inputs: list[Operand]
    outputs: list[Value]
    backward: bool
    around: tuple[Any, ...]

    @property
    def line(self) -> "Line | None":
        """The line of the user's code that made it: the innermost one outside Replicant, JAX, Keras and Optax."""
        return next((line for eqn in (self.eqn, *self.around) if (line := _users_line(eqn)) is not None), None)

    @property
    def name(self) -> str:
        """The name of its primitive."""
        return self.eqn.primitive.name

    def factor(self) -> "tuple[Operand, float] | None":
        """Return the operand and the divisor if it divides or multiplies by a constant of the program; otherwise None."""
        if self.name not in ("div", "mul"):
            return None
        a, b = self.inputs
        if isinstance(b, Constant) and b.number:
            return a, b.number if self.name == "div" else 1 / b.number
        if self.name == "mul" and isinstance(a, Constant) and a.number:
            return b, 1 / a.number
        return None


class Graph:
    """The equations of a jaxpr and everything inside them, in order."""

    def __init__(self, jaxpr: jex.Jaxpr):
        self.nodes: list[Node] = []
        self._around: tuple[Any, ...] = ()  # the equations whose bodies are being written out
        self.constants = [Value(v.aval) for v in jaxpr.constvars]
        self.inputs = [Value(v.aval) for v in jaxpr.invars]
        self.outputs = self._inline(jaxpr, self.constants, self.inputs, backward=False)

    def _inline(self, jaxpr: jex.Jaxpr, consts: Sequence[Operand], inputs: Sequence[Operand], *, backward: bool) -> list[Operand]:
        env: dict[Any, Operand] = dict(zip(jaxpr.constvars, consts, strict=True))
        env.update(zip(jaxpr.invars, inputs, strict=True))

        def read(var: Any) -> Operand:
            return Constant(_number(var.val)) if isinstance(var, jex.Literal) else env[var]

        for eqn in jaxpr.eqns:
            operands = [read(v) for v in eqn.invars]
            inside = backward or "transpose(" in str(eqn.source_info.name_stack)
            results = self._through(eqn, operands, backward=inside)
            if results is None:
                results = self._add(eqn, operands, [Value(v.aval) for v in eqn.outvars], backward=inside)
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _add(self, eqn: Any, operands: Sequence[Operand], outputs: list[Value], *, backward: bool) -> list[Value]:
        node = Node(eqn, list(operands), outputs, backward, self._around)
        for value in outputs:
            value.maker = node
        self.nodes.append(node)
        return outputs

    def _through(self, eqn: Any, operands: list[Operand], *, backward: bool) -> Sequence[Operand] | None:
        """Write out the bodies of an equation and return its results; None for an equation without bodies."""
        name, params = eqn.primitive.name, eqn.params
        bodies = inner_jaxprs(eqn)
        inline = functools.partial(self._body, eqn, backward=backward)
        if name in CALLS and len(bodies) == 1 and len(bodies[0].invars) == len(operands):
            return inline(bodies[0], operands)
        if name == "scan":
            num_consts, carry = scan_counts(eqn)
            fixed = num_consts + carry
            rows = [self._add(eqn, [x], [Value(v.aval)], backward=backward)[0] for x, v in zip(
                operands[fixed:], bodies[0].invars[fixed:], strict=True)]  # fmt: skip
            results = inline(bodies[0], [*operands[:fixed], *rows])
            stacked = [self._add(eqn, [x], [Value(v.aval)], backward=backward)[0] for x, v in zip(
                results[carry:], eqn.outvars[carry:], strict=True)]  # fmt: skip
            return [*results[:carry], *stacked]
        if name == "while":
            tests, consts = params["cond_nconsts"], params["body_nconsts"]
            return inline(params["body_jaxpr"].jaxpr, operands[tests : tests + consts] + operands[tests + consts :])
        if name == "cond":
            branches = [inline(body, operands[1:]) for body in bodies]
            joined = [[operands[0], *column] for column in zip(*branches, strict=True)]
            return [self._add(eqn, column, [Value(v.aval)], backward=backward)[0] for column, v in zip(
                joined, eqn.outvars, strict=True)]  # fmt: skip
        return None

    def _body(self, eqn: Any, jaxpr: jex.Jaxpr, operands: Sequence[Operand], *, backward: bool) -> list[Operand]:
        outside, self._around = self._around, (eqn, *self._around)
        results = self._inline(jaxpr, [Value(v.aval) for v in jaxpr.constvars], operands, backward=backward)
        self._around = outside
        return results


def _number(value: Any) -> float | None:
    try:
        return float(value) if getattr(value, "shape", ()) == () else None
    except (TypeError, ValueError):
        return None


def ancestors(values: Sequence[Operand]) -> Iterator[Value]:
    """Iterate over `values` and everything that they were computed from, each once."""
    seen: set[int] = set()
    todo = [v for v in values if isinstance(v, Value)]
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if value.maker is not None:
            todo += [v for v in value.maker.inputs if isinstance(v, Value)]


@functools.cache
def _folders_of(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(os.path.dirname(str(sys.modules[name].__file__)) + os.sep for name in names)  # noqa: PTH120


Line = tuple[str, int]  # a file and a line of it


def _users_line(eqn: Any) -> Line | None:
    traceback = eqn.source_info.traceback
    frames = traceback.frames if traceback is not None else ()
    return next(((f.file_name, f.line_num) for f in frames if _is_users(f.file_name)), None)


def calling_line() -> Line | None:
    """Return the innermost line of the user's code in the current stack."""
    frame = sys._getframe(1)  # noqa: SLF001 - Python has no other name for it
    while frame is not None:
        if _is_users(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def _is_users(file: str) -> bool:
    libraries = tuple(name for name in ("replicant", "jax", "jaxlib", "keras", "optax") if name in sys.modules)
    return not file.startswith((*_folders_of(libraries), "<frozen"))
