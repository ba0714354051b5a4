"""``replicant.function``: compile a whole step, or run a loop over a dataset whose steps are compiled."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

import jax

from .errors import ArgumentTypeError
from .programs._compiled import Compiled
from .replicas._values import is_array
from .variables._recorder import NotTraceable, current_recorder

_Fn = TypeVar("_Fn", bound=Callable[..., Any])


class Function:
    """A callable made by ``replicant.function``."""

    def __init__(self, fn: Callable[..., Any]):
        self._compiled = Compiled(fn)
        self._fn = fn
        self._runs_as_written = False
        functools.update_wrapper(self, fn)

    @property
    def python_function(self) -> Callable[..., Any]:
        """The decorated function."""
        return self._fn

    @property
    def num_compiled(self) -> int:
        """How many programs exist: one per structure, shapes, dtypes and Python values of the arguments.

        Python numbers that have changed count once, if they could become inputs.
        """
        return self._compiled.num_programs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if current_recorder() is not None:  # inside another function or a replica: part of that program
            return self._fn(*args, **kwargs)
        if self._runs_as_written or any(_is_stream(leaf) for leaf in jax.tree.leaves((args, kwargs))):
            return self._fn(*args, **kwargs)
        try:
            return self._compiled(*args, **kwargs)
        except NotTraceable:  # it reads a dataset that it did not get as an argument
            self._runs_as_written = True
        return self._fn(*args, **kwargs)

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else functools.partial(self, instance)


def _is_stream(leaf: Any) -> bool:
    """Whether `leaf` is a dataset or iterator: something to loop over in Python."""
    return isinstance(leaf, Iterable) and not is_array(leaf) and not isinstance(leaf, str | bytes) and not hasattr(leaf, "dtype")


@overload
def function(fn: _Fn) -> _Fn: ...
@overload
def function(fn: None = None, *, jit_compile: bool | None = None) -> Callable[[_Fn], _Fn]: ...
def function(fn: Any = None, *, jit_compile: bool | None = None) -> Any:
    """Compile `fn` as one program: ``strategy.run``, ``reduce`` and everything else in it.

    Args:
        fn: ordinary code in cross-replica context. Arrays, PerReplica values and pytrees of them among its arguments are inputs;
            strings, booleans and objects are part of the signature, so each new value compiles anew. So is the first value of a
            Python number; with the second the number becomes an input, a weakly typed scalar as in ``jax.jit``, if the code does
            the same with it then. If not, each value compiles anew, and a warning names the argument.
        jit_compile: accepted for the sake of ported code; everything is compiled by XLA.

    Returns: a callable with the same signature. If it reads a dataset or iterator, it runs the Python code as written and only the
    ``run``s and ``reduce``s inside are compiled.

    Variables that `fn` uses are found by themselves, and stay on the devices between calls. Python code runs while tracing, at
    least twice, not at every call; and again when `trainable` of a variable or layer that it uses has changed. Semantics:
    tf.function, but for Python numbers, for which tf.function always traces anew.

    Raises LostStateError if `fn` changes one of its arguments in place, or leaves a traced value in an object outside, such as an
    attribute or a list, where it would be lost.

    >>> import replicant, jax.numpy as jnp
    >>> total = replicant.Variable(0.0)
    >>> @replicant.function
    ... def add(x):
    ...     total.assign_add(x)
    ...     return total.value()
    >>> print(add(jnp.asarray(2.0)), add(jnp.asarray(3.0)))
    2.0 5.0
    """
    del jit_compile
    if fn is None:
        return Function
    if not callable(fn):
        raise ArgumentTypeError(f"function takes a callable; got {fn!r} of type {type(fn).__name__}.")
    return Function(fn)
