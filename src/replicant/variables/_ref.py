"""``Ref``, a variable of any library as a step sees it, and ``Refs``, the variables of one program together."""

from collections.abc import Sequence
from sys import getrefcount
from typing import Any, Protocol

import jax
import numpy as np
from jax.core import ShapedArray
from jax.sharding import Sharding

from ..replicas._copies import VariableAggregation, aggregate_copies, split_value
from ..replicas._model_axis import ModelCut
from ..replicas._own_mesh import at_once, on_own_mesh
from ..replicas._placement import Placement, is_local, on_all
from ..runtime import _in_flight
from ._slices import LARGE, in_pieces, known_value, note_cut, read_whole


class Holder(Protocol):
    """The object that holds a variable's stored array: the variable itself, a Keras variable, or the reference."""

    _value: Any


class Ref:
    """One variable as a step sees it. Its library stores the value, and the rules for its copies are the same for all libraries.

    Attributes:
        name: The name in messages.
        shape: The shape of one copy.
        dtype: The dtype of one copy.
        on_read: Whether each replica keeps its own copy.
        aggregation: How the copies are combined.
        rows_only: Whether replicas without data have no say in its value, as with batch statistics and metrics.
        trainable: Whether tapes watch it.
        slot: Whether it is optimizer state, which a placement may cut into one slice per replica.
        strategy: The strategy under which it was made, if that has devices of its own.
        starts_at_zero: Whether it is not a variable, but a change that a program makes of one elsewhere, which begins as no change.
        if_copies_differ: What to write, for the error of a value that differs between the replicas.
        elsewhere: Whether it lies on a server. Then storing it notes a change, which is pushed later.
        holder: The object that holds the stored array.
        owned: An array that a program made and that nobody else has seen, so that it may be donated. Who gets it past `expose`, as
            ``copy.copy`` of a Keras variable does, is found by the number of references.
        owned_on: The placement on which `owned` lies.
        stand_in: Another library's variable with the same storage, for a library that tracks only its own variables.
        moved: The last array that had to be moved, with the placement and the array on it.

    ``Refs`` reads and writes `holder`, `owned`, `owned_on` and `moved`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    on_read: bool
    aggregation: VariableAggregation
    rows_only: bool
    trainable: bool
    slot: bool = False
    strategy: Any = None
    elsewhere: bool = False
    starts_at_zero: bool = False
    if_copies_differ: str = (
        "If each replica should keep its own value, such as gradients that it accumulates over several steps, create it with "
        "synchronization=ON_READ; apply_gradients inside `run` sums such gradients itself. If all replicas should have one value, "
        "create it with aggregation=SUM, MEAN or ONLY_FIRST_REPLICA, or combine the value first with "
        "get_replica_context().all_reduce(...); do not give a combined gradient to apply_gradients inside `run`, which would sum "
        "it again."
    )
    _value: Any  # only in a reference that is its own holder

    def __init__(self, holder: Any = None) -> None:
        self.holder: Holder = self if holder is None else holder
        self.owned: Any = None
        self.owned_on: Placement | None = None
        self.stand_in: Any = None
        self.moved: tuple[Any, Placement, jax.Array] | None = None

    @property
    def made_under(self) -> Any:
        """The strategy under which the variable was made; None for the default strategy."""
        return self.strategy

    def switch(self) -> tuple[Any, str]:
        """Return the object, and the name of its attribute, that says whether the variable is trainable."""
        return self, "trainable"

    def get_raw(self) -> tuple[Any, bool]:
        """Return the stored array, and whether it is the stack of the replicas' copies."""
        raise NotImplementedError

    def set_raw(self, raw: Any, *, stacked: bool) -> None:
        """Store an array, or the stack of the replicas' copies."""
        raise NotImplementedError

    def expose(self) -> None:
        """Note that somebody else has the stored array, so that the next step does not donate it."""
        self.owned = None

    def copies(self, num_replicas: int) -> bool:
        """Whether the variable enters a program of `num_replicas` as a stack of copies."""
        return self.on_read and num_replicas > 1

    def aval(self, num_replicas: int = 1) -> ShapedArray:
        """Return the shape and dtype of what a program of `num_replicas` holds of the variable."""
        shape = (num_replicas, *self.shape) if self.copies(num_replicas) else tuple(self.shape)
        return ShapedArray(shape, jax.dtypes.canonicalize_dtype(self.dtype, allow_extended_dtype=True))

    def slice_axis(self, placement: Placement) -> int | None:
        """Return the axis along which each replica has its slice of the variable; None if each has the whole of it."""
        return None if self.on_read else placement.slice_axis(tuple(self.shape), self.dtype, slot=self.slot)

    def model_cut(self, placement: Placement) -> ModelCut | None:
        """Return how the variable is cut over the devices of each replica; None if each has one device."""
        return None if self.on_read else placement.model_cut(self.name, tuple(self.shape), self.dtype, slot=self.slot)

    def load(self, placement: Placement, *, donated: bool) -> jax.Array:
        """Return the stored array as the input of a program, which may overwrite it if `donated`."""
        raw, _ = self.get_raw()
        if raw is self.owned and self.owned_on is placement and not (donated and getrefcount(raw) > _REFERENCES + 1):
            return raw
        if not donated and self.moved is not None and self.moved[0] is raw and self.moved[1] is placement:
            return self.moved[2]
        placed = placement.own(*self.fitting(placement))
        if not donated:
            self.moved = (raw, placement, placed)
        return placed

    def fitting(self, placement: Placement) -> tuple[Any, Any]:
        """Return the stored array in the form that programs on `placement` need, not yet moved, and the sharding that it needs."""
        raw, stacked = self.get_raw()
        copies = self.copies(placement.num_replicas)
        value = raw
        if stacked != copies or (stacked and raw.shape[0] != placement.num_replicas):
            value = on_all(aggregate_copies, raw, self.aggregation, self.name) if stacked else raw
            value = split_value(value, self.aggregation, placement.num_replicas) if copies else value
        return value, self.home(placement)

    def home(self, placement: Placement) -> Sharding | None:
        """Return the sharding of the variable in the programs of a placement."""
        return placement.home(tuple(self.shape), stacked=self.copies(placement.num_replicas), slice_axis=self.slice_axis(placement))

    def cut_on(self) -> Placement | None:
        """Return the placement that keeps the variable in slices; None if each device has the whole of it."""
        placement = None if self.strategy is None else self.strategy.placement
        if placement is None or placement.planning is not None or self.slice_axis(placement) is None:
            return None
        return placement

    def keep_slices(self) -> None:
        """Keep only the slices of a new variable on their devices, if the strategy under which it was made cuts it."""
        placement = self.cut_on()
        if placement is None:
            return
        if placement.world is None:
            self.store(self.load(placement, donated=True), placement)
        else:
            self._keep_own_slices(placement)

    def _keep_own_slices(self, placement: Placement) -> None:
        """Prepare a new value for several workers, without an exchange: some of them might not assign it.

        A large value is cut at once, and before the next step the workers compare what they have cut. Another one stays whole in
        this process until then, and all get the chief's (``_chief.adopt``).
        """
        raw, _ = self.get_raw()
        if in_pieces(raw):
            return
        value = np.asarray(raw)
        if value.nbytes >= LARGE:
            note_cut(self.name, value)
            self.set_raw(placement.put(value, self.home(placement)), stacked=False)
            self.expose()
        elif not is_local(raw):  # a whole value that this worker has read; the others may have assigned another one
            self.set_raw(jax.numpy.array(value, copy=True), stacked=False)
            self.expose()

    def store(self, raw: jax.Array, placement: Placement) -> None:
        """Store what a program wrote."""
        self.set_raw(raw, stacked=self.copies(placement.num_replicas))
        self.owned, self.owned_on, self.moved = raw, placement, None

    def take_back(self) -> None:
        """Forget the changes that `store` has noted for a server. An array that is stored here is simply stored again."""

    def gradient(self, parts: Sequence[tuple[Any, Any]]) -> Any:
        """Return the variable's gradient, given a pair for every read: the value, and the gradient with respect to it."""
        total = parts[0][1]
        for _, part in parts[1:]:
            total = total + part
        return total

    def read_eagerly(self) -> jax.Array:
        """Return the value in cross-replica context, outside any program."""
        return self._combined() if self.strategy is None else on_own_mesh(self._combined)()

    def held(self) -> tuple[Any, bool]:
        """Return what `get_raw` does, which no step of another thread overwrites from now on."""
        while True:
            with _in_flight.between_starts() as is_safe:
                raw, stacked = self.get_raw()
                kept = raw if stacked else self.keep(raw)  # a stack is not overwritten while somebody computes with it
            if is_safe or not (isinstance(kept, jax.Array) and kept.is_deleted()):
                return kept, stacked

    def keep(self, raw: Any) -> Any:
        """Return the stored array as one that the next step does not overwrite."""
        self.expose()
        return raw

    def _combined(self) -> jax.Array:
        raw, stacked = self.held()
        if (known := known_value(raw)) is not None:
            return jax.numpy.asarray(known)
        if stacked:
            return on_all(aggregate_copies, raw, self.aggregation, self.name)
        if not in_pieces(raw):
            return raw
        with at_once():  # in a plain jax.jit, its value becomes a constant, as that of any variable
            return jax.numpy.asarray(read_whole(self.name, raw))


