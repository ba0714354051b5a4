"""Warnings about a function that is compiled: what Python does once and not in every step, and what compiles it over and over."""

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from ._lost_state import Outside
from ._numbers import name_of
from ._program import Program
from ._programs import MAX_ALIKE
from ._signature import ARRAY, Signature

_MANY_PROGRAMS = 16  # that differ in nothing but a Python argument: worth a warning
_MANY_VALUES = 4  # of a number that can be no input, likewise
_MANY_STATES = 4  # of what was watched, likewise


class Advice:
    """Warns of each thing once, where the user's code made the call.

    Args:
        name: of the function.
        subject: the function that the user has written.
        of_run: whether it is a replica function, called by ``run`` outside of a ``replicant.function``.
    """

    def __init__(self, name: str, subject: Callable[..., Any], *, of_run: bool):
        self._name = name
        self._subject = subject
        self._of_run = of_run
        self._warned: set[str] = set()

    def on_effects(self, outside: Outside) -> None:
        """Say what Python did while the function was traced, and will not do at each step."""
        for label in outside.frozen_random():
            self._warn(
                label,
                f"{self._name!r} draws random numbers from `{label}`, a generator of Python or NumPy, while it is compiled: "
                "they are constants of the program, the same in every step. Draw them outside and pass them as arguments, or use "
                "jax.random or keras.random.",
            )
        for label in outside.counted() if self._of_run else ():
            self._warn(
                label,
                f"{self._name!r} changes the Python number `{label}`. Its Python code runs when it is compiled, not in every step, "
                "so the number does not count steps. Hold it in a replicant.Variable, or change it outside of the function.",
            )

    def on_states(self, programs: Sequence[Program]) -> None:
        """Say what has changed between the programs of one signature, if they are many."""
        if len(programs) >= _MANY_STATES:
            label = programs[1].watch.changed()
            self._warn(
                label,
                f"{self._name!r} has been compiled {len(programs)} times for the same arguments, because `{label}` has changed "
                "each time and its code reads it. Pass it as an argument, as an array if it is a number, or hold it in a "
                "replicant.Variable.",
            )

    def on_values(self, signature: Signature, alike: Sequence[Any]) -> None:
        """Say which argument has had so many values, each with a program of its own."""
        static: tuple[Any, ...] = signature.key[1]
        for i, own in enumerate(static):
            values = len({key[1][i] for key in alike})
            is_number = own is not ARRAY and type(own.value) in (int, float)
            if values < (_MANY_VALUES if is_number else _MANY_PROGRAMS):
                continue
            name = name_of(self._subject, signature.tree, i)
            advice = (
                "It cannot be an input of one program: the code needs the Python number itself (in an `if`, a `range`, a "
                "shape), does something else with an array (`x ** k`, `isinstance`), or the number does not fit in 32 bits. If an "
                "array will do, pass jnp.asarray(value) to compile once."
                if is_number
                else "Pass it as an array to compile once, or keep one object for all calls."
            )
            self._warn(
                name,
                f"{self._name!r} has been compiled {values} times, once for each value of its argument `{name}` (now "
                f"{own.value!r}). {advice} The programs of the last {MAX_ALIKE} values are kept.",
            )

    def _warn(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(message, stacklevel=_stack_level())


def _stack_level() -> int:
    """The `stacklevel` of the first frame outside of this package, for a warning that is given by the caller."""
    frame, level = sys._getframe(1), 1  # noqa: SLF001 - Python has no other name for it
    while frame.f_back is not None and _root(frame) == _root(sys._getframe(0)):  # noqa: SLF001 - Python has no other name for it
        frame, level = frame.f_back, level + 1
    return level


def _root(frame: Any) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
