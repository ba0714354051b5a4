"""Records operations that run at once, for a ``GradientTape`` outside every trace.

JAX hands each operation to the current trace. ``Eager`` is a trace that computes the operation right away, by the trace around it,
and keeps the pullback of what has a gradient. So the values are ordinary arrays, told from each other by their identity.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.core import Trace, Tracer

from ...errors import GradientError

# compute(trace, operands) -> results: one operation, computed by a trace.
Compute = Callable[[Any, list[Any]], Any]


class Step:
    """An operation that was computed: float operands and results, and the pullback from results to operands."""

    def __init__(self, operands: list[Any], results: list[Any], pullback: Callable[[list[Any]], Sequence[Any]]):
        self.operands = operands
        self.results = results
        self.pullback = pullback


class Eager(Trace):
    """A trace that computes and records.

    Args:
        around: The current trace, which computes the operations: JAX's own, or that of another tape.
    """

    def __init__(self, around: Any):
        super().__init__()
        self.around = around
        self.recording = True
        self._steps: list[Step] = []
        self._roots: dict[int, Any] = {}

    def root(self, value: Any) -> None:
        """Note that `value` was read from a variable, so that no gradient passes to what it was made of."""
        self._roots[id(value)] = value

    def forget(self) -> None:
        """Forget what was recorded."""
        self._steps.clear()
        self._roots.clear()

    # What JAX calls

    def stage_value(self, val: Any) -> Any:
        """Return a value as this trace sees it."""
        with jex.set_current_trace(self.around):
            return self.around.stage_value(val)

    def process_primitive(self, primitive: Any, tracers: Any, params: Any, /) -> Any:
        """Compute a primitive."""
        results = self._computed(lambda trace, xs: trace.process_primitive(primitive, xs, params), tracers)
        return results if primitive.multiple_results else results[0]

    def process_call(self, call_primitive: Any, f: Any, tracers: Any, params: Any, /) -> Any:
        """Compute a primitive that calls a function (before JAX 0.11)."""
        return self._computed(lambda trace, xs: trace.process_call(call_primitive, f, xs, params), tracers)

    def process_custom_jvp_call(self, primitive: Any, fun: Any, jvp: Any, tracers: Any, /, **params: Any) -> Any:
        """Compute a function with a derivative of its own."""
        return self._computed(lambda trace, xs: trace.process_custom_jvp_call(primitive, fun, jvp, xs, **params), tracers)

    def process_custom_vjp_call(self, primitive: Any, fun: Any, fwd: Any, bwd: Any, tracers: Any, /, **params: Any) -> Any:
        """Compute a function with a gradient of its own."""
        return self._computed(lambda trace, xs: trace.process_custom_vjp_call(primitive, fun, fwd, bwd, xs, **params), tracers)

    def _computed(self, compute: Compute, operands: Sequence[Any]) -> list[Any]:
        at = [i for i, x in enumerate(operands) if _has_gradient(x)] if self.recording else []
        with jex.set_current_trace(self.around):
            if not at:
                return _with_current(compute, list(operands))
            inputs = [operands[i] for i in at]
            where: list[bool] = []

            def on_floats(xs: list[Any]) -> tuple[list[Any], list[Any]]:
                whole = list(operands)
                for i, x in zip(at, xs, strict=True):
                    whole[i] = x
                results = _with_current(compute, whole)
                where[:] = [_has_gradient(x) for x in results]
                return [x for x, is_float in zip(results, where, strict=True) if is_float], [
                    x for x, is_float in zip(results, where, strict=True) if not is_float
                ]

            try:
                floats, pull, others = jax.vjp(on_floats, inputs, has_aux=True)
            except Exception as error:  # noqa: BLE001 - an operation without a derivative, or one that fails in any case
                return self._without_gradient(compute, operands, inputs, error)
            # A result that is an operand itself must become an array of its own.
            floats = [jnp.array(x, copy=True) if any(x is y for y in inputs) else x for x in floats]
            self._steps.append(Step(inputs, floats, lambda cotangents: pull(cotangents)[0]))
            rest, left = iter(floats), iter(others)
            return [next(rest) if is_float else next(left) for is_float in where]

    def _without_gradient(self, compute: Compute, operands: Sequence[Any], inputs: list[Any], error: Exception) -> list[Any]:
        """Compute an operation without a derivative, and refuse its gradient."""
        results = _with_current(compute, list(operands))

        def refuse(_: list[Any]) -> Sequence[Any]:
            raise GradientError(
                f"A gradient passes through an operation that JAX cannot differentiate: {error} Give it a gradient with "
                "jax.custom_vjp, or leave it out with keras.ops.stop_gradient or tape.stop_recording()."
            ) from error

        self._steps.append(Step(inputs, [x for x in results if _has_gradient(x)], refuse))
        return results

    # What the tape asks

    def gradients(self, targets: Sequence[Any], cotangents: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        """Return the gradient of the targets with respect to each source; None if no path leads from it to a target."""
        known: dict[int, Any] = {}
        for target, cotangent in zip(targets, cotangents, strict=True):
            _add(known, target, cotangent)
        wanted = self._reached(sources)
        for step in reversed(list(self._steps)):
            if not any(id(x) in known and id(x) not in self._roots for x in step.results):
                continue
            if not any(id(x) in wanted for x in step.operands):
                continue
            cotangents = [
                known[id(x)] if id(x) in known and id(x) not in self._roots else jnp.zeros(x.shape, x.dtype) for x in step.results
            ]
            for x, part in zip(step.operands, step.pullback(cotangents), strict=True):
                if id(x) in wanted:
                    _add(known, x, part)
        return [known.get(id(source)) for source in sources]

    def knows(self, target: Any) -> bool:
        """Return whether this trace sees how `target` is computed. In a loop or function that JAX traces, it sees nothing."""
        if not isinstance(target, Tracer) or any(target is x for step in self._steps for x in step.results):
            return True
        with jex.take_current_trace() as now:
            pass
        return _outermost(now) is _outermost(self)

    def _reached(self, sources: Sequence[Any]) -> set[int]:
        """Return the ids of all arrays that were computed from the sources, and of the sources."""
        reached = {id(x) for x in sources}
        for step in self._steps:
            if any(id(x) in reached for x in step.operands):
                reached.update(id(x) for x in step.results if id(x) not in self._roots)
        return reached


def _outermost(trace: Any) -> Any:
    """Return the trace around all tapes."""
    while isinstance(trace, Eager):
        trace = trace.around
    return trace


def _has_gradient(x: Any) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.inexact)


def _with_current(compute: Compute, operands: list[Any]) -> list[Any]:
    with jex.take_current_trace() as trace:
        results = compute(trace, operands)
    return list(results) if isinstance(results, list | tuple) else [results]


def _add(known: dict[int, Any], x: Any, part: Any) -> None:
    known[id(x)] = known[id(x)] + part if id(x) in known else part


def current() -> Eager | None:
    """Return the trace of the innermost tape that records outside every other trace; None without one."""
    with jex.take_current_trace() as trace:
        pass
    return trace if isinstance(trace, Eager) else None


def around_now() -> Eager:
    """Return a new trace inside the current one."""
    with jex.take_current_trace() as trace:
        return Eager(trace)


def entered(trace: Eager) -> Any:
    """Return a context manager in which `trace` is the current one."""
    return jex.set_current_trace(trace)
