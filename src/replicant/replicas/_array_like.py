"""What Python, NumPy and JAX ask of an array, for values that are not arrays themselves.

``ArrayLike`` answers with the array behind the value. ``NoArray`` raises an error that says what to write instead.
"""

import operator
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from ..errors import ArgumentTypeError, MissingNameError

_BINARY = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift", "and", "or", "xor", "divmod",
)  # fmt: skip
_COMPARISONS = ("lt", "le", "gt", "ge")
_UNARY = ("neg", "pos", "abs", "invert")
_CONVERSIONS = ("bool", "int", "float", "complex", "index")
_CALLS: dict[str, Callable[..., Any]] = {
    "and": operator.and_, "or": operator.or_, "divmod": divmod, "bool": bool, "int": int, "float": float, "complex": complex,
}  # fmt: skip


def _call_of(name: str) -> Callable[..., Any]:
    return _CALLS.get(name) or getattr(operator, name)


class ArrayLike:
    """A value that computes, converts and prints as the array behind it."""

    __array_priority__ = 100  # NumPy leaves an operation with an array on the left to this class, as to jax.Array
    __hash__ = None  # type: ignore[assignment]  # == compares the elements, as that of jax.Array

    def _array(self) -> Any:
        """Return the array, or the number, behind the value."""
        raise NotImplementedError

    def __jax_array__(self) -> Any:
        return self._array()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._array(), dtype=dtype, copy=copy)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copying and pickling ask for these before there is a value
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._array(), name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return np.shape(self._array())

    @property
    def ndim(self) -> int:
        """The number of dimensions of the value."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the value."""
        array = self._array()
        return array.dtype if hasattr(array, "dtype") else jax.numpy.result_type(array)

    def __str__(self) -> str:
        return str(self._array())

    def __format__(self, spec: str) -> str:
        return format(self._array(), spec)

    def __len__(self) -> int:
        return len(self._array())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._array())

    def __getitem__(self, key: Any) -> Any:
        return self._array()[_plain(key)]

    def __contains__(self, item: Any) -> bool:
        return _plain(item) in self._array()

    def __round__(self, ndigits: int | None = None) -> Any:
        array = self._array()
        return round(array) if ndigits is None else round(array, ndigits)

    def __eq__(self, other: object) -> Any:
        return self._array() == _plain(other)

    def __ne__(self, other: object) -> Any:
        return self._array() != _plain(other)


def _plain(value: Any) -> Any:
    return value._array() if isinstance(value, ArrayLike) else value  # noqa: SLF001 - the same class


def _two_sided(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    call = _call_of(name)

    def left(self: Any, other: Any) -> Any:
        return call(self._array(), _plain(other))

    def right(self: Any, other: Any) -> Any:
        return call(_plain(other), self._array())

    return left, right


def _one_sided(name: str) -> Callable[..., Any]:
    call = _call_of(name)

    def method(self: Any) -> Any:
        return call(self._array())

    return method


for _name in (*_BINARY, *_COMPARISONS):
    _left, _right = _two_sided(_name)
    setattr(ArrayLike, f"__{_name}__", _left)
    if _name in _BINARY:
        setattr(ArrayLike, f"__r{_name}__", _right)
for _name in (*_UNARY, *_CONVERSIONS):
    setattr(ArrayLike, f"__{_name}__", _one_sided(_name))


class NoArray:
    """A value that differs by replica, so that nothing computes with it as if it were one array."""

    @property
    def num_replicas(self) -> int:
        """The number of replicas that have the value."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name == "value":
            raise MissingNameError(
                f"A PerReplica value has one value per replica: write `.values`, a tuple of {self.num_replicas}."
            )
        if name.startswith("_") or not hasattr(jax.Array, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise MissingNameError(self._no_array(f"`.{name}`"))

    def __format__(self, spec: str) -> str:
        if spec:
            raise ArgumentTypeError(self._no_array("format()"))
        return str(self)

    def _no_array(self, what: str) -> str:
        return (
            f"unsupported operand of {what}: a PerReplica value differs between the {self.num_replicas} replicas, so it is not one "
            'array. Compute with it inside `strategy.run`, combine it with strategy.reduce("SUM", value) or '
            'strategy.reduce("MEAN", value), join it with strategy.gather(value, axis=0), or take it apart with '
            "strategy.experimental_local_results(value)."
        )


def _refusal(what: str) -> Callable[..., Any]:
    def method(self: Any, *_: Any, **__: Any) -> Any:
        raise ArgumentTypeError(self._no_array(what))

    return method


_SIGNS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@"}
_SIGNS |= {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lshift": "<<", "rshift": ">>", "and": "&", "or": "|", "xor": "^"}
_SIGNS |= {"neg": "-", "pos": "+", "invert": "~", "abs": "abs()", "divmod": "divmod()", "index": "index"}
for _name in (*_BINARY, *_COMPARISONS, *_UNARY, *_CONVERSIONS):
    setattr(NoArray, f"__{_name}__", _refusal(_SIGNS.get(_name, f"{_name}()")))
    if _name in _BINARY:
        setattr(NoArray, f"__r{_name}__", _refusal(_SIGNS[_name]))
for _name, _what in {
    "array": "np.asarray()",
    "jax_array": "jnp.asarray()",
    "getitem": "[]",
    "len": "len()",
    "round": "round()",
}.items():
    setattr(NoArray, f"__{_name}__", _refusal(_what))
