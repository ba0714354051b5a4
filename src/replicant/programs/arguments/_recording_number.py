"""Numbers that record what is done with them while a program is traced, instead of the Python numbers among the arguments.

Arithmetic gives numbers of the same kind. Where JAX takes one as an array, it is an input of the program. Whatever else
looks at its value (an ``if``, an index, a text) is noted. A subclass of int would not do, because code in C reads through it
without asking. These objects only say that they are of class int or float, so that it has to ask.
"""

import importlib
import math
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray

from ...tracing._inputs import Inputs
from ._number_guards import Refused, Tape, dtype_of
from ._number_looks import watching


class Recording:
    """One trace of a program.

    Args:
        tape: What all traces of the program have done.
        arrays: The tracers for the inputs, in a trace that is made again.
        inputs: What gives the trace its inputs, if it is the first.
    """

    def __init__(self, tape: Tape, arrays: Sequence[Any], inputs: Inputs | None):
        self.tape = tape
        self._inputs = inputs
        self.ended = False  # from then on, its numbers are constants
        self._arrays = dict(zip(tape.inputs, arrays, strict=False))
        self.numbers = [self.number(i) for i in range(tape.count)]

    def number(self, slot: int) -> Any:
        """Return a number that records, or the value itself if the program is made for it or it is of another kind."""
        value = self.tape.values[slot]
        kind = _KINDS.get(type(value))
        if kind is None or self.tape.knows(slot):
            return self.tape.itself(slot)
        number = kind()
        number._recording, number._slot = self, slot
        return number

    def array(self, slot: int) -> Any:
        """Return the tracer of a number that an array takes; a constant if the program is made for the number."""
        if self.ended or self.tape.knows(slot):
            return jnp.asarray(self.tape.values[slot])
        if slot not in self._arrays:
            assert self._inputs is not None, "a trace that is made again has all inputs"
            self.tape.input(slot)
            aval = ShapedArray((), dtype_of(self.tape.values[slot]), weak_type=True)
            self._arrays[slot] = self._inputs.take(slot, aval)
        return self._arrays[slot]


@contextmanager
def recording_numbers(tape: Tape, arrays: Sequence[Any], inputs: Inputs | None = None) -> Iterator[list[Any]]:
    """Return the arguments for one trace in the place of the numbers: numbers that record, or the numbers themselves.

    Raises:
        Refused: If the code would do something else with the numbers themselves.
    """
    recording = Recording(tape, arrays, inputs)
    try:
        with nullcontext() if tape.plain or not recording.numbers else watching(tape.doubt, _ZERO):
            yield recording.numbers
    finally:
        recording.ended = True
    if tape.refused:
        raise Refused


class Number:
    """A number that records. Its class is said to be int or float."""

    __slots__ = ("__weakref__", "_recording", "_slot")
    _recording: Recording
    _slot: int

    def __getattr__(self, name: str) -> Any:
        if name in ("dimension_as_value", "__jax_array__") and _asks_for_an_array(self, name, sys._getframe(1)):
            return lambda: self._recording.array(self._slot)
        kind = self.__class__
        if not hasattr(kind, name):
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return getattr(itself(self), name)

    def __bool__(self) -> bool:
        return _look(bool, self)

    def __int__(self) -> int:
        return _look(int, self)

    def __float__(self) -> float:
        return _look(float, self)

    def __complex__(self) -> complex:
        return _look(complex, self)

    def __hash__(self) -> int:
        return hash(itself(self))

    def __str__(self) -> str:
        return _look(str, self)

    def __repr__(self) -> str:
        return _look(repr, self)

    def __format__(self, spec: str) -> str:
        return _look(format, self, spec)

    def __round__(self, *digits: Any) -> Any:
        return _compute(round, self, *digits)

    def __divmod__(self, other: Any) -> Any:
        return _binary(divmod, self, other)

    def __rdivmod__(self, other: Any) -> Any:
        return _reflected(divmod, self, other)

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        if modulus is not None:
            return pow(itself(self), itself(other), itself(modulus))
        return _binary(operator.pow, self, other)

    def __rpow__(self, other: Any, modulus: Any = None) -> Any:
        del modulus
        return _reflected(operator.pow, self, other)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__class__, (itself(self),)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if _is_dropped(sys._getframe(1)) and self._fits(dtype):
            return np.zeros((), dtype)
        return np.array(itself(self), dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return getattr(ufunc, method)(*map(itself, inputs), **kwargs)

    def __array_function__(self, fn: Any, types: Any, args: Any, kwargs: Any) -> Any:
        of_any = fn in (np.shape, np.ndim, np.size)  # all numbers are alike to it
        args, kwargs = jax.tree.map(lambda x: _ZERO.get(type(x), x) if of_any else itself(x), (args, kwargs))
        return fn(*args, **kwargs)

    def _fits(self, dtype: Any) -> bool:
        """Return whether an array of this dtype made of the program's input is the same as one made of the number."""
        wanted = np.dtype(dtype_of(_value(self)) if dtype is None else dtype)
        if self.__class__ is int and wanted.kind in "iu":
            _shape_of(self)
            low, high = np.iinfo(wanted).min, np.iinfo(wanted).max
            return _look(operator.ge, self, low) and _look(operator.le, self, high)
        _shape_of(self)
        return wanted.kind == "f" and wanted.itemsize >= 4  # narrower ones would be rounded twice


class _Int(Number):
    __slots__ = ()

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride] - nobody sets it
        return int

    def __index__(self) -> int:
        return itself(self)

    def __invert__(self) -> Any:
        return _compute(operator.invert, self)


