"""Inputs that a trace gets while it is under way: the variables and numbers that the traced code turns out to use.

What is used for the first time leaves an equation without operands in the trace. When the trace has ended, what these equations
define become inputs of its jaxpr.
"""

from collections.abc import Hashable, Iterable
from typing import Any

import jax.extend.core as jex

from ._closed_jaxpr import ClosedJaxpr

_input_p = jex.Primitive("replicant_input")


@_input_p.def_abstract_eval
def _shape_of_input(*, aval: Any, number: int) -> Any:
    del number
    return aval


class Inputs:
    """The inputs that one trace gets under way. It is made in that trace."""

    def __init__(self) -> None:
        with jex.take_current_trace() as self._trace:
            pass
        self._numbers: dict[Hashable, int] = {}

    def take(self, key: Hashable, aval: Any) -> Any:
        """Return a new input of the trace, also from inside a loop or branch that is traced in it."""
        self._numbers[key] = number = len(self._numbers)
        with jex.set_current_trace(self._trace):
            return _input_p.bind(aval=aval, number=number)

    def arranged(
        self, closed: ClosedJaxpr, first: Iterable[tuple[Hashable, Any]], last: Iterable[tuple[Hashable, Any]] = ()
    ) -> ClosedJaxpr:
        """Return the jaxpr that the trace became, with its new inputs before and after the others.

        Args:
            closed: The jaxpr.
            first: The keys and avals of the inputs before the others, and no others. The jaxpr ignores those that it did not take.
            last: Those after the others.
        """
        jaxpr = closed.jaxpr
        taken = {eqn.params["number"]: eqn.outvars[0] for eqn in jaxpr.eqns if eqn.primitive is _input_p}

        def variable(key: Hashable, aval: Any) -> Any:
            return taken.get(self._numbers.get(key, -1)) or jex.Var(aval)

        before, after = ([variable(*each) for each in part] for part in (first, last))
        info: Any = jaxpr.debug_info
        names = [[f"{what} {i}" for i in range(len(part))] for what, part in (("variable", before), ("number", after))]
        arguments = None if info.arg_names is None else (*names[0], *info.arg_names, *names[1])
        changed = jaxpr.replace(
            invars=[*before, *jaxpr.invars, *after],
            eqns=[eqn for eqn in jaxpr.eqns if eqn.primitive is not _input_p],
            debug_info=info._replace(arg_names=arguments),
        )
        return ClosedJaxpr(changed, closed.consts)
