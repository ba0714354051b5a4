"""Raises if a traced function changes state where nobody will see it, because training would silently lose that state.

There are two cases. An argument that JAX takes apart (a dictionary, an ``nnx.State`` of Flax) reaches the function as a copy, so
whatever the function assigns in it is gone when it returns. And an object that JAX does not know (one with an attribute, or a list
that the function closes over) is left with a tracer, which stands for a value only while the function is traced.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.core import Tracer

from ...errors import LostStateError
from ...replicas._values import DistributedValues, is_array, is_distributed
from ..arguments._opaque import is_object
from ..arguments._recording_number import is_recording, itself
from ._dependencies import Reach, drawn
from ._holders import ABSENT, Holder

_PLAIN_KEYS = (jax.tree_util.DictKey, jax.tree_util.SequenceKey)
_ADVICE = (
    "Return the new value from the function and pass it to the next call, or hold it in a replicant.Variable or a Keras variable."
)


class Arguments:
    """The arguments of a call before it, to compare with them afterwards.

    Args:
        args: The positional arguments as the function gets them.
        kwargs: The keyword arguments as the function gets them.
        batch: The leaves that are a replica's own rows. A step may prepare its batch inside the dictionary that holds it.
    """

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any], batch: Sequence[Any] = ()):
        self._now = (args, kwargs)
        self._before = dict(self._flat())
        self._batch = {id(x) for x in batch}

    def _flat(self) -> list[tuple[Any, Any]]:
        return jax.tree_util.tree_flatten_with_path(self._now, is_leaf=lambda x: is_distributed(x) or is_object(x))[0]

    def check(self, what: str, result: Any, *, copies_are_theirs: bool) -> None:
        """Raise LostStateError if a leaf was replaced or added in place, and is not among the results.

        Args:
            what: The name of the call in the message.
            result: What the call returned.
            copies_are_theirs: Whether a step may change dictionaries and lists that hold its batch, as in ``run``.
        """
        returned: set[int] | None = None
        for path, leaf in self._flat():
            if self._before.get(path) is leaf or not (_traced(leaf) or _recording(leaf)):
                continue
            plain = all(isinstance(key, _PLAIN_KEYS) for key in path)
            if plain and copies_are_theirs and self._is_batch(path):
                continue
            if returned is None:
                returned = {id(x) for x in (*jax.tree.leaves(result), *jax.tree.leaves(result, is_leaf=is_distributed))}
            if id(leaf) not in returned:
                raise LostStateError(self._message(what, path, plain=plain))

    def _is_batch(self, path: tuple[Any, ...]) -> bool:
        beside = [leaf for other, leaf in self._before.items() if other[: len(path) - 1] == path[:-1]]
        return any(id(leaf) in self._batch for leaf in beside)

    def _message(self, what: str, path: tuple[Any, ...], *, plain: bool) -> str:
        in_args = path[0].idx == 0
        top = self._now[0][path[1].idx] if in_args else self._now[1][path[1].key]
        where = f"argument {path[1].idx}" if in_args else f"argument {path[1].key!r}"
        name = f"{where} (a {type(top).__name__}), at {jax.tree_util.keystr(path[2:])}"
        if plain:
            return (
                f"{what} changed its {name}, in place. The function gets a copy of its arguments' structure, so the change would "
                "be lost. If it is only meant for this call, change a copy (`dict(x)`, `list(x)`). " + _ADVICE
            )
        advice = f"Return the {type(top).__name__} from the function, and continue with what the call returns. "
        if any(base.__module__.partition(".")[0] == "flax" for base in type(top).__mro__):
            advice = (
                "Pass the modules themselves, as in `strategy.run(step, args=(model, optimizer))`: a step changes them in place. "
                f"Or return the {type(top).__name__} from the function, and put it back with `nnx.update(model, state)`. "
            )
        return (
            f"{what} changed its {name}, in place. JAX takes such an object apart and the function gets a copy, so what it "
            f"learned would be silently lost. {advice}"
        )


class Outside:
    """What a function reaches besides its arguments, as it was before the code that names it ran."""

    def __init__(self, reach: Reach):
        self._reach: Reach | None = reach
        self._is_traced = False

    def _holders(self) -> list[Holder]:
        return [] if self._reach is None else [holder for holder in self._reach.holders.values() if not holder.fresh]

    def release(self) -> None:
        """Forget all, now that the program is made. What the code changes if JAX traces it once more stays."""
        self._reach = None

    def check(self, what: str) -> None:
        """Raise LostStateError if the trace left a tracer in one of the objects, after putting back what was there."""
        lost = [found for holder in self._holders() if (found := _restore(holder)) is not None]
        if lost:
            raise LostStateError(
                f"{what} stores a traced value in `{lost[0]}`. It stands for a number only while the function is compiled. A "
                "compiled step does not run its Python code again, so the object would never see what later steps compute. "
                + _ADVICE
            )

    def convert_numbers(self) -> None:
        """Put the Python numbers in the place of those that record, if the trace left some. The program is right for these only."""
        for holder in self._holders():
            content = holder.content().items()
            if found := {key: x for key, x in content if x is not holder.before.get(key, ABSENT) and _recording(x)}:
                holder.put({key: jax.tree.map(itself, x) for key, x in found.items()})

    def changed(self) -> str | None:
        """Return what the trace has changed of what the code reads, such as a flag for the first step; None if nothing."""
        return next((path for holder in self._holders() if (path := holder.changed()) is not None), None)

    def start(self) -> None:
        """Call this when a trace starts. Each finds what the first one has found, so that a call changes Python objects once."""
        if self._is_traced:
            self.put_back()
        self._is_traced = True

    def put_back(self) -> None:
        """Undo what the last trace has changed."""
        for holder in self._holders():
            holder.put_back()

    def accept(self) -> None:
        """Let what the trace has changed be what the next one finds: it has made variables, and must not make them again."""
        for holder in self._holders():
            holder.before = dict(holder.content())

    def frozen_random(self) -> list[str]:
        """Return the random generators that the trace has drawn from. Their numbers are constants of the program."""
        generators = [] if self._reach is None else self._reach.generators.values()
        return [label for label, generator, before in generators if drawn(generator) != before]


def _restore(holder: Holder) -> str | None:
    """Give `holder` back what it had. Return where a tracer was left in it; None if there is none."""
    lost = {}
    for key, value in holder.content().items():
        old = holder.before.get(key, ABSENT)
        # A layer may keep its last attention scores or the like, which the next step does not read.
        if value is not old and _traced(value) and (not holder.layer or _is_state(old)):
            lost[key] = old
    if not lost:
        return None
    if holder.kind == "items":
        holder.put_back()
    else:
        holder.put(lost)
    return holder.path(next(iter(lost)))


def _traced(value: Any) -> bool:
    if isinstance(value, Tracer):
        return True
    return isinstance(value, list | tuple | dict | DistributedValues) and any(isinstance(x, Tracer) for x in jax.tree.leaves(value))


def _recording(value: Any) -> bool:
    return is_recording(value) or (isinstance(value, list | tuple | dict) and any(map(is_recording, jax.tree.leaves(value))))


def _is_state(old: Any) -> bool:
    return old is not ABSENT and (is_array(old) or (isinstance(old, int | float) and not isinstance(old, bool)))
