"""``custom_gradient``: functions with a gradient of their own, as TensorFlow writes them.

The function is traced once, and its ``grad`` in the same trace. What ``grad`` takes from the function become residuals of a
``jax.custom_vjp``.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ._tape_arguments import check_not_on_servers
from .errors import ArgumentError, ArgumentTypeError, GradientError, RaggedStepError
from .replicas._values import is_array
from .tracing.jaxprs._closed_jaxpr import ClosedJaxpr
from .tracing.jaxprs._marks import asks_outer_tape
from .tracing.replicas._interpreter import Question, run_alone
from .variables import _recorder
from .variables._known import is_variable, ref_of, variable_of
from .variables._recorder import Recorder
from .variables._ref import Ref


def custom_gradient(f: Any = None) -> Any:
    """Give a function a gradient of its own.

    If `f` reads trainable variables that are not among its arguments, ``grad`` must take a keyword argument `variables`. It is
    given the list of them, and returns a pair: the gradients of the arguments, and those of the variables.

    Semantics: tf.custom_gradient, except that ``grad`` is traced with `f`, and not when the gradient is asked for.

    Args:
        f: A function of arrays that returns ``(result, grad)``. ``grad`` takes one array for each array of the result, the gradient
            with respect to it, and returns one gradient for each argument, or None for zeros. Keyword arguments of `f` have no
            gradient.

    Returns:
        A function that returns the result alone. It works wherever ``jax.custom_vjp`` does.

    Raises:
        ArgumentError: When it is called, if ``grad`` returns another number of gradients, or one of another shape.
        ArgumentTypeError: When it is called, if `f` does not return a pair, or uses variables and ``grad`` does not take them.
        GradientError: When it is called, if ``grad`` asks a tape that recorded outside of it, or if `f` reads a variable on
            parameter servers.
        RaggedStepError: If the replicas have different numbers of rows, and `f` exchanges values.

    >>> import replicant, jax.numpy as jnp
    >>> @replicant.custom_gradient
    ... def rounded(x):
    ...     return jnp.round(x), lambda upstream: upstream
    >>> x = jnp.asarray(1.7)
    >>> with replicant.GradientTape() as tape:
    ...     y = 3.0 * rounded(x)
    >>> print(y, tape.gradient(y, x))
    6.0 3.0
    """
    if f is None:
        return custom_gradient

    @functools.wraps(f)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        return _Custom(f, args, kwargs).call()

    return decorated


class _Custom:
    """One call of a function with a gradient of its own."""

    def __init__(self, f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]):
        self._f, self._kwargs = f, kwargs
        leaves, self._tree = jax.tree.flatten(args, is_leaf=lambda x: x is None or is_variable(x))
        leaves = [_recorder.read(ref_of(x)) if is_variable(x) else x for x in leaves]
        # Python floats become arrays, as TensorFlow makes tensors of them.
        self._leaves = [jnp.asarray(x) if is_array(x) or isinstance(x, float) else x for x in leaves]
        self._where = [i for i, x in enumerate(self._leaves) if is_array(x)]
        self._used: dict[Ref, None] = {}
        # What the trace finds: the structure of the result, the shapes of its arrays, and the jaxpr of `grad`.
        self._result_tree: Any = None
        self._shapes: list[jax.ShapeDtypeStruct] = []
        self._rule: Any = None

    def call(self) -> Any:
        """Compute the result."""
        arrays = [self._leaves[i] for i in self._where]
        forward = jax.make_jaxpr(self._traced)(*arrays)
        values = [_recorder.read(ref) for ref in self._used]  # outside of that trace, as the tape sees them
        num_results, rule, shapes = len(self._shapes), self._rule, self._shapes
        floats = [jnp.issubdtype(x.dtype, jnp.inexact) for x in arrays]

        def with_residuals(consts: Any, arrays: Any, values: Any) -> Any:
            del values  # the function has them among its constants
            results = _evaluate(ClosedJaxpr(forward.jaxpr, consts), arrays)
            return results[:num_results], results[num_results:]

        def backward(residuals: Any, cotangents: Any) -> Any:
            seeds = [jnp.zeros(x.shape, x.dtype) if _is_empty(c) else c for c, x in zip(cotangents, shapes, strict=True)]
            parts = iter(_evaluate(ClosedJaxpr(rule, residuals), seeds))
            return None, [next(parts) if is_float else None for is_float in floats], list(parts)

        own = jax.custom_vjp(lambda *operands: with_residuals(*operands)[0])
        own.defvjp(with_residuals, backward)
        return jax.tree.unflatten(self._result_tree, own(list(forward.consts), arrays, values))

    def _traced(self, *arrays: Any) -> list[Any]:
        """Return the arrays of the result, and all that ``grad`` uses."""
        leaves = list(self._leaves)
        for i, array in zip(self._where, arrays, strict=True):
            leaves[i] = array
        _recorder.add_listener(self._note)
        try:
            returned = self._f(*jax.tree.unflatten(self._tree, leaves), **self._kwargs)
        finally:
            _recorder.remove_listener(self._note)
        if not (isinstance(returned, tuple) and len(returned) == 2 and callable(returned[1])):
            raise ArgumentTypeError(
                f"A function with custom_gradient must return a pair, (result, grad); {_name(self._f)} returned {returned!r}."
            )
        flat, self._result_tree = jax.tree.flatten(returned[0])
        results = [jnp.asarray(x) for x in flat]
        self._shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results]
        check_not_on_servers(self._used)
        grad = self._with_variables(returned[1])
        closed = jax.make_jaxpr(lambda *seeds: self._pulled(grad(*seeds), arrays))(*self._shapes)
        if asks_outer_tape(closed.jaxpr):
            raise GradientError(
                f"The gradient of {_name(self._f)}, which has custom_gradient, asks a tape that recorded outside of it. Record "
                "inside `grad`: with replicant.GradientTape() as tape: ..."
            )
        self._rule = closed.jaxpr
        return [*results, *closed.consts]

    def _note(self, ref: Ref, value: Any, recorder: Recorder | None, assigned: bool) -> None:
        del value, recorder, assigned
        if ref.trainable and jnp.issubdtype(ref.dtype, jnp.inexact):
            self._used[ref] = None

    def _with_variables(self, grad: Callable[..., Any]) -> Callable[..., tuple[Any, Sequence[Any]]]:
        """Return ``grad`` in the form that takes the variables."""
        if not self._used:
            return lambda *seeds: (grad(*seeds), ())
        parameters = inspect.signature(grad).parameters
        if "variables" not in parameters and all(p.kind is not p.VAR_KEYWORD for p in parameters.values()):
            names = ", ".join(repr(ref.name) for ref in self._used)
            raise ArgumentTypeError(
                f"{_name(self._f)}, which has custom_gradient, uses variables ({names}), so `grad` must take them: "
                "def grad(*upstream, variables=None): return gradients_of_arguments, gradients_of_variables."
            )
        variables = [variable_of(ref) for ref in self._used]
        return lambda *seeds: grad(*seeds, variables=variables)

    def _pulled(self, returned: tuple[Any, Sequence[Any]], arrays: Sequence[Any]) -> list[Any]:
        """Return the gradients of the float arguments, and of the variables."""
        of_arguments, of_variables = returned
        parts = jax.tree.leaves(of_arguments, is_leaf=lambda x: x is None)
        refs = list(self._used)
        for what, given, num in (("argument", parts, len(arrays)), ("variable", of_variables, len(refs))):
            if len(given) != num:
                raise ArgumentError(
                    f"The gradient of {_name(self._f)}, which has custom_gradient, must return one gradient for each {what} "
                    f"({num}); it returned {len(given)}."
                )
        kept = [(x, part) for x, part in zip(arrays, parts, strict=True) if jnp.issubdtype(x.dtype, jnp.inexact)]
        return [self._fitting(x, part) for x, part in [*kept, *zip(refs, of_variables, strict=True)]]

    def _fitting(self, x: Any, part: Any) -> Any:
        if part is None:
            return jnp.zeros(x.shape, x.dtype)
        part = jnp.asarray(part, x.dtype)
        if part.shape != tuple(x.shape):
            raise ArgumentError(
                f"The gradient of {_name(self._f)}, which has custom_gradient, has the shape {part.shape} for an argument or "
                f"variable of shape {tuple(x.shape)}. They must be equal."
            )
        return part


def _evaluate(closed: ClosedJaxpr, arrays: Sequence[Any]) -> list[Any]:
    return run_alone(closed, arrays, [True] * len(arrays), _refuse_exchange)


def _refuse_exchange(question: Question) -> list[Any]:
    raise RaggedStepError(
        f"The replicas have different numbers of rows in this step, and {question.eqn.params.get('label', 'an exchange')} is in a "
        "function with custom_gradient, where exchanges need equal numbers. Move it outside, or use a global batch size that is a "
        "multiple of the number of replicas (with drop_remainder=True for the last batch)."
    )


def _is_empty(cotangent: Any) -> bool:
    return cotangent.dtype == jax.dtypes.float0  # that of an integer


def _name(f: Callable[..., Any]) -> str:
    return f"`{getattr(f, '__name__', type(f).__name__)}`"
