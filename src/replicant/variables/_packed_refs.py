"""``PackedRefs``: the variables of one program together, of which the small ones lie in packs."""

import itertools
import math
import operator
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..replicas._placement import Placement
from ._packs import Pack
from ._ref import Ref, Refs

MOST_BYTES = 8 << 10  # of a variable, because a program copies its packs in each run
MOST_IN_ALL = 128 << 10
_DTYPES = frozenset(np.dtype(x) for x in (np.float32, np.float16, jnp.bfloat16, np.int32, np.uint32))
_RUNS_FOR_ALL = 8  # runs of a program that save as much time as packing all of its variables again takes
_has, _VALUE = dict[str, Any].__contains__, itertools.repeat("_value")
_is_whole = operator.attrgetter("is_whole")


class PackedRefs:
    """The variables that a program overwrites, as `Refs` has them, of which the small ones are in packs.

    Args:
        refs: The variables.
        placement: The one device on which they are.

    Attributes:
        lock: The lock of the packs, to be held from `load` to `store`. It is not that of all programs, because a callback of
            another program may read what lies here.
        saved: How many arrays fewer there are.
        debt: Grows with the variables that were read or set before a run, by one for all of them, and shrinks with each run.
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
        home = placement.mirrored
        assert home is not None, "the strategy has a device"
        self._packs = [Pack(each, home, self.lock) for each in specs]
        self._held = [ref.holder.__dict__ for members in self._members for ref in members]
        self.saved, self.debt = len(packed) - len(self._groups), 0.0

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
        if any(map(_has, self._held, _VALUE)) or not all(map(_is_whole, packs)):
            for pack, members in zip(packs, self._members, strict=True):
                self._take(pack, members)
        if self.debt:
            self.debt = max(0.0, self.debt - 1 / _RUNS_FOR_ALL)
        arrays = [pack.array for pack in packs]
        return [*arrays, *self._rest.load()] if self._others else arrays

    def _take(self, pack: Pack, members: Sequence[Ref]) -> None:
        """Put into a pack whatever has another value, or lies in another pack."""
        changed = {}
        for i, ref in enumerate(members):
            held, is_here = ref.holder.__dict__, ref.place is not None and ref.place[0] is pack
            if "_value" in held or not is_here:
                self.debt += 1 / len(self._held)
                if not is_here or held["_value"] is not pack.shown.get(i):  # else somebody has only read it
                    changed[i] = np.array(ref.load(self._placement, donated=True), copy=True)
        if changed:
            pack.array = pack.with_values(changed)
        pack.is_whole = True
        for i, ref in enumerate(members):  # if this is interrupted, the others are packed again, with the same values
            if i in changed:
                _move(ref, (pack, i))
            ref.holder.__dict__.pop("_value", None)
        pack.shown.clear()

    def begin(self) -> None:
        """Pack all variables."""
        with self.lock:
            self.load()
            self.debt = 0.0

    def store(self, raws: Sequence[jax.Array]) -> None:
        """Store what a program wrote."""
        for pack, raw in zip(self._packs, raws, strict=False):
            pack.array = raw
        if self._others:
            self._rest.store(raws[len(self._packs) :])

    def take_back(self) -> None:
        """Do what `Refs.take_back` does."""
        self._rest.take_back()

    def copies(self) -> list[jax.Array]:
        """Return what `load` would return, in memory of its own, and leave the variables as they are."""
        values = [[np.array(ref.load(self._placement, donated=True), copy=True) for ref in each] for each in self._members]
        packs = [pack.with_values(dict(enumerate(each))) for pack, each in zip(self._packs, values, strict=True)]
        return [*packs, *[jnp.array(array, copy=True) for array in self._rest.load()]]

    def end(self) -> None:
        """Give all variables arrays of their own again."""
        with self.lock:
            for pack, members in zip(self._packs, self._members, strict=True):
                for ref in members:
                    if ref.place is not None and ref.place[0] is pack:
                        ref.get_raw()
                        ref.place = None


def _move(ref: Ref, place: tuple[Pack, int]) -> None:
    """Let a variable lie in a pack. It may have been in another one."""
    with nullcontext() if ref.place is None else ref.place[0].lock:
        if ref.place is not None and ref.place[0] is not place[0]:
            ref.place[0].is_whole = False
        ref.set_raw(place[0].array, stacked=False)
        ref.place, ref.owned, ref.moved = place, None, None
        del ref.holder.__dict__["_value"]


def _is_small(ref: Ref, placement: Placement) -> bool:
    whole = not ref.copies(placement.num_replicas) and ref.slice_axis(placement) is None and ref.model_cut(placement) is None
    return whole and ref.can_be_packed() and np.dtype(ref.dtype) in _DTYPES and 0 < _bytes(ref) <= MOST_BYTES


def _bytes(ref: Ref) -> int:
    return math.prod(ref.shape) * np.dtype(ref.dtype).itemsize
