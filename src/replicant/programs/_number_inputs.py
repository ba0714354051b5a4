"""Checks that a program with a number as its input computes the same as the program with that number as a constant.

A tracer instead of a Python number can change what code does without any error: ``isinstance(rate, float)``, a format, a library
that promotes dtypes differently. So both jaxprs are walked with the number known, and operations on known scalars are carried out.
What remains must be the same operations, in the same order, on the same shapes, dtypes and (except for rounding) scalars.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax.extend.core as jex
import numpy as np

from ..tracing._closed_jaxpr import ClosedJaxpr
from ..tracing._marks import inner_jaxprs, scan_counts

# Parameters that depend on the number of constants that a body closes over.
_COUNTS = ("num_consts", "cond_nconsts", "body_nconsts", "linear", "donated_invars", "in_layouts", "in_shardings", "name")


def computes_the_same(constant: ClosedJaxpr, with_input: ClosedJaxpr, inputs: Sequence[Any]) -> bool:
    """Return whether `with_input` computes with `inputs` what `constant` computes. Each input is a number, or None for an array."""
    ours = _Walk(with_input.jaxpr, inputs)
    theirs = _Walk(constant.jaxpr, [None] * len(constant.jaxpr.invars))
    return (
        len(ours.steps) == len(theirs.steps) and all(map(_alike, ours.steps, theirs.steps)) and _alike(ours.results, theirs.results)
    )


def _alike(a: Any, b: Any) -> bool:
    """Return whether two values are equal, except for the rounding of scalars."""
    if isinstance(a, tuple | list):
        return isinstance(b, tuple | list) and len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, np.ndarray):
        if not isinstance(b, np.ndarray) or a.dtype != b.dtype:
            return False
        if a.dtype.kind in "biu":
            return bool(a == b)
        narrow = a.dtype.itemsize < 4
        return math.isclose(float(a), float(b), rel_tol=1e-2 if narrow else 1e-5, abs_tol=1e-37) or (
            math.isnan(a) and math.isnan(b)
        )
    if isinstance(a, float) and math.isnan(a):  # what a gather puts where an index is out of range
        return isinstance(b, float) and math.isnan(b)
    return bool(a == b)


class _Walk:
    """The operations of a jaxpr, except those that use only known scalars."""

    def __init__(self, jaxpr: jex.Jaxpr, inputs: Sequence[Any]):
        self._known: dict[Any, Any] = {v: x for v, x in zip(jaxpr.invars, inputs, strict=True) if x is not None}
        self._uniform: dict[Any, Any] = {}  # arrays of one known scalar
        self.steps: list[Any] = []
        for eqn in jaxpr.eqns:
            self._step(eqn)
        self.results = [self._result(v) for v in jaxpr.outvars]

    def _value(self, var: Any) -> Any:
        if isinstance(var, jex.Literal):
            aval: Any = var.aval
            return np.asarray(var.val, aval.dtype) if aval.shape == () else None
        return self._known.get(var)

    def _operand(self, var: Any) -> Any:
        value = self._value(var)
        if value is not None:
            return value
        uniform = None if isinstance(var, jex.Literal) else self._uniform.get(var)
        aval: Any = var.aval
        return (aval.shape, aval.dtype if uniform is None else uniform)

    def _result(self, var: Any) -> Any:
        uniform = None if isinstance(var, jex.Literal) else self._uniform.get(var)
        return self._operand(var) if uniform is None else uniform

    def _step(self, eqn: jex.JaxprEqn) -> None:
        values = [self._value(v) for v in eqn.invars]
        bodies = list(_bodies(eqn, values))
        if bodies:
            unknown = [self._operand(v) for v, x in zip(eqn.invars, values, strict=True) if x is None]
            changing = [self._operand(v) for v in _changing(eqn)]
            self.steps.append((eqn.primitive.name, unknown, changing, _plain_params(eqn, but=_COUNTS)))
            for body, known in bodies:
                inner = _Walk(body, known)
                self.steps += inner.steps
                if len(bodies) == 1 and len(inner.results) == len(eqn.outvars) and eqn.primitive.name not in ("scan", "while"):
                    found = zip(eqn.outvars, inner.results, strict=True)
                    self._known.update({v: x for v, x in found if isinstance(x, np.ndarray)})
            return
        if all(v is not None for v in values) and all(_is_scalar(v.aval) for v in eqn.outvars) and not eqn.effects and values:
            answer = eqn.primitive.bind(*values, **eqn.params)
            answers = answer if eqn.primitive.multiple_results else [answer]
            self._known.update(zip(eqn.outvars, map(np.asarray, answers), strict=True))
            return
        if eqn.primitive.name == "broadcast_in_dim" and len(values) == 1 and values[0] is not None:
            self._uniform[eqn.outvars[0]] = values[0]
            return
        self.steps.append(
            (
                eqn.primitive.name,
                [self._operand(v) for v in eqn.invars],
                [(_shaped(v).shape, _shaped(v).dtype) for v in eqn.outvars],
                _plain_params(eqn),
            )
        )


def _shaped(var: Any) -> Any:
    """Return the abstract value of a variable, for which JAX has no public type."""
    return var.aval


def _is_scalar(aval: Any) -> bool:
    return aval.shape == () and isinstance(aval.dtype, np.dtype)


def _changing(eqn: jex.JaxprEqn) -> list[Any]:
    """Return the operands that can change between runs of an equation's bodies, or that choose among the bodies."""
    params = eqn.params
    if eqn.primitive.name == "scan":
        return eqn.invars[scan_counts(eqn)[0] :]
    if eqn.primitive.name == "while":
        return eqn.invars[params["cond_nconsts"] + params["body_nconsts"] :]
    return eqn.invars[:1] if eqn.primitive.name == "cond" else []


def _plain_params(eqn: jex.JaxprEqn, but: Sequence[str] = ()) -> list[tuple[str, Any]]:
    if eqn.primitive.name.startswith("replicant_"):  # marks, which are numbered in the order of the trace
        return []
    return [(key, value) for key, value in sorted(eqn.params.items()) if key not in but and _is_plain(value)]


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | np.dtype)


def _bodies(eqn: jex.JaxprEqn, values: list[Any]) -> Iterator[tuple[jex.Jaxpr, list[Any]]]:
    """Yield the jaxprs inside an equation, and the known values of their inputs."""
    name = eqn.primitive.name
    for i, body in enumerate(inner_jaxprs(eqn)):
        known = list(values)
        if name == "while":
            consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
            start = 0 if i == 0 else consts[0]
            known = known[start : start + consts[i]]
        elif name == "cond":
            known = known[1:]
        elif name == "scan":
            known = known[: scan_counts(eqn)[0]]
        count = len(body.invars)
        padded = (known + [None] * count)[:count]
        yield body, [x if _shaped(var).shape == () else None for x, var in zip(padded, body.invars, strict=True)]
