"""What a trace has done with the Python numbers among the arguments, to be done again at each call.

The code computes with numbers, and looks at some of them: in an ``if``, as a shape, in a text. A program is right for all numbers
that look the same. So nothing is assumed of numbers that have not been seen.
"""

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ...runtime._plain_values import plain_key

_COMPUTED = object()  # instead of what was seen, where the value may differ


class Refused(BaseException):
    """JAX would treat the number itself otherwise than one that records, so the code is traced with the number itself.

    Never reaches the user. Not an Exception, because code may catch those.
    """


class Tape:
    """The steps of one program that depend on the numbers, each computed into a slot.

    The first slots hold the numbers. All traces of the program write to the same tape.

    Args:
        numbers: The numbers of the call that is traced.
        plain: Whether the code gets the numbers themselves, so that the program is right for these only.
    """

    def __init__(self, numbers: Sequence[Any], *, plain: bool = False):
        self.inputs: list[int] = []  # the slots that are inputs of the program
        self.refused = False  # whether the code would do something else with the numbers themselves
        self.in_doubt = False  # whether it would so with numbers of any value
        self.plain = plain
        self.count = len(numbers)
        self.values = [*numbers]  # by slot, of the call that is traced
        self._sources = [frozenset({i}) for i in range(self.count)]  # by slot: the numbers from which it was computed
        self._known: set[int] = set()  # the slots whose values the program is made for
        self._slots: dict[Any, int] = {}
        self._steps: list[tuple[int, Callable[..., Any], tuple[int, ...], Any]] = []
        if plain:
            for slot in range(self.count):
                self.itself(slot)

    def doubt(self) -> None:
        """Note that the code may do something else with the numbers themselves, whatever their values."""
        self.refused = self.in_doubt = True

    def knows(self, *slots: int) -> bool:
        """Return whether the program is made for these values, so that whatever is computed from them is a constant."""
        return self._known.issuperset(slots)

    def constant(self, value: Any) -> int:
        """Return the slot of a value that is the same at each call."""
        slot = self._slots.get(key := plain_key(value))
        if slot is None:
            slot = self._slots[key] = self._new_slot(value, frozenset())
            self._known.add(slot)
        return slot

    def compute(self, fn: Callable[..., Any], *operands: int) -> int:
        """Compute a value. Return its slot.

        Raises:
            Exception: What the function raises. The program is then right only if it raises that again.
        """
        slot = self._slots.get((fn, operands))
        if slot is None:
            slot = self._new_slot(self._call(fn, operands), self._all_sources(operands))
            self._slots[fn, operands] = slot
            self._steps.append((slot, fn, operands, _COMPUTED))
            if fn is operator.pow:  # 2**1 is an int and 2**-1 a float; all other operators tell from the types of their operands
                self.look(type, slot)
        return slot

    def look(self, fn: Callable[..., Any], *operands: int) -> Any:
        """Return a value for the code to look at. The program is right only if it is the same."""
        if self.knows(*operands):
            return fn(*map(self.values.__getitem__, operands))
        key = ("look", fn, operands)
        if key not in self._slots:
            value = self._call(fn, operands)
            self._slots[key] = self._new_slot(value, self._all_sources(operands))
            self._steps.append((-1, fn, operands, value))
        return self.values[self._slots[key]]

    def itself(self, slot: int) -> Any:
        """Return the value of a slot. The program is right only for this value."""
        if slot not in self._known:
            self.look(_itself, slot)
            self._known.add(slot)
        return self.values[slot]

    def input(self, slot: int) -> None:
        """Make a slot an input of the program."""
        if slot not in self.inputs:
            self.inputs.append(slot)

    def input_values(self, values: Sequence[Any]) -> list[Any]:
        """Return those of the values of a call that are inputs."""
        return [values[slot] for slot in self.inputs]

    @property
    def avals(self) -> list[jax.ShapeDtypeStruct]:
        """The shapes of the inputs."""
        return [jax.ShapeDtypeStruct((), dtype_of(self.values[slot]), weak_type=True) for slot in self.inputs]

    def evaluate(self, numbers: Sequence[Any]) -> list[Any] | None:
        """Return the values of all slots at a call with these numbers; None if the program is not right for them."""
        values = [*numbers, *self.values[self.count :]]
        try:
            for slot, fn, operands, seen in self._steps:
                value = fn(*[values[i] for i in operands])
                if seen is _COMPUTED:
                    values[slot] = value
                elif value is not seen and plain_key(value) != plain_key(seen):
                    return None
        except Exception:  # noqa: BLE001 - whatever it is, the traced code has not met it; the new trace will
            return None
        return values

    def views(self) -> Iterator[tuple[frozenset[Any], bool]]:
        """Yield, for each number, all that the code has seen of it, and whether that was more than answers of yes or no."""
        for i in range(self.count):
            mine = [(fn, operands, seen) for _, fn, operands, seen in self._steps if self._sees(i, operands, seen)]
            in_full = any(not isinstance(seen, bool | type) for _, _, seen in mine)
            yield frozenset((fn, operands, plain_key(seen)) for fn, operands, seen in mine), in_full

    def _sees(self, number: int, operands: tuple[int, ...], seen: Any) -> bool:
        return seen is not _COMPUTED and number in self._all_sources(operands)

    def _call(self, fn: Callable[..., Any], operands: tuple[int, ...]) -> Any:
        try:
            return fn(*map(self.values.__getitem__, operands))
        except Exception as error:
            if not self.knows(*operands):
                self._steps.append((-1, functools.partial(_error_of, fn), operands, type(error)))
            raise

    def _new_slot(self, value: Any, sources: frozenset[int]) -> int:
        self.values.append(value)
        self._sources.append(sources)
        return len(self.values) - 1

    def _all_sources(self, operands: Sequence[int]) -> frozenset[int]:
        return frozenset().union(*(self._sources[i] for i in operands))


def dtype_of(number: Any) -> np.dtype:
    """Return the dtype that a number has as an array of its own."""
    return jax.dtypes.canonicalize_dtype(type(number))


def _itself(value: Any) -> Any:
    return value


def _error_of(fn: Callable[..., Any], *operands: Any) -> type | None:
    """Return the kind of error that a function raises."""
    try:
        fn(*operands)
    except Exception as error:  # noqa: BLE001 - it is compared
        return type(error)
    return None
