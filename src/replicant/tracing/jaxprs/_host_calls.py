"""Calls of the host in a program: ``jax.pure_callback`` and ``io_callback``, whose results it takes, and others."""

from collections.abc import Callable
from typing import Any

import jax.extend.core as jex
import numpy as np

from ._closed_jaxpr import ClosedJaxpr
from ._marks import inner_jaxprs

_HOST_CALLS = frozenset({"pure_callback", "io_callback"})  # where JAX renames one, its own error tells
_WITHOUT_RESULTS = frozenset({"debug_callback", "debug_print"})


def host_call_in(jaxpr: jex.Jaxpr) -> str | None:
    """Return the name of the first operation that takes results from the host, in `jaxpr` or a body in it; None if none does."""
    return _first_of(_HOST_CALLS, jaxpr)


def may_fail(jaxpr: jex.Jaxpr) -> bool:
    """Whether a program runs Python while it computes, which may raise: then it fails, and has no results."""
    return _first_of(_HOST_CALLS | _WITHOUT_RESULTS, jaxpr) is not None


def _first_of(names: frozenset[str], jaxpr: jex.Jaxpr) -> str | None:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in names:
            return eqn.primitive.name
        for inner in inner_jaxprs(eqn):
            if (found := _first_of(names, inner)) is not None:
                return found
    return None


class HostErrors:
    """The errors of what a program on several devices calls, which it notes, and computes on with zeros.

    If the program failed on one device, the others would wait for it in the next exchange, until XLA ends the process.
    """

    def __init__(self) -> None:
        self._errors: list[BaseException] = []

    def noting(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """Return a program whose calls of the host do not fail. After an error, it calls nothing any more."""
        return ClosedJaxpr(self._noting(closed.jaxpr), closed.consts)

    def check(self) -> None:
        """Raise the first error, if there was one. The program must have ended."""
        if self._errors:
            error = self._errors[0]
            self.forget()
            raise error

    def forget(self) -> None:
        """Forget all errors."""
        self._errors = []

    def _noting(self, jaxpr: jex.Jaxpr) -> jex.Jaxpr:
        if not may_fail(jaxpr):
            return jaxpr
        return jaxpr.replace(eqns=[eqn.replace(params=self._params(eqn)) for eqn in jaxpr.eqns])

    def _params(self, eqn: jex.JaxprEqn) -> dict[str, Any]:
        params = {name: self._param(param) for name, param in eqn.params.items()}
        if eqn.primitive.name in _HOST_CALLS | _WITHOUT_RESULTS and "callback" in params:
            params["callback"] = self._call(params["callback"], [var.aval for var in eqn.outvars])
        return params

    def _param(self, param: Any) -> Any:
        if isinstance(param, ClosedJaxpr):
            return self.noting(param)
        if isinstance(param, jex.Jaxpr):
            return self._noting(param)
        if type(param) in {tuple, list}:
            return type(param)(map(self._param, param))
        return param

    def _call(self, callback: Callable[..., Any], results: list[Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if not self._errors:
                try:
                    return callback(*args)
                except BaseException as error:  # noqa: BLE001 - raised once the program has ended
                    self._errors.append(error)
            return [np.zeros(result.shape, result.dtype) for result in results]

        return call
