"""A variable as a step sees it, whichever library it belongs to, and the variables of one program together."""

from collections.abc import Sequence
from typing import Any, Protocol

import jax
from jax.sharding import Sharding

from ..replicas._copies import VariableAggregation, aggregate_copies, split_value
from ..replicas._placement import Placement, on_all


class Holder(Protocol):
    """What has a variable's stored array: the variable itself, one of Keras's, or a reference that stores for itself."""

    _value: Any


class Ref:
    """One variable as a step sees it. Storage is its library's; the rules are ours.

    name: for messages. shape, dtype: of one copy. on_read: whether each replica keeps its own copy. aggregation: how copies are
    combined. rows_only: replicas without data have no say in its value (batch statistics, metrics). trainable: tapes watch it.
    slot: optimizer state, which a placement may cut into one slice per replica. strategy: that under which it was made, if any.

    holder: what has the stored array. owned: the array that a program made and nobody else has seen, so it may be donated;
    owned_on: where it lies. moved: the last array that had to be moved, and its new place. `Refs` reads and writes these four.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    on_read: bool
    aggregation: VariableAggregation
    rows_only: bool
    trainable: bool
    slot: bool = False
    strategy: Any = None  # under which it was made, if that has devices of its own
    elsewhere: bool = False  # it lies on a server: storing notes a change, which is pushed later
    _value: Any  # of a reference that is its own holder

    def __init__(self, holder: Any = None) -> None:
        self.holder: Holder = self if holder is None else holder
        self.owned: Any = None
        self.owned_on: Placement | None = None
        self.stand_in: Any = None  # another library's variable that shares the storage, where that library tracks its own only
        self.moved: tuple[Any, Placement, jax.Array] | None = None

    def switch(self) -> tuple[Any, str]:
        """An object and the name of its attribute that says whether the variable is trainable."""
        return self, "trainable"

    def get_raw(self) -> tuple[Any, bool]:
        """The stored array, and whether it is the stack of the replicas' copies."""
        raise NotImplementedError

    def set_raw(self, raw: Any, *, stacked: bool) -> None:
        """Store an array, or a stack of copies."""
        raise NotImplementedError

    def expose(self) -> None:
        """Note that the stored array was given to somebody: the next step must not donate it."""
        self.owned = None

    def copies(self, num_replicas: int) -> bool:
        """Whether the variable enters a program of `num_replicas` as a stack of copies."""
        return self.on_read and num_replicas > 1

    def slice_axis(self, placement: Placement) -> int | None:
        """The axis along which each replica has its slice of the variable; None: each has all of it."""
        return placement.slice_axis(self.shape) if self.slot and not self.on_read else None

    def load(self, placement: Placement, *, donated: bool) -> jax.Array:
        """The stored array as the input of a program, which may overwrite it if `donated`."""
        raw, _ = self.get_raw()
        if raw is self.owned and self.owned_on is placement:
            return raw
        if not donated and self.moved is not None and self.moved[0] is raw and self.moved[1] is placement:
            return self.moved[2]
        placed = placement.own(*self.fitting(placement))
        if not donated:
            self.moved = (raw, placement, placed)
        return placed

    def fitting(self, placement: Placement) -> tuple[Any, Any]:
        """The stored array as programs on `placement` want it, wherever it is, and how it is to lie there."""
        raw, stacked = self.get_raw()
        copies = self.copies(placement.num_replicas)
        value = raw
        if stacked != copies or (stacked and raw.shape[0] != placement.num_replicas):
            value = on_all(aggregate_copies, raw, self.aggregation, self.name) if stacked else raw
            value = split_value(value, self.aggregation, placement.num_replicas) if copies else value
        return value, self.home(placement)

    def home(self, placement: Placement) -> Sharding | None:
        """How the variable lies in the programs of a placement."""
        return placement.home(stacked=self.copies(placement.num_replicas), slice_axis=self.slice_axis(placement))

    def store(self, raw: jax.Array, placement: Placement) -> None:
        """Keep what a program wrote."""
        self.set_raw(raw, stacked=self.copies(placement.num_replicas))
        self.owned, self.owned_on, self.moved = raw, placement, None

    def take_back(self) -> None:
        """Forget what `store` has noted, to be done elsewhere later. What is stored here is simply stored again."""

    def gradient(self, parts: Sequence[tuple[Any, Any]]) -> Any:
        """The variable's gradient from (what was read, the gradient with respect to that) of every read."""
        total = parts[0][1]
        for _, part in parts[1:]:
            total = total + part
        return total

    def read_eagerly(self) -> jax.Array:
        """The value in cross-replica context outside of any program."""
        raw, stacked = self.get_raw()
        if stacked:
            return on_all(aggregate_copies, raw, self.aggregation, self.name)
        self.expose()
        return raw


class Refs:
    """The variables that a program overwrites. Every step loads and stores all of them, so the usual case is written out here."""

    def __init__(self, refs: Sequence[Ref], placement: Placement):
        self._slots = [(ref, ref.holder) for ref in refs]
        self._placement = placement

    def load(self) -> list[jax.Array]:
        """What ``Ref.load`` gives for each, to be donated."""
        placement = self._placement
        return [
            ref.owned
            if holder._value is ref.owned is not None and ref.owned_on is placement  # noqa: SLF001 - see Holder
            else ref.load(placement, donated=True)
            for ref, holder in self._slots
        ]

    def store(self, raws: Sequence[jax.Array]) -> None:
        """``Ref.store`` for each. If that is interrupted, no change that servers are to make is left noted."""
        placement = self._placement
        try:
            for (ref, holder), raw in zip(self._slots, raws, strict=True):
                if ref.owned_on is placement and not ref.on_read:
                    holder._value = ref.owned = raw  # noqa: SLF001 - see Holder
                    ref.moved = None
                else:
                    ref.store(raw, placement)
        except BaseException:
            self.take_back()
            raise

    def take_back(self) -> None:
        """``Ref.take_back`` for each."""
        for ref, _ in self._slots:
            ref.take_back()
