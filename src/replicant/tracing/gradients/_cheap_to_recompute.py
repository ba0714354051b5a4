"""Finds the values of a jaxpr that are cheap to compute again: those that depend only on gathered variables and on held arrays."""

from collections.abc import Callable, Iterable

import jax.extend.core as jex

from ..jaxprs._marks import MARKERS, has_markers, inner_jaxprs, own_p

Atom = jex.Var | jex.Literal


class LightValues:
    """The *light* values of a jaxpr: gathered values, and what is computed from these and from held arrays or scalars alone.

    Args:
        jaxpr: The jaxpr.
        held: Those of its inputs that the program keeps anyway.
        gathers: Whether an equation gathers a variable from its slices.
    """

    def __init__(self, jaxpr: jex.Jaxpr, held: Iterable[jex.Var], gathers: Callable[[jex.JaxprEqn], bool]):
        self._held = set(held)  # and what is computed from these alone
        self._makers: dict[jex.Var, jex.JaxprEqn] = {}
        self._light: set[jex.Var] = set()
        for eqn in jaxpr.eqns:
            self._classify(eqn, gathers=gathers(eqn))

    def __contains__(self, var: Atom) -> bool:
        return isinstance(var, jex.Var) and var in self._light

    def _classify(self, eqn: jex.JaxprEqn, *, gathers: bool) -> None:
        inputs = [v for v in eqn.invars if isinstance(v, jex.Var)]
        if gathers:
            self._light.update(eqn.outvars)
        elif eqn.effects or _is_marked(eqn):
            return
        elif all(v in self._held for v in inputs):
            self._held.update(eqn.outvars)
        elif any(v in self._light for v in inputs) and all(self._is_at_hand(v) for v in inputs):
            self._light.update(eqn.outvars)
        else:
            return
        self._makers.update((v, eqn) for v in eqn.outvars)

    def _is_at_hand(self, var: jex.Var) -> bool:
        return var in self._held or var in self._light or getattr(var.aval, "size", 0) == 1

    def to_compute(self, wanted: Iterable[Atom]) -> tuple[list[jex.JaxprEqn], list[jex.Var]]:
        """Return the equations that compute the light ones among `wanted`, in order, and the other values from which they start."""
        eqns: dict[int, jex.JaxprEqn] = {}
        base: dict[jex.Var, None] = {}

        def visit(var: Atom) -> None:
            if not isinstance(var, jex.Var):
                return
            eqn = self._makers.get(var)
            if eqn is None:
                base[var] = None
            elif id(eqn) not in eqns:
                for each in eqn.invars:
                    visit(each)
                eqns[id(eqn)] = eqn

        for var in wanted:
            if var in self:
                visit(var)
        return list(eqns.values()), list(base)


def _is_marked(eqn: jex.JaxprEqn) -> bool:
    return eqn.primitive in MARKERS or eqn.primitive is own_p or any(map(has_markers, inner_jaxprs(eqn)))