class _Float(Number):
    __slots__ = ()

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride] - nobody sets it
        return float


_KINDS: dict[type, type[Number]] = {int: _Int, float: _Float}
_ZERO: dict[type, Any] = {_Int: 0, _Float: 0.0}


def is_recording(value: Any) -> bool:
    """Return whether `value` is a number that records, which says of itself that it is not."""
    return type(value) in _ZERO


def itself(value: Any) -> Any:
    """Return the number in place of one that records, so that the program is right for it only. Return others as they are."""
    return value._recording.tape.itself(value._slot) if type(value) in _ZERO else value


def refuse_in_structure(tree: Any) -> None:
    """Raise Refused if a number that records is part of a structure, such as a key of a dictionary."""
    data = tree.node_data()
    if data is None:
        return
    for value in data[1] if isinstance(data[1], list | tuple) else [data[1]]:
        if is_recording(value):
            itself(value)
            value._recording.tape.refused = True
            raise Refused
    for child in tree.children():
        refuse_in_structure(child)


def slot_of(number: Any) -> int:
    """Return where the tape computes a number that records."""
    return number._slot


def _value(number: Any) -> Any:
    return number._recording.tape.values[number._slot] if type(number) in _ZERO else number


def _operand(recording: Recording, value: Any) -> int:
    if type(value) in _ZERO and value._recording.tape is recording.tape:
        return value._slot
    return recording.tape.constant(_value(value))


def _look(fn: Callable[..., Any], number: Number, *others: Any) -> Any:
    recording = number._recording
    if recording.ended:
        return fn(*map(_value, (number, *others)))
    return recording.tape.look(fn, number._slot, *(_operand(recording, x) for x in others))


def _compute(fn: Callable[..., Any], *operands: Any) -> Any:
    """Compute with numbers of which one at least records. Return a number that records, or a pair of them."""
    recording = next(x._recording for x in operands if type(x) in _ZERO)
    if recording.ended:
        return fn(*map(_value, operands))
    tape, slots = recording.tape, [_operand(recording, x) for x in operands]
    if tape.knows(*slots):
        return fn(*map(_value, operands))
    slot = tape.compute(fn, *slots)
    if isinstance(tape.values[slot], tuple):
        return tuple(recording.number(tape.compute(part, slot)) for part in (_first, _second))
    return recording.number(slot)


_first, _second = operator.itemgetter(0), operator.itemgetter(1)


def _binary(fn: Callable[..., Any], number: Number, other: Any) -> Any:
    kind = type(other)
    if kind in _PYTHON or kind in _ZERO:
        return _compute(fn, number, other)
    return fn(itself(number), other) if _is_number_of_c(kind) else NotImplemented


def _reflected(fn: Callable[..., Any], number: Number, other: Any) -> Any:
    kind = type(other)
    if kind in _PYTHON or kind in _ZERO:
        return _compute(fn, other, number)
    return fn(other, itself(number)) if _is_number_of_c(kind) else NotImplemented


_PYTHON = (int, float, bool)


def _is_number_of_c(kind: type) -> bool:
    """Return whether the operators of a class read numbers without asking: complex, and subclasses of int and float."""
    return issubclass(kind, (int, float, complex)) and not issubclass(kind, np.generic)


