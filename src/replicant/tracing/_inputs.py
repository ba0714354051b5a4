"""Inputs that a trace gets while it is under way: the variables and numbers that the traced code turns out to use.

What is used for the first time leaves an equation in the trace that defines it. When the trace has ended, what these equations
define become inputs of its jaxpr.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax
import jax.extend.core as jex

from .jaxprs._closed_jaxpr import ClosedJaxpr

_input_p = jex.Primitive("replicant_input")


@_input_p.def_abstract_eval
def _shape_of_input(anchor: Any, *, aval: Any, number: int) -> Any:
    del anchor, number
    return aval


def make_jaxpr(fn: "Callable[..., list[Any]]", *args: Any, axes: Sequence[tuple[str, int]] = ()) -> "tuple[ClosedJaxpr, Inputs]":
    """Trace ``fn(inputs, *args)``. `Inputs.arranged` makes of the jaxpr one that can be computed.

    Args:
        fn: The function.
        *args: Its arguments.
        axes: The names and sizes of axes to bind in it.
    """
    made: list[Inputs] = []

    def flat(anchor: Any, *args: Any) -> list[Any]:
        made.append(Inputs(anchor))
        return fn(made[-1], *args)

    return jax.make_jaxpr(flat, axis_env=axes or None)(jax.ShapeDtypeStruct((), bool), *args), made[-1]


class Inputs:
    """The inputs that one trace gets under way.

    Args:
        anchor: A value of that trace. Without it, a block of ``jax.ensure_compile_time_eval`` would compute the inputs.
    """

    def __init__(self, anchor: Any):
        with jex.take_current_trace() as self._trace:
            pass
        self._anchor = anchor
        self._numbers: dict[Hashable, int] = {}

    def take(self, key: Hashable, aval: Any) -> Any:
        """Return a new input of the trace, also from inside a loop or branch that is traced in it."""
        self._numbers[key] = number = len(self._numbers)
        with jex.set_current_trace(self._trace):
            return _input_p.bind(self._anchor, aval=aval, number=number)

    def arranged(
        self, closed: ClosedJaxpr, first: Iterable[tuple[Hashable, Any]], last: Iterable[tuple[Hashable, Any]] = ()
    ) -> ClosedJaxpr:
        """Return the jaxpr that the trace became, with its new inputs before and after the others.

        Args:
            closed: The jaxpr, as `make_jaxpr` has returned it.
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
        arguments = None if info.arg_names is None else (*names[0], *info.arg_names[1:], *names[1])
        changed = jaxpr.replace(
            invars=[*before, *jaxpr.invars[1:], *after],
            eqns=[eqn for eqn in jaxpr.eqns if eqn.primitive is not _input_p],
            debug_info=info._replace(arg_names=arguments),
        )
        return ClosedJaxpr(changed, closed.consts)
