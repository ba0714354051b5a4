"""One call of a function of JAX that traces others by themselves, such as ``jax.lax.cond``, in the trace of a program.

The first attempt lets JAX trace the branches as they are. If they change no variable, that is all. Otherwise the attempt ends once
all of them are traced, and it is known which variables they change. In the second attempt, these are among the operands and
results of the branches.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from .._known import is_variable, ref_of
from .._recorder import Layer, Recorder, own_value, read
from .._ref import Ref

_Result = TypeVar("_Result")


class Changed(BaseException):
    """The functions of a call change variables that the attempt does not pass through. The call begins again.

    This never reaches the user. Not an Exception: the traced code may catch these.
    """

    def __init__(self, call: "Call"):
        super().__init__()
        self.call = call


class Call:
    """One attempt at a call.

    Args:
        recorder: The recorder of the trace.
        before: The attempt before it, if there was one.

    Attributes:
        recorder: The recorder of the trace.
        refs: The variables that are passed through.
        facts: What else earlier attempts have found out.
        changed: The variables that this attempt was found to change until now.
    """

    def __init__(self, recorder: Recorder, before: "Call | None" = None):
        self.recorder = recorder
        self.refs: list[Ref] = [] if before is None else [*dict.fromkeys([*before.refs, *before.changed])]
        self.facts: set[str] = set() if before is None else before.facts
        self.changed: dict[Ref, None] = {}
        self._written: dict[Ref, None] = {}

    def trace(
        self, fn: Callable[..., Any], args: Sequence[Any], given: Sequence[Any] | None = None, **kwargs: Any
    ) -> tuple[Any, list[Any]]:
        """Call a function in a layer of the recorder. Return its result, and the values that it leaves in `refs`.

        Args:
            fn: The function.
            args: Its arguments.
            given: The values of `refs` at its beginning; None for those outside.
            **kwargs: Its keyword arguments.
        """
        before = {} if given is None else dict(zip(self.refs, given, strict=True))
        with self.recorder.layer(before) as layer:
            result = jax.tree.map(_as_array, fn(*args, **kwargs))
            self.note(layer)
            return result, self.values()

    def note(self, layer: Layer) -> None:
        """Note what a function has changed."""
        self.changed.update(dict.fromkeys(layer.changed))
        self._written.update(layer.written)

    def trace_once(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, list[Any]]:
        """Do what `trace` does, and let `refs` be what the function has changed."""
        with self.recorder.layer({}) as layer:
            result = fn(*args, **kwargs)
            self.note(layer)
            self.refs = [*self.changed]
            return result, self.values()

    def values(self) -> list[Any]:
        """Return the values of `refs` in the layer in progress."""
        return [_as_carried(ref, self.recorder.value(ref)) for ref in self.refs]

    def given(self) -> list[Any]:
        """Return the values of `refs` before a loop, for it to carry. A tape outside sees what is read from them another way."""
        return [own_value(value) for value in self.values()]

    def check(self) -> None:
        """End the attempt if the functions, which are all traced now, change other variables than `refs`.

        Raises:
            Changed: If they do.
        """
        if not self.changed.keys() <= set(self.refs):
            raise Changed(self)

    def learn(self, fact: str) -> None:
        """Begin again with a fact, if it is not known.

        Raises:
            Changed: If it is not.
        """
        if fact not in self.facts:
            self.facts.add(fact)
            raise Changed(self)

    def store(self, values: Sequence[Any]) -> None:
        """Note what `refs` have after the call."""
        for ref, value in zip(self.refs, values, strict=True):
            if ref in self.changed:
                self.recorder.store(ref, value, written=ref in self._written)


def attempt(recorder: Recorder, what: Callable[[Call], _Result]) -> _Result:
    """Return the result of `what`, called until its Call passes all variables through that it changes."""
    number, counts = recorder.next_number("call"), recorder.counts.copy()
    while True:
        call = Call(recorder, recorder.calls.get(number))
        try:
            return what(call)
        except Changed as found:
            if found.call is not call:
                raise
            recorder.calls[number] = call
            recorder.counts = counts.copy()


def named_like(fn: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a function the name and the parameters that errors of JAX show."""
    return functools.wraps(fn, updated=())


def _as_array(leaf: Any) -> Any:
    """Return the value of a variable among the results, such as that which ``assign`` or ``apply_gradients`` return."""
    return read(ref_of(leaf)) if is_variable(leaf) else leaf


def _as_carried(ref: Ref, value: Any) -> Any:
    """Return a value with the dtype of its variable, which no number in the code of a loop changes."""
    value = jnp.asarray(value)
    return lax.convert_element_type(value, ref.dtype) if value.weak_type or value.dtype != ref.dtype else value
