"""Functions under ``jax.jit`` and ``jax.checkpoint`` that change variables: what they leave in them travels with their results.

JAX takes the result of such a function apart into arrays, and puts the arrays of the transformed function together again. A
`_Returned` in place of the result has the new values among its arrays. When it is put together, it notes them, and becomes the
result.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer

from .._recorder import Recorder, current_recorder
from ._calls import Call

Function = Callable[..., Any]


class _Returned:
    """The result of a function and what it leaves in variables."""

    def __init__(self, result: Any, values: list[Any], call: Call):
        self.result, self.values, self.call = result, values, call

    def flat(self) -> tuple[tuple[Any, list[Any]], Call]:
        return (self.result, self.values), self.call

    @staticmethod
    def put_together(call: Call, parts: tuple[Any, list[Any]]) -> Any:
        result, values = parts
        if current_recorder() is call.recorder and all(isinstance(x, Tracer) for x in values):  # JAX also does it with shapes
            call.store(values)
        return result


jax.tree_util.register_pytree_node(_Returned, _Returned.flat, _Returned.put_together)


class Passing:
    """A function whose results carry what it leaves in variables, while a program is traced.

    It is equal to that of the same function, because JAX keeps what it has compiled by functions.
    """

    def __init__(self, fn: Function):
        self.fn = fn
        functools.update_wrapper(self, fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder: Recorder | None = current_recorder()
        if recorder is None:
            return self.fn(*args, **kwargs)
        call = Call(recorder)
        result, values = call.trace_once(self.fn, args, kwargs)
        return _Returned(result, values, call) if values else result

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Passing) and other.fn == self.fn

    def __hash__(self) -> int:
        return hash((Passing, self.fn))


def jit(original: Function, *args: Any, **kwargs: Any) -> Any:
    """Call ``jax.jit``."""
    if not args or not callable(args[0]) or kwargs.get("out_shardings") is not None:  # a decorator, a mistake, or one result only
        return original(*args, **kwargs)
    return original(Passing(args[0]), *args[1:], **kwargs)


def checkpoint(original: Function, fun: Any, **kwargs: Any) -> Any:
    """Call ``jax.checkpoint``."""
    return original(Passing(fun) if callable(fun) else fun, **kwargs)
