"""``remat``: functions whose inner values are computed again for the backward pass, instead of being kept."""

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import jax

from .replicas._own_mesh import in_a_trace
from .replicas._values import is_array
from .tracing.gradients import _eager
from .variables._libraries import connect_libraries
from .variables._recorder import current_recorder


def remat(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function whose backward pass computes its inner values again, which takes time and saves memory.

    The function may use and assign variables that are not among its arguments, as `Dropout` and `BatchNormalization` do. Arguments
    that are not arrays keep their Python values. Layers that are made in a ``keras.RematScope``, and ``keras.remat``, do the same,
    in ``fit`` as well.

    Semantics: ``jax.checkpoint``. Called eagerly, where nothing is compiled, it just calls `fn`.

    Args:
        fn: A function of arrays, structures of arrays and Python objects.

    Returns:
        A function of the same arguments with the same results and gradients.

    Raises:
        ContextError: When it is called, if a layer in `fn` adds a loss.

    >>> import replicant, jax, jax.numpy as jnp
    >>> print(jax.grad(replicant.remat(lambda x: jnp.sin(x) ** 2))(0.0))
    0.0
    """

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if current_recorder() is None and (_eager.current() is not None or not in_a_trace()):
            return fn(*args, **kwargs)
        return _Call(fn, args, kwargs).compute()

    return call


class _Call:
    """One call of a function that is computed again."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]):
        self._fn = fn
        self._leaves, self._tree = jax.tree.flatten((args, kwargs))
        self._where = [i for i, x in enumerate(self._leaves) if is_array(x)]
        # What the trace finds: the leaves of the result, their structure, and what was set aside.
        self._results: list[Any] = []
        self._result_tree: Any = None
        self._asides: list[Any] = []

    def compute(self) -> Any:
        arrays, assigned = jax.checkpoint(self._traced)([self._leaves[i] for i in self._where])
        for aside, values in zip(self._asides, assigned, strict=True):
            aside.put_back(values)
        rest = iter(arrays)
        return jax.tree.unflatten(self._result_tree, [next(rest) if is_array(x) else x for x in self._results])

    def _traced(self, arrays: list[Any]) -> tuple[list[Any], list[list[Any]]]:
        """Return the arrays of the result, and what each library's variables were assigned."""
        leaves = list(self._leaves)
        for i, array in zip(self._where, arrays, strict=True):
            leaves[i] = array
        args, kwargs = jax.tree.unflatten(self._tree, leaves)
        self._asides = [provider.Aside() for provider in connect_libraries()]
        with ExitStack() as stack:
            for aside in self._asides:
                stack.enter_context(aside)
            result = self._fn(*args, **kwargs)
        self._results, self._result_tree = jax.tree.flatten(result)
        return [x for x in self._results if is_array(x)], [aside.assigned() for aside in self._asides]
