"""``jax.custom_vjp`` whose functions use variables.

JAX calls the rules when it differentiates. By then, the trace of the program has ended, and what they read would be whatever is
stored. So if they use variables, all functions are traced at the call, where the variables have their values.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...errors import ContextError
from ...tracing.jaxprs._closed_jaxpr import ClosedJaxpr
from ...tracing.replicas._interpreter import run_alone
from ...tracing.replicas._requests import Question
from ...tracing.replicas._varying import Reached
from .._recorder import Recorder
from .._ref import Ref
from ._calls import Call

Function = Callable[..., Any]


class _Rules(threading.local):
    def __init__(self) -> None:
        self.traced: list[Any] = []


_rules = _Rules()  # those whose functions this thread is tracing


def custom_vjp(original: Function, recorder: Recorder, rule: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function with a ``jax.custom_vjp``."""
    if kwargs or rule.nondiff_argnums or rule.symbolic_zeros or rule.fwd is None or rule.bwd is None:
        return original(rule, *args, **kwargs)
    if any(rule is each for each in _rules.traced):  # a forward rule computes the function by calling it
        return _plain(_called_by_its_rule, rule.fun(*args))
    counts = recorder.counts.copy()
    _rules.traced.append(rule)
    try:
        found = _Use(recorder, rule, args)
        recorder.counts = counts
        traced = _Traced(recorder, rule, args, found) if found.matters else None
    finally:
        _rules.traced.pop()
    return original(rule, *args) if traced is None else traced.compute()


class _Use:
    """How the functions of a rule use variables.

    Attributes:
        matters: Whether they change some, or the rules read some.
        call: What they change.
        result, residuals: The shapes of these.
    """

    def __init__(self, recorder: Recorder, rule: Any, args: Sequence[Any]):
        self._recorder, self.call = recorder, Call(recorder)
        self._read: dict[Ref, None] = {}
        jax.eval_shape(lambda *args: self._traced(rule.fun, args), *args)
        self._read = {}
        self.result, self.residuals = jax.eval_shape(lambda *args: self._traced(rule.fwd, args), *args)
        changed = {*self.call.changed}
        self.cotangents = jax.tree.map(_cotangent, self.result)
        jax.eval_shape(lambda *given: self._traced(rule.bwd, given), self.residuals, self.cotangents)
        if self.call.changed.keys() != changed:
            names = ", ".join(repr(ref.name) for ref in self.call.changed if ref not in changed)
            raise ContextError(
                f"The backward rule of a jax.custom_vjp assigns {names}. It is computed only where somebody asks for a gradient. "
                "Assign in the function and in its forward rule, or after the call."
            )
        self.matters = bool(self._read or changed)

    def _traced(self, fn: Function, args: Sequence[Any]) -> Any:
        with self._recorder.layer({}) as layer:
            result = fn(*args)
            self.call.note(layer)
            self._read.update(layer.read)
            return result


class _Traced:
    """A rule as jaxprs. What they use from outside is among their constants."""

    def __init__(self, recorder: Recorder, rule: Any, args: Sequence[Any], use: _Use):
        self._call = call = Call(recorder, use.call)
        self._leaves, self._tree = jax.tree.flatten(args)
        self._primal, shapes = jax.make_jaxpr(lambda *args: call.trace(rule.fun, args), return_shape=True)(*args)
        self._result_tree = jax.tree.structure(shapes[0])
        self._num_results = self._result_tree.num_leaves
        self._forward = jax.make_jaxpr(lambda *args: _reordered(call.trace(rule.fwd, args)))(*args)
        self._floats = [jnp.issubdtype(jnp.result_type(x), jnp.inexact) for x in self._leaves]

        def backward(residuals: Any, cotangents: Any) -> list[Any]:
            parts, _ = call.trace(rule.bwd, (residuals, cotangents))
            return [x for x, is_float in zip(_of_leaves(args, parts), self._floats, strict=True) if is_float]

        self._backward = jax.make_jaxpr(backward)(use.residuals, use.cotangents)

    def compute(self) -> Any:
        num_results, num_passed = self._num_results, self._num_results + len(self._call.refs)

        def primal(consts: Any, leaves: list[Any]) -> list[Any]:
            return _evaluate(self._primal, consts[0], leaves)

        def forward(consts: Any, leaves: list[Any]) -> Any:
            found = _evaluate(self._forward, consts[1], leaves)
            return found[:num_passed], (consts[2], found[num_passed:])

        def backward(given: Any, cotangents: list[Any]) -> Any:
            consts, residuals = given
            parts = iter(_evaluate(self._backward, consts, [*residuals, *cotangents[:num_results]]))
            return None, [next(parts) if is_float else None for is_float in self._floats]

        own = jax.custom_vjp(primal)
        own.defvjp(forward, backward)
        consts = [list(closed.consts) for closed in (self._primal, self._forward, self._backward)]
        found = _plain(own, consts, self._leaves)
        self._call.store(found[num_results:])
        return jax.tree.unflatten(self._result_tree, found[:num_results])


def _plain(rule: Any, *args: Any) -> Any:
    """Call a function with a rule as JAX does."""
    return jax.custom_vjp.__call__.__wrapped__(rule, *args)  # type: ignore[attr-defined]


@jax.custom_vjp
def _called_by_its_rule(result: Any) -> Any:
    """Return what a function gives in its own forward rule. Its derivative would be that of a rule that is still being traced."""
    return result


def _no_further_derivative(_: Any) -> Any:
    raise ContextError(
        "This is a second derivative through a jax.custom_vjp that uses variables and whose forward rule calls the function "
        "itself. Call its `fun` in the forward rule: f.defvjp(lambda x: (f.fun(x), ...), ...). JAX then differentiates it as it is "
        "written."
    )


_called_by_its_rule.defvjp(_no_further_derivative, lambda _, cotangent: (cotangent,))


def _reordered(traced: tuple[Any, list[Any]]) -> Any:
    (result, residuals), values = traced
    return result, values, residuals


def _of_leaves(args: Sequence[Any], parts: Sequence[Any]) -> list[Any]:
    """Return a gradient for each leaf of the arguments. None means zeros."""

    def part_of(x: Any, part: Any) -> Any:
        return jnp.zeros(jnp.shape(x), jnp.result_type(x)) if part is None else jnp.asarray(part)

    each = [
        jax.tree.map(lambda x: part_of(x, None), arg) if part is None else jax.tree.map(part_of, arg, part)
        for arg, part in zip(args, parts, strict=True)
    ]
    return jax.tree.leaves(each)


def _cotangent(result: Any) -> jax.ShapeDtypeStruct:
    dtype = result.dtype if jnp.issubdtype(result.dtype, jnp.inexact) else jax.dtypes.float0
    return jax.ShapeDtypeStruct(result.shape, dtype)


def _evaluate(closed: ClosedJaxpr, consts: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
    return run_alone(ClosedJaxpr(closed.jaxpr, list(consts)), arrays, [True] * len(arrays), _refuse, kind=Reached)


def _refuse(question: Question) -> list[Any]:
    what = question.eqn.params.get("label", "an assignment that the replicas combine")
    raise ContextError(
        f"A jax.custom_vjp that uses variables makes an exchange ({what}) in one of its rules. Exchange before the call, and pass "
        "the value as an argument."
    )
