"""Tells which segments of a program are alike, so that one compiled program serves all of them."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np

from ..jaxprs._closed_jaxpr import ClosedJaxpr
from ..jaxprs._primitive_names import INLINED, JIT
from ._segments import Segment


class Alike:
    """Describes segments. Two of them are alike, so that they compute the same from the same inputs, if their keys are equal.

    Keys are strict: whatever this does not know is equal only to itself. They hold for as long as the program is kept.
    """

    def __init__(self) -> None:
        self._programs: dict[int, tuple[Any, Hashable]] = {}  # by id; the programs are kept, so that each id stays theirs

    def key(self, segment: Segment) -> Hashable:
        """Return the key of a segment."""
        return self._body(segment.eqns, segment.inputs, segment.outputs)

    def _body(self, eqns: Sequence[jex.JaxprEqn], inputs: Sequence[Any], outputs: Sequence[Any]) -> Hashable:
        numbers: dict[Any, int] = {}
        for v in inputs:
            numbers[v] = len(numbers)
        lines = []
        for eqn in eqns:
            operands = tuple([_literal(v) if isinstance(v, jex.Literal) else numbers[v] for v in eqn.invars])
            for v in eqn.outvars:
                numbers[v] = len(numbers)
            made = tuple([v.aval for v in eqn.outvars])
            lines.append((eqn.primitive.name, id(eqn.primitive), operands, made, self._params(eqn), eqn.ctx))
        returned = tuple([_literal(v) if isinstance(v, jex.Literal) else numbers[v] for v in outputs])
        return tuple([v.aval for v in inputs]), tuple(lines), returned

    def _params(self, eqn: jex.JaxprEqn) -> Hashable:
        params: Mapping[str, Any] = eqn.params
        if eqn.primitive.name in INLINED - {JIT}:  # they mean no more than their body; the rest says how to differentiate it
            params = {key: value for key, value in params.items() if _is_program(value)}
        return tuple([(key, self._value(params[key])) for key in sorted(params)])

    def _value(self, value: Any) -> Hashable:
        if _is_program(value):
            return self._program(value)
        if isinstance(value, bool | int | float | complex):  # 0.0 and -0.0 are equal, but not the same; so are 1 and True
            return type(value), repr(value)
        if isinstance(value, tuple | list):
            return type(value), tuple([self._value(item) for item in value])
        if isinstance(value, dict):
            return dict, tuple(sorted((repr(key), self._value(item)) for key, item in value.items()))
        try:
            hash(value)
        except TypeError:
            return type(value), id(value)
        return type(value), value

    def _program(self, program: Any) -> Hashable:
        known = self._programs.get(id(program))
        if known is None:
            jaxpr, consts = (program.jaxpr, program.consts) if isinstance(program, ClosedJaxpr) else (program, ())
            key = (tuple(map(id, consts)), self._body(jaxpr.eqns, (*jaxpr.constvars, *jaxpr.invars), jaxpr.outvars))
            known = self._programs[id(program)] = (program, key)
        return known[1]


def _is_program(value: Any) -> bool:
    return isinstance(value, ClosedJaxpr | jex.Jaxpr)


def _literal(literal: jex.Literal) -> Hashable:
    value = literal.val
    if isinstance(value, jax.Array):
        return id(value)
    array = np.asarray(value)
    return literal.aval, array.dtype.str, array.tobytes()
