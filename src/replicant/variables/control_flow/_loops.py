"""``jax.lax.scan`` and ``while_loop`` whose bodies change variables, which the loops carry.

``fori_loop`` and ``map`` are made of these.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .._recorder import Recorder
from ._calls import Call, attempt, named_like

Function = Callable[..., Any]


def scan(original: Function, recorder: Recorder, f: Any, init: Any, *args: Any, **kwargs: Any) -> Any:
    """Call ``jax.lax.scan``."""
    if not callable(f):
        return original(f, init, *args, **kwargs)
    return attempt(recorder, lambda call: _scan(call, lambda body, init: original(body, init, *args, **kwargs), f, init))


def _scan(call: Call, loop: Function, f: Function, init: Any) -> Any:
    @named_like(f)
    def alone(carry: Any, x: Any) -> Any:
        result, _ = call.trace(f, (carry, x))
        call.check()
        return result

    @named_like(f)
    def body(carry: Any, x: Any) -> Any:
        (carried, y), values = call.trace(f, (carry[0], x), carry[1])
        call.check()
        return (carried, values), y

    if not call.refs:
        return loop(alone, init)
    (carried, values), ys = loop(body, (init, call.given()))
    call.store(values)
    return carried, ys


def while_loop(original: Function, recorder: Recorder, cond_fun: Any, body_fun: Any, init_val: Any) -> Any:
    """Call ``jax.lax.while_loop``."""
    if not (callable(cond_fun) and callable(body_fun)):
        return original(cond_fun, body_fun, init_val)

    def compute(call: Call) -> Any:
        return (_while_changing if _TEST_CHANGES in call.facts else _while)(call, original, cond_fun, body_fun, init_val)

    return attempt(recorder, compute)


_TEST_CHANGES = "the condition changes variables"


def _while(call: Call, original: Function, cond_fun: Function, body_fun: Function, init_val: Any) -> Any:
    passes = bool(call.refs)

    @named_like(cond_fun)
    def test(value: Any) -> Any:
        result, _ = call.trace(cond_fun, *((value[0],), value[1]) if passes else ((value,),))
        if call.changed:
            call.learn(_TEST_CHANGES)
        return result

    @named_like(body_fun)
    def body(value: Any) -> Any:
        found = call.trace(body_fun, *((value[0],), value[1]) if passes else ((value,),))
        call.check()
        return found if passes else found[0]

    if not passes:
        return original(test, body, init_val)
    result, values = original(test, body, (init_val, call.given()))
    call.store(values)
    return result


def _while_changing(call: Call, original: Function, cond_fun: Function, body_fun: Function, init_val: Any) -> Any:
    """Compute the condition before the loop and at the end of each iteration, where it may change variables."""

    def step(value: Any) -> Any:
        result = body_fun(value)
        return result, cond_fun(result)

    @named_like(body_fun)
    def body(value: Any) -> Any:
        (result, goes_on), values = call.trace(step, (value[0],), value[1])
        call.check()
        return result, values, goes_on

    init_val = jax.tree.map(jnp.asarray, init_val)
    goes_on, values = call.trace(cond_fun, (init_val,), call.given())
    result, values, _ = original(lambda value: value[2], body, (init_val, values, goes_on))
    call.store(values)
    return result
