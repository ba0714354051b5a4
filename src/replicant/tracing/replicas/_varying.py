"""Finds which values of a traced replica function may differ between replicas.

A value varies if anything that it was computed from varies. The result of an all-reduce or all-gather is the same on all replicas.
This decides what may be stored in a mirrored variable, and which results of ``run`` come back Mirrored. Unknown operations are
assumed to vary with their operands.
"""

from collections.abc import Sequence

import jax.extend.core as jex

from ...errors import ContextError
from ..gradients._gathered_variable import gathered_p
from ..jaxprs._closed_jaxpr import ClosedJaxpr
from ..jaxprs._marks import exchange_p, gradient_p, inner_jaxprs, scan_counts, sync_p
from ..jaxprs._primitive_names import AGREEING, CALLS, EXCHANGES, INDEX


def body_of_call(eqn: jex.JaxprEqn) -> ClosedJaxpr | jex.Jaxpr | None:
    """Return the body that an equation calls with its operands; None if the equation is not such a call."""
    if eqn.primitive.name not in CALLS:
        return None
    bodies = [param for param in eqn.params.values() if isinstance(param, ClosedJaxpr | jex.Jaxpr)]
    jaxprs = inner_jaxprs(eqn)
    return bodies[0] if len(bodies) == len(jaxprs) == 1 and len(jaxprs[0].invars) == len(eqn.invars) else None


class Varying:
    """The variables of a jaxpr that vary, given which of its inputs vary."""

    def __init__(self, jaxpr: jex.Jaxpr, inputs: Sequence[bool]):
        self._vars: set[jex.Var] = {v for v, varies in zip(jaxpr.invars, inputs, strict=True) if varies}
        for eqn in jaxpr.eqns:
            flags = self._equation(eqn)
            self._vars.update(v for v, varies in zip(eqn.outvars, flags, strict=True) if varies)
        self.outputs = [self(v) for v in jaxpr.outvars]

    def __call__(self, var: jex.Var | jex.Literal) -> bool:
        """Whether `var` may differ between replicas."""
        return not isinstance(var, jex.Literal) and var in self._vars

    def _equation(self, eqn: jex.JaxprEqn) -> list[bool]:
        inputs = [self(v) for v in eqn.invars]
        name = eqn.primitive.name
        if eqn.primitive in (sync_p, gathered_p) or name in AGREEING:
            return [False] * len(eqn.outvars)
        if eqn.primitive is exchange_p:
            return [not eqn.params["agrees"]] * len(eqn.outvars)
        if name == INDEX:
            return [True]
        called = body_of_call(eqn)
        if called is not None:
            return type(self)(called.jaxpr if isinstance(called, ClosedJaxpr) else called, inputs).outputs
        bodies = inner_jaxprs(eqn)
        if name == "cond":
            self._check_branch(eqn, differs=inputs[0])
            return _any_of([type(self)(b, inputs[1:]).outputs for b in bodies], always=inputs[0])
        if name == "scan":
            return self._loop(bodies[0], inputs, *scan_counts(eqn))
        if name == "while":
            return self._while(eqn, inputs)
        # This includes the gradient mark. A path with anything that varies has varying targets, or contains an all-reduce, whose
        # backward pass multiplies by local values.
        if eqn.primitive is gradient_p:
            slices = len(inputs) - len(eqn.params["gathered"])  # they differ, but what they are gathered to does not
            return [any(inputs[:slices]) or bool(self._vars)] * len(eqn.outvars)
        return [any(inputs)] * len(eqn.outvars)

    def _loop(self, body: jex.Jaxpr, inputs: list[bool], num_consts: int, num_carry: int) -> list[bool]:
        carry = carried_flags(body, inputs, num_consts, num_carry, kind=type(self))
        rest = inputs[num_consts + num_carry :]
        return carry + type(self)(body, inputs[:num_consts] + carry + rest).outputs[num_carry:]

    def _while(self, eqn: jex.JaxprEqn, inputs: list[bool]) -> list[bool]:
        num_test, num_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        test, consts, carry = inputs[:num_test], inputs[num_test : num_test + num_body], inputs[num_test + num_body :]
        carry = self._loop(eqn.params["body_jaxpr"].jaxpr, consts + carry, num_body, len(carry))
        differs = type(self)(eqn.params["cond_jaxpr"].jaxpr, test + carry).outputs[0]
        self._check_branch(eqn, differs=differs)
        return [True] * len(carry) if differs else carry

    def _check_branch(self, eqn: jex.JaxprEqn, *, differs: bool) -> None:
        """Refuse an exchange for which some replicas would wait for ever.

        Raises:
            ContextError: If there is one in a branch or loop whose condition differs between replicas.
        """
        if differs and any(map(_exchanges, inner_jaxprs(eqn))):
            raise ContextError(
                f"An exchange (all_reduce, all_gather, or an assignment that combines the replicas' values) is inside a branch or "
                f"loop ({eqn.primitive.name}) whose condition differs between replicas. Those that enter it would wait for the "
                "others for ever. Move the exchange outside, or reduce the condition first."
            )


class Reached(Varying):
    """The variables of a jaxpr that some of its inputs reach, whether or not these differ between replicas."""

    def _check_branch(self, eqn: jex.JaxprEqn, *, differs: bool) -> None:
        """Refuse nothing: a condition that an input reaches may be the same on all replicas."""


def carried_flags(
    body: jex.Jaxpr, inputs: Sequence[bool], num_consts: int, num_carry: int, kind: "type[Varying] | None" = None
) -> list[bool]:
    """Return which of the values that a loop carries vary, given its body and which of its operands vary at the beginning."""
    consts, carry, rest = (
        [*inputs[:num_consts]],
        [*inputs[num_consts : num_consts + num_carry]],
        [*inputs[num_consts + num_carry :]],
    )
    while True:
        outputs = (kind or Reached)(body, consts + carry + rest).outputs
        joined = [a or b for a, b in zip(carry, outputs, strict=False)]
        if joined == carry:
            return carry
        carry = joined


def _exchanges(jaxpr: jex.Jaxpr) -> bool:
    return any(
        eqn.primitive in (exchange_p, sync_p) or eqn.primitive.name in EXCHANGES or any(map(_exchanges, inner_jaxprs(eqn)))
        for eqn in jaxpr.eqns
    )


def _any_of(rows: list[list[bool]], *, always: bool) -> list[bool]:
    return [always or any(column) for column in zip(*rows, strict=True)]
