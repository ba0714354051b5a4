"""``jax.vmap``, ``value_and_grad`` and ``grad`` of functions that change variables."""

import functools
from collections.abc import Callable
from typing import Any

from ...errors import VariableError
from .._recorder import Recorder, current_recorder
from ._calls import Call, attempt, named_like

Function = Callable[..., Any]


def vmap(original: Function, fun: Any, in_axes: Any = 0, out_axes: Any = 0, *rest: Any, **kwargs: Any) -> Any:
    """Call ``jax.vmap``."""

    def compute(call: Call, *args: Any, **named: Any) -> Any:
        if not call.refs:
            return original(_alone(call, fun), in_axes, out_axes, *rest, **kwargs)(*args, **named)

        @named_like(fun)
        def passing(*args: Any, **named: Any) -> Any:
            found = call.trace(fun, args, **named)
            call.check()
            return found

        try:
            result, values = original(passing, in_axes, (out_axes, None), *rest, **kwargs)(*args, **named)
        except ValueError as error:
            if "out_axes" not in str(error) or "None" not in str(error):  # of the values, whose axis is None
                raise
            raise VariableError(_differs(call)) from error
        call.store(values)
        return result

    return _in_programs(original(fun, in_axes, out_axes, *rest, **kwargs), fun, compute)


def _differs(call: Call) -> str:
    names = ", ".join(repr(ref.name) for ref in call.changed)
    return (
        f"A function under jax.vmap assigns {names}, and a value that it assigns differs between the elements. A variable has one "
        "value for all of them. Return the values from the function, and assign what they are combined to, such as their mean, "
        "after jax.vmap."
    )


def value_and_grad(original: Function, fun: Any, argnums: Any = 0, has_aux: bool = False, *rest: Any, **kwargs: Any) -> Any:
    """Call ``jax.value_and_grad``, of which ``jax.grad`` is made."""

    def compute(call: Call, *args: Any, **named: Any) -> Any:
        if not call.refs:
            return original(_alone(call, fun), argnums, has_aux, *rest, **kwargs)(*args, **named)

        @named_like(fun)
        def passing(*args: Any, **named: Any) -> Any:
            result, values = call.trace(fun, args, **named)
            call.check()
            value, aux = result if has_aux else (result, None)
            return value, (aux, values)

        (value, (aux, values)), gradients = original(passing, argnums, True, *rest, **kwargs)(*args, **named)
        call.store(values)
        return ((value, aux) if has_aux else value), gradients

    return _in_programs(original(fun, argnums, has_aux, *rest, **kwargs), fun, compute)


def _alone(call: Call, fun: Function) -> Function:
    """Return a function for an attempt that passes nothing through."""

    @named_like(fun)
    def alone(*args: Any, **named: Any) -> Any:
        result, _ = call.trace(fun, args, **named)
        call.check()
        return result

    return alone


def _in_programs(transformed: Function, fun: Any, compute: Function) -> Function:
    """Return a transformed function that is computed by `compute` while a program is traced."""
    if not callable(fun):
        return transformed

    @functools.wraps(transformed)
    def call(*args: Any, **named: Any) -> Any:
        recorder: Recorder | None = current_recorder()
        if recorder is None:
            return transformed(*args, **named)
        return attempt(recorder, lambda call: compute(call, *args, **named))

    return call
