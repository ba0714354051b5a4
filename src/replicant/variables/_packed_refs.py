"""``PackedRefs``: the variables that a program overwrites, of which the small ones lie in packs; and those that it reads."""

import itertools
import math
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..replicas._placement import Placement
from ._packs import Pack, hand_over
from ._ref import Ref, Refs

MOST_BYTES = 8 << 10  # of a variable, because a program copies its packs in each run
MOST_IN_ALL = 128 << 10
_DTYPES = frozenset(np.dtype(x) for x in (np.float32, np.float16, jnp.bfloat16, np.int32, np.uint32))
_has, _VALUE = dict[str, Any].__contains__, itertools.repeat("_value")
_missing = operator.attrgetter("missing")


class PackedRefs:
    """The variables that a program overwrites, as `Refs` has them, of which the small ones are in packs.

    Args:
        refs: The variables.
        placement: The one device on which they are.

    Attributes:
        lock: The lock of the packs, to be held from `load` to `store`. It is not that of all programs, because a callback of
            another program may read what lies here.
        saved: How many arrays fewer there are.
    """

    def __init__(self, refs: Sequence[Ref], placement: Placement):
        self.lock = threading.RLock()
        by_size: dict[int, list[int]] = {}
        for i, ref in enumerate(refs):
            if _is_small(ref, placement):
                by_size.setdefault(np.dtype(ref.dtype).itemsize, []).append(i)
        groups = [group for group in by_size.values() if len(group) > 1]
        together = sum(_bytes(refs[i]) for group in groups for i in group)
        self._groups = groups if together <= MOST_IN_ALL else []
        self._members = [[refs[i] for i in group] for group in self._groups]
        packed = set(itertools.chain(*self._groups))
        self._others = [i for i in range(len(refs)) if i not in packed]
        self._rest = Refs([refs[i] for i in self._others], placement)
        self._placement = placement
        specs = [[(tuple(ref.shape), np.dtype(ref.dtype)) for ref in members] for members in self._members]
        self._packs = [Pack(each, placement, self.lock) for each in specs]
        self._held = [ref.holder.__dict__ for members in self._members for ref in members]
        self.saved = len(packed) - len(self._groups)

    def unpack(self, packed: Sequence[Any]) -> list[Any]:
        """Return the values of the variables in their order, given what `load` has returned. In a trace."""
        num_packs = len(self._packs)
        values = dict(zip(self._others, packed[num_packs:], strict=True))
        for pack, group, array in zip(self._packs, self._groups, packed[:num_packs], strict=True):
            values.update(zip(group, pack.cut(array), strict=True))
        return [values[i] for i in range(len(values))]

    def pack(self, values: Sequence[Any]) -> list[Any]:
        """Return the new values in the form of `load`. In a trace."""
        joined = [pack.join([values[i] for i in group]) for pack, group in zip(self._packs, self._groups, strict=True)]
        return [*joined, *(values[i] for i in self._others)]

    def load(self) -> list[jax.Array]:
        """Return the packs and the other variables, to be donated."""
        packs = self._packs
        if any(map(_has, self._held, _VALUE)) or any(map(_missing, packs)):
            for pack, members in zip(packs, self._members, strict=True):
                self._take(pack, members)
        arrays = [pack.array for pack in packs]
        return [*arrays, *self._rest.load()] if self._others else arrays

    def _take(self, pack: Pack, members: Sequence[Ref]) -> None:
        """Put into a pack whatever has another value, or lies elsewhere."""
        present = [i for i, ref in enumerate(members) if "_value" in ref.holder.__dict__]
        changed = {i for i in present if members[i].holder.__dict__["_value"] is not pack.shown.get(i)}  # else nobody has set it
        changed |= pack.missing
        if changed:
            pack.array = pack.with_values({i: self._on_host(members[i]) for i in changed})
        for i in changed:  # if this is interrupted, the others are packed again, with the same values
            _move(members[i], pack, i)
        for i in present:
            members[i].holder.__dict__.pop("_value", None)
        pack.shown.clear()

    def _on_host(self, ref: Ref) -> np.ndarray:
        if ref.place is not None and "_value" not in ref.holder.__dict__:
            with ref.place[0].lock:
                return ref.place[0].part(ref.place[1])
        raw, is_stacked = ref.get_raw()
        return np.array(ref.load(self._placement, donated=True) if is_stacked else raw, copy=True)

    def store(self, raws: Sequence[jax.Array]) -> None:
        """Store what a program wrote."""
        for pack, raw in zip(self._packs, raws, strict=False):
            pack.array = raw
        if self._others:
            self._rest.store(raws[len(self._packs) :])

    def take_back(self) -> None:
        """Do what `Refs.take_back` does."""
        self._rest.take_back()


def show_together(refs: Iterable[Ref], cut: Callable[[Pack, tuple[int, ...]], Sequence[jax.Array]]) -> None:
    """Let variables that lie in packs have arrays of their own, as programs need them that only read them.

    Args:
        refs: The variables.
        cut: ``cut(pack, numbers)`` returns copies of the values of these numbers.
    """
    hidden: dict[Pack, dict[int, Ref]] = {}
    for ref in refs:
        if ref.place is not None and "_value" not in ref.holder.__dict__:
            hidden.setdefault(ref.place[0], {})[ref.place[1]] = ref
    for pack, members in hidden.items():
        with pack.lock:
            for (i, ref), array in zip(members.items(), cut(pack, tuple(members)), strict=True):
                hand_over(ref, pack, i, array)


def _move(ref: Ref, pack: Pack, index: int) -> None:
    """Let a variable lie in a pack. It may have been in another one."""
    with nullcontext() if ref.place is None else ref.place[0].lock:
        if ref.place is not None and ref.place[0] is not pack:
            ref.place[0].missing.add(ref.place[1])
        ref.set_raw(pack.array, stacked=False)
        ref.place, ref.owned, ref.moved = (pack, index), None, None
        del ref.holder.__dict__["_value"]
        pack.missing.discard(index)


def _is_small(ref: Ref, placement: Placement) -> bool:
    whole = not ref.copies(placement.num_replicas) and ref.slice_axis(placement) is None and ref.model_cut(placement) is None
    return whole and ref.can_be_packed() and np.dtype(ref.dtype) in _DTYPES and 0 < _bytes(ref) <= MOST_BYTES


def _bytes(ref: Ref) -> int:
    return math.prod(ref.shape) * np.dtype(ref.dtype).itemsize