def _references() -> int:
    """Count the references to an owned array that only a reference and its holder have."""
    ref = Ref()
    ref._value = ref.owned = object()  # noqa: SLF001 - see Holder
    return getrefcount(ref.owned)


_REFERENCES = _references()


class Refs:
    """The variables that a program overwrites. Every step loads and stores all of them, so the usual case is inlined here."""

    def __init__(self, refs: Sequence[Ref], placement: Placement):
        self._slots = [(ref, ref.holder) for ref in refs]
        self._placement = placement
        self._is_alone = placement.num_replicas == 1

    def load(self) -> list[jax.Array]:
        """Call ``Ref.load`` for each variable, to be donated."""
        placement = self._placement
        return [
            ref.owned
            if holder._value is ref.owned is not None  # noqa: SLF001 - see Holder
            and ref.owned_on is placement
            and getrefcount(ref.owned) <= _REFERENCES
            else ref.load(placement, donated=True)
            for ref, holder in self._slots
        ]

    def store(self, raws: Sequence[jax.Array]) -> None:
        """Call ``Ref.store`` for each variable. If this is interrupted, no changes for servers stay noted."""
        placement, alone = self._placement, self._is_alone
        try:
            for (ref, holder), raw in zip(self._slots, raws, strict=True):
                if ref.owned_on is placement and (
                    not ref.on_read or (alone and holder._value is ref.owned)  # noqa: SLF001 - else it may be a stack of copies
                ):
                    holder._value = ref.owned = raw  # noqa: SLF001 - see Holder
                    ref.moved = None
                else:
                    ref.store(raw, placement)
        except BaseException:
            self.take_back()
            raise

    def put_back(self, before: Sequence[jax.Array], after: Sequence[jax.Array]) -> None:
        """Store the values from before a program that has failed, also where another one has computed with what it left."""
        with _in_flight.lock:
            for (ref, _), old, new in zip(self._slots, before, after, strict=True):
                raw, _ = ref.get_raw()
                if ref.elsewhere:
                    ref.take_back()
                elif raw is new or _has_failed(raw):
                    ref.store(old, self._placement)

    def take_back(self) -> None:
        """Call ``Ref.take_back`` for each variable."""
        for ref, _ in self._slots:
            ref.take_back()


def _has_failed(raw: Any) -> bool:
    """Whether the program that was to compute an array has failed."""
    try:
        jax.block_until_ready(raw)
    except (RuntimeError, ValueError):
        return True
    return False
