"""``replicant.function`` compiles a whole step, or runs a loop over a dataset whose steps are compiled."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_flatten

from .errors import ArgumentError, ArgumentTypeError, ContextError
from .programs._compiled import Compiled
from .programs.arguments._opaque import hide, show
from .programs.arguments._signature import Signature
from .replicas._own_mesh import in_a_trace
from .replicas._values import is_array, is_host_array
from .tracing.gradients import _eager
from .variables._known import is_variable
from .variables._recorder import NotTraceable, current_recorder

_Fn = TypeVar("_Fn", bound=Callable[..., Any])


class Function:
    """The callable that ``replicant.function`` returns."""

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
        """The number of compiled programs: one for each structure, shapes, dtypes and Python values of the arguments.

        A Python number adds a program when the code sees something new of it, such as another answer of an `if`.
        """
        return self._compiled.num_programs

    def experimental_get_tracing_count(self) -> int:
        """Return how many times the Python code has been traced.

        Semantics: the method of tf.function.

        >>> import replicant, jax.numpy as jnp
        >>> double = replicant.function(lambda x: 2 * x)
        >>> print(double(jnp.float32(1.0)), double(jnp.float32(2.0)))
        2.0 4.0
        >>> double.experimental_get_tracing_count()
        1
        """
        return self._compiled.num_traces

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if current_recorder() is not None:  # inside another function or a replica: part of that program
            return self._fn(*args, **kwargs)
        traced = in_a_trace()
        if traced and _eager.current() is not None:  # a tape outside of programs records what it does
            return self._fn(*args, **kwargs)
        leaves, tree = tree_flatten(hide((args, kwargs)))
        if self._runs_as_written:
            return self._fn(*args, **kwargs)
        asks = not traced and self._compiled.may_be_same
        if asks and (program := self._compiled.same_again(leaves, tree)) is not None:  # as nearly always in a loop
            return show(program.run(leaves, []))
        if any(map(_is_stream, leaves)):
            return self._fn(*args, **kwargs)
        try:
            return self._compiled.call(leaves, tree, is_other=asks)
        except NotTraceable:  # it reads a dataset that is not among its arguments
            self._runs_as_written = True
        return self._fn(*args, **kwargs)

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> "ConcreteFunction":
        """Compile the program for one kind of arguments, without running it.

        Args:
            *args: Arguments as for a call. Instead of an array, there may be a ``replicant.data.TensorSpec`` or a
                ``jax.ShapeDtypeStruct``.
            **kwargs: Keyword arguments, likewise.

        Raises:
            ArgumentError: If the shape of a spec has a size that is None.
            ArgumentTypeError: If a spec is not of a numeric dtype.
            ContextError: Inside another compiled function, and for a function that reads a dataset or an iterator, as it has no
                program of its own.
        """
        name = repr(getattr(self._fn, "__qualname__", self._fn))
        if current_recorder() is not None or in_a_trace():
            raise ContextError(
                f"get_concrete_function of {name} was called inside another compiled function or a tape. Call it outside."
            )
        leaves, tree = jax.tree.flatten(hide((args, kwargs)))
        leaves = [_stand_in(leaf) if _is_spec(leaf) else leaf for leaf in leaves]
        reads = self._runs_as_written or any(map(_is_stream, leaves))
        if not reads:
            try:
                return ConcreteFunction(self, leaves, tree)
            except NotTraceable:
                reads = self._runs_as_written = True
        raise ContextError(
            f"{name} reads a dataset or an iterator, so it runs as ordinary Python and has no program of its own. Call "
            "get_concrete_function of a replicant.function that takes the batch."
        )

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else BoundFunction(self, instance)


class BoundFunction(functools.partial[Any]):
    """A ``Function`` as a method of an object."""

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> "ConcreteFunction":
        """Do what ``Function.get_concrete_function`` does."""
        fn: Any = self.func
        return fn.get_concrete_function(*self.args, *args, **kwargs).bound_to(self.args)


class ConcreteFunction:
    """What ``get_concrete_function`` returns: the program for one kind of arguments."""

    def __init__(self, function: Function, leaves: list[Any], tree: Any):
        self._function = function
        compiled: Compiled = function._compiled  # noqa: SLF001 - the two are one thing
        self._signature, program = compiled.concrete(leaves, tree)
        inputs = program.numbers.input_values(self._signature.computed) if self._signature.computed else []
        self._lowered = program.lower([*self._signature.arrays, *inputs])
        self._bound: tuple[Any, ...] = ()

    def bound_to(self, first: tuple[Any, ...]) -> "ConcreteFunction":
        """Put arguments before those of every call: the object, for a method. Return this function."""
        self._bound = first
        return self

    @property
    def name(self) -> str:
        """The name of the function."""
        return getattr(self._function.python_function, "__qualname__", type(self._function.python_function).__name__)

    @property
    def structured_input_signature(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and keyword arguments, with a ``jax.ShapeDtypeStruct`` for each array."""
        args, kwargs = show(self._signature.arguments(self._signature.avals))
        return args[len(self._bound) :], kwargs

    def as_text(self) -> str:
        """Return the text of the program, as JAX lowers it (StableHLO), before XLA compiles it."""
        return self._lowered.as_text()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function.

        Raises:
            ArgumentError: If the arguments are of another kind.
        """
        leaves, tree = jax.tree.flatten(hide(((*self._bound, *args), kwargs)))
        if not Signature(leaves, tree, self._signature.placement).is_same(self._signature):
            raise ArgumentError(
                f"The concrete function {self.name!r} takes arguments of the structure, shapes and dtypes "
                f"{self.structured_input_signature}; got {jax.tree.map(_described, (args, kwargs))}. Call the function itself, "
                "which compiles a program for each kind."
            )
        return self._function(*self._bound, *args, **kwargs)


def _described(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if is_array(leaf) else leaf


def _is_spec(leaf: Any) -> bool:
    described = hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    return described and not (is_array(leaf) or is_host_array(leaf) or is_variable(leaf))


def _stand_in(spec: Any) -> Any:
    """Return an array of zeros as a spec describes it. No memory is used for it unless somebody writes there."""
    if None in spec.shape:
        raise ArgumentError(f"A program needs to know all shapes; got {spec!r}. Write the size that your batches have.")
    if jnp.dtype(spec.dtype).kind in "OSUMm":
        raise ArgumentTypeError(f"No program takes an array of dtype {spec.dtype}; got {spec!r}. Pass the strings themselves.")
    return np.zeros(spec.shape, jnp.dtype(spec.dtype))


def _is_stream(leaf: Any) -> bool:
    """Whether `leaf` is a dataset or an iterator, over which Python code loops."""
    if is_array(leaf):
        return False
    return isinstance(leaf, Iterable) and not isinstance(leaf, str | bytes) and not hasattr(leaf, "dtype")


@overload
def function(fn: _Fn) -> _Fn: ...
@overload
def function(
    fn: None = None,
    *,
    input_signature: Any = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    experimental_relax_shapes: bool | None = None,
) -> Callable[[_Fn], _Fn]: ...
def function(
    fn: Any = None,
    *,
    input_signature: Any = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    experimental_relax_shapes: bool | None = None,
) -> Any:
    """Compile `fn` as one program, with every ``strategy.run`` and ``reduce`` in it.

    The variables that `fn` uses are found automatically, and stay on the devices between calls. The Python code of `fn` runs only
    while it is traced: once for each program (``experimental_get_tracing_count``), and again when `trainable` of a variable or
    layer that it uses changes. It is traced once more if it made variables, if a gradient turned out to be None, or if replicas of
    different sizes exchange values, whose shapes a first trace finds.

    If `fn` reads a dataset or an iterator, it runs as ordinary Python code, and only each ``run`` and ``reduce`` in it is compiled.

    Semantics: tf.function, except that tf.function traces again for every new Python number.

    Args:
        fn: Ordinary code in cross-replica context. Arrays, PerReplica values and pytrees of them among its arguments are inputs.
            Strings, booleans and other objects are part of the signature: each new value compiles another program. A Python number
            is an input where an array takes it (a weakly typed scalar, as in ``jax.jit``), and what Python computes from it is
            computed at each call. A program runs only for numbers of which its code has seen the same (which answer of an `if`,
            which shape, which text). Others compile another one, and a warning names an argument that does so again and again.
        input_signature: Must be None, because a program is compiled for the shapes and dtypes of each call.
        autograph: Has no effect, because Python code is never rewritten. It is accepted for ported code, like the arguments below.
        jit_compile: Has no effect, because XLA compiles everything.
        reduce_retracing: Has no effect, because XLA needs to know all shapes.
        experimental_relax_shapes: Has no effect, for the same reason.

    Returns:
        A callable with the same signature as `fn`; without `fn`, a decorator. Its method ``get_concrete_function`` takes the same
        arguments, or specs of them, and returns the program for them, which has the method ``as_text``.

    Raises:
        ArgumentError: If `input_signature` is given.
        ArgumentTypeError: If `fn` is not callable.
        LostStateError: When it is called, if `fn` changes one of its arguments in place, or leaves a traced value in an object
            outside, such as an attribute or a list, where it would be lost.

    >>> import replicant, jax.numpy as jnp
    >>> total = replicant.Variable(0.0)
    >>> @replicant.function
    ... def add(x):
    ...     total.assign_add(x)
    ...     return total.value()
    >>> print(add(jnp.asarray(2.0)), add(jnp.asarray(3.0)))
    2.0 5.0
    """
    del autograph, jit_compile, reduce_retracing, experimental_relax_shapes
    if input_signature is not None:
        raise ArgumentError(
            f"function does not take input_signature; got {input_signature!r}. Each call is compiled for its shapes and dtypes. "
            "Leave the argument out, and batch with drop_remainder=True if there should be one program only."
        )
    if fn is None:
        return Function
    if not callable(fn):
        raise ArgumentTypeError(f"function takes a callable; got {fn!r} of type {type(fn).__name__}.")
    return Function(fn)