def _compared(fn: Callable[..., Any], number: Number, other: Any) -> Any:
    kind = type(other)
    if kind in _PYTHON or kind in _ZERO:
        return _look(fn, number, other)
    return fn(itself(number), other) if _is_number_of_c(kind) else NotImplemented


def _give_operators() -> None:
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "lshift", "rshift", "and_", "or_", "xor"):
        fn, plain = getattr(operator, name), name.rstrip("_")
        kind = _Int if name in ("lshift", "rshift", "and_", "or_", "xor") else Number
        setattr(kind, f"__{plain}__", lambda self, other, fn=fn: _binary(fn, self, other))
        setattr(kind, f"__r{plain}__", lambda self, other, fn=fn: _reflected(fn, self, other))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        fn = getattr(operator, name)
        setattr(Number, f"__{name}__", lambda self, other, fn=fn: _compared(fn, self, other))
    for fn in (operator.neg, operator.pos, abs, math.trunc, math.floor, math.ceil):
        setattr(Number, f"__{fn.__name__}__", lambda self, fn=fn: _compute(fn, self))


_give_operators()


# How JAX treats numbers that record: as it does its own symbolic sizes.


def _shape_of(number: Number) -> ShapedArray:
    """Return what JAX knows of a number: it is a scalar of a weak type."""
    dtype = dtype_of(_value(number))
    if dtype.kind == "i":
        info = np.iinfo(dtype)
        if not (_look(operator.ge, number, int(info.min)) and _look(operator.le, number, int(info.max))):
            number._recording.tape.refused = True
            raise Refused
    return ShapedArray((), dtype, weak_type=True)


_codes: dict[str, Any] = {}  # of the functions of JAX that ask for the array


def _asks_for_an_array(number: Number, name: str, frame: Any) -> bool:
    """Return whether JAX may have the tracer in place of the number. To others, such as ``jnp.power``, it is not an array."""
    if name == "dimension_as_value":
        return frame.f_code is _codes.get("trace")
    if frame.f_code.co_name == "<listcomp>":
        frame = frame.f_back
    return frame.f_code is _codes.get("array") and frame.f_locals.get("object") is number


def _is_dropped(frame: Any) -> bool:
    """Return whether ``jnp.array`` only wants to know whether there is such an array."""
    return frame.f_code is _codes.get("coerce") and frame.f_back.f_code is _codes.get("array")


def _register() -> None:
    """Let JAX take numbers that record where it takes Python numbers. Where it does not, it refuses them with an error."""
    try:
        core, dtypes = importlib.import_module("jax._src.core"), importlib.import_module("jax._src.dtypes")
        constructors = importlib.import_module("jax._src.numpy.array_constructors")
        tracing = importlib.import_module("jax._src.interpreters.partial_eval")
        array, coerce = constructors.array.__code__, dtypes.coerce_to_array.__code__
        trace = tracing.DynamicJaxprTrace.to_jaxpr_tracer.__code__
        for python, kind in _KINDS.items():
            core.pytype_aval_mappings[kind] = _shape_of
            dtypes.register_weak_scalar_type(kind)
            dtypes.python_scalar_types_to_dtypes[kind] = dtypes.python_scalar_types_to_dtypes[python]
            dtypes.register_canonicalize_value_handler(kind, None)
    except (ImportError, AttributeError):  # another JAX
        return
    _codes.update(array=array, coerce=coerce, trace=trace)
    for shortcut, needs in ((_multiply, ["trace"]), (_convert, ["array", "coerce"])):
        if not _reaches_the_input(shortcut):
            for code in needs:
                _codes.pop(code)


def _multiply(number: Any) -> Any:
    return jnp.multiply(number, 2.0)


def _convert(number: Any) -> Any:
    return jnp.asarray(number, jnp.float32)


def _reaches_the_input(fn: Callable[[Any], Any]) -> bool:
    """Return whether JAX uses the input of a program in place of a number that records."""

    def traced(array: Any) -> Any:
        tape = Tape([0.5])
        tape.input(0)
        return fn(Recording(tape, [array], None).numbers[0])

    try:
        jaxpr = jax.make_jaxpr(traced)(0.5).jaxpr
    except Exception:  # noqa: BLE001 - then it does not
        return False
    used = {id(v) for equation in jaxpr.eqns for v in equation.invars} | {id(v) for v in jaxpr.outvars}
    return id(jaxpr.invars[0]) in used


_register()
