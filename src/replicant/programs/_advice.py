"""Warns of what Python does only once, and not in every step, and of what makes a function compile again and again."""

import inspect
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ._program import Program
from ._programs import MAX_ALIKE
from .arguments._signature import Number, Signature
from .validity._guards import Watch
from .validity._leaked_tracers import Outside

# How many it takes for a warning:
_MANY_PROGRAMS = 16  # programs that differ only in a Python argument
_MANY_VALUES = 4  # values of a number at which the code looks
_MANY_STATES = 4  # states of what is watched


class Advice:
    """Warns of each thing once, at the line of the user's code that made the call.

    Args:
        name: The name of the function.
        subject: The function that the user wrote.
        of_run: Whether it is a replica function that ``run`` calls outside a ``replicant.function``.
    """

    def __init__(self, name: str, subject: Callable[..., Any], *, of_run: bool):
        self._name = name
        self._subject = subject
        self._of_run = of_run
        self._warned: set[str] = set()
        self._changed: str | None = None  # what the code has changed in its last trace

    def on_effects(self, outside: Outside) -> None:
        """Warn of what Python did while the function was traced, and will not do in each step."""
        for label in outside.frozen_random():
            self._warn(
                label,
                f"{self._name!r} draws random numbers from `{label}`, a generator of Python or NumPy, while it is compiled. They "
                "are constants of the program, the same in every step. Draw them outside and pass them as arguments, or use "
                "jax.random or keras.random.",
            )

    def on_unseen(self, watch: Watch) -> None:
        """Warn of what the code reads and nobody can watch."""
        if watch.unseen is not None:
            self._warn(
                "",
                f"{self._name!r} is compiled again at each call, because Replicant cannot tell when this changes: {watch.unseen}. "
                "Pass it as an argument, or decorate the function that calls `run` with replicant.function: that keeps the first "
                "program, and does not see changes.",
            )

    def on_changes(self, watch: Watch) -> None:
        """Warn of what the code changes at each call. What it changes in the first one only, as a flag for it, is no trouble."""
        again, self._changed = watch.changes is not None and watch.changes == self._changed, watch.changes
        if again:
            self._warn(
                f"changes {self._changed}",
                f"{self._name!r} is compiled again at each call, because its Python code changes `{self._changed}`, which it "
                "reads. Change it outside the function that `run` calls, or hold it in a replicant.Variable. Or decorate the "
                "function that calls `run` with replicant.function: there, Python code runs only when a program is made.",
            )

    def on_states(self, programs: Sequence[Program]) -> None:
        """Warn of what has changed between the programs of one signature, if there are many. The first is the newest.

        Threads that call a function for the first time at once compile it once each, without any change.
        """
        outdated = [program for program in programs[1:] if not program.watch.is_spent and not program.watch.holds()]
        if len(outdated) + 1 >= _MANY_STATES:
            label = outdated[0].watch.changed()
            self._warn(
                label,
                f"{self._name!r} has been compiled {len(outdated) + 1} times for the same arguments, because its code reads "
                f"`{label}`, which has changed each time. Pass it as an argument (as an array if it is a number), or hold it in a "
                "replicant.Variable.",
            )

    def on_values(self, signature: Signature, alike: Sequence[Any]) -> None:
        """Warn of an argument that has had many values, each with a program of its own."""
        static: tuple[Any, ...] = signature.key[1]
        for i, own in enumerate(static):
            values = len({key[1][i] for key in alike})
            if values >= _MANY_PROGRAMS and not isinstance(own, Number):
                advice = "Pass it as an array to compile only once, or pass the same object in all calls."
                self._on_argument(signature, i, values, own.value, advice)

    def on_numbers(self, signature: Signature, programs: Sequence[Program]) -> None:
        """Warn of a number of which the code has seen many things, each with a program of its own. The first is the newest."""
        positions = [i for i, own in enumerate(signature.key[1]) if isinstance(own, Number)]
        columns = zip(*(program.numbers.views() for program in programs), strict=True)
        for i, number, views in zip(positions, signature.numbers, columns, strict=True):
            values = len({seen for seen, _ in views})
            if values >= (_MANY_VALUES if any(in_full for _, in_full in views) else _MANY_PROGRAMS):
                advice = (
                    "Its code looks at the Python number itself (as a shape, an index, a key, in a text or an `if`), or the number "
                    "does not fit into an array, and a program is right only for what it has seen. If your code also works with an "
                    "array, pass jnp.asarray(value) to compile only once."
                )
                self._on_argument(signature, i, values, number, advice)

    def _on_argument(self, signature: Signature, position: int, values: int, value: Any, advice: str) -> None:
        name = _name_of(self._subject, signature.tree, position)
        self._warn(
            name,
            f"{self._name!r} has been compiled {values} times, once for each value of its argument `{name}` (now {value!r}). "
            f"{advice} Replicant keeps the programs of the last {MAX_ALIKE} values.",
        )

    def _warn(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(message, stacklevel=_stack_level())


def _stack_level() -> int:
    """Return the `stacklevel` of the first frame outside this package, for a warning that the caller issues."""
    frame, level = sys._getframe(1), 1  # noqa: SLF001 - Python has no other name for it
    while frame.f_back is not None and _root(frame) == _root(sys._getframe(0)):  # noqa: SLF001 - Python has no other name for it
        frame, level = frame.f_back, level + 1
    return level


def _root(frame: Any) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _name_of(fn: Callable[..., Any], tree: Any, position: int) -> str:
    """Return what the code calls the argument at a leaf of ``(args, kwargs)``: ``step``, ``state.step``, ``args[2]``."""
    marked = jax.tree.unflatten(tree, range(tree.num_leaves))
    path = jax.tree_util.tree_flatten_with_path(marked)[0][position][0]
    in_args, top, rest = path[0].idx == 0, path[1], jax.tree_util.keystr(path[2:])
    return (_parameter(fn, top.idx) if in_args else str(top.key)) + rest


def _parameter(fn: Callable[..., Any], index: int) -> str:
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # functions written in C
        return f"args[{index}]"
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return positional[index] if index < len(positional) else f"args[{index}]"
