"""Datasets that are made from elements and read in turn: interleave and flat_map."""

import dataclasses
import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from ....errors import ArgumentTypeError
from ....storage._counts import counting, current_counts
from ...graph._blocks import Block, concatenate
from ...graph._graph import UNKNOWN, Cursor, Node, OneInput, State, Through, sample
from ..elements._map import call, name_of
from ..memory._cache import Cache
from ..memory._prefetch import Prefetch
from ..order._nested_orders import NestedOrders
from ..order._shuffle import Drawing, Iterations, in_function

WHOLE = 2**62  # a block length that no dataset reaches
_AHEAD = 16  # elements that are read ahead of each dataset where they are read in parallel


@dataclasses.dataclass(frozen=True, eq=False)
class Interleave(OneInput):
    """``fn`` makes a dataset of each element; ``cycle_length`` of them are open, and yield ``block_length`` elements in turn.

    ``iterations`` numbers the iterations, which decides on the orders in those datasets. With ``alike``, a cache in them is not
    replayed if it holds another order, because another worker may not have it.
    """

    fn: Callable[..., Any]
    cycle_length: int = 1
    block_length: int = WHOLE
    parallel: bool = False
    alike: bool = False
    iterations: Iterations = dataclasses.field(default_factory=Iterations)

    @property
    def label(self) -> str:
        name = name_of(self.fn)
        if self.cycle_length == 1 and self.block_length == WHOLE:
            return f"flat_map({name})"
        threads = ", num_parallel_calls" if self.parallel else ""
        return f"interleave({name}, cycle_length={self.cycle_length}, block_length={self.block_length}{threads})"

    @property
    def spec(self) -> Any:
        return self._spec

    @functools.cached_property
    def _spec(self) -> Any:
        element = sample(self.input)
        return None if element is None else self.child(element, NestedOrders()).spec

    @property
    def cardinality(self) -> int:
        return 0 if self.input.cardinality == 0 else UNKNOWN

    @property
    def sampled(self) -> Node:
        return dataclasses.replace(self, parallel=False, iterations=Iterations())

    def child(self, element: Any, orders: NestedOrders) -> Node:
        """Return the dataset that the function makes of an element; its orders are taken from ``orders``.

        Raises:
            ArgumentTypeError: If the function returns something else.
        """
        before = in_function.set(True)
        try:
            made = call(self.fn, element)
        finally:
            in_function.reset(before)
        node = getattr(made, "node", None)
        if not isinstance(node, Node):
            method = self.label.split("(", maxsplit=1)[0]
            raise ArgumentTypeError(
                f"{method}: {name_of(self.fn)} must return a Dataset. It returned {made!r}. "
                "Use `map` for functions that return elements."
            )
        node = self._with_orders(node, orders)
        return Prefetch(inputs=(node,), buffer_size=_AHEAD) if self.parallel else node

    def open(self, state: State | None = None) -> Cursor:
        if state is None:
            entropy = _chance() if self.iterations.entropy is None else self.iterations.entropy
            return InterleaveCursor(self.input.open(), self, NestedOrders(entropy, self.iterations.draw()))
        orders = NestedOrders.at(state.get("orders"))
        cursor = InterleaveCursor(self.input.open(state["source"]), self, orders)
        cursor.go_to(state)
        self.iterations.ensure_past(orders.iteration)
        self.iterations.entropy = orders.entropy
        return cursor

    def _with_orders(self, node: Node, orders: NestedOrders, cached: bool = False) -> Node:
        """Give the next orders to a dataset that the function made. ``cached`` says that it is read through a cache."""
        inputs = [self._with_orders(each, orders, cached or isinstance(node, Cache)) for each in node.inputs]
        if any(new is not old for new, old in zip(inputs, node.inputs, strict=True)):
            node = node.with_inputs(*inputs)
        if isinstance(node, Cache) and self.alike:
            return dataclasses.replace(node, strict=True)
        if isinstance(node, Drawing):
            return orders.drawing(node, cached)
        if isinstance(node, Interleave):
            number, entropy = orders.draw(node.label, cached)
            return dataclasses.replace(node, alike=self.alike, iterations=Iterations(number, entropy))
        return node


def _chance() -> int:
    """A number that `random.seed` determines, without drawing from the user's random stream."""
    chance = random.Random()  # noqa: S311 - for orders, not for secrets
    chance.setstate(random.getstate())
    return chance.getrandbits(63)


class _Slot:
    """One open dataset, and its elements that were read but not yet returned."""

    def __init__(self, made_at: State, cursor: Cursor, to_skip: int = 0) -> None:
        self.made_at = made_at  # the position of its element in the input
        self.cursor = cursor
        self.before = cursor.state()
        self.block: Block | None = None
        self.offset = to_skip

    def ready(self, limit: int) -> Block | None:
        """Return the block with the next elements, reading up to ``limit`` if there are none; None at the end."""
        if self.block is None and self.offset:
            self.cursor.skip(self.offset)
        if self.block is None or self.offset == self.block.size:
            self.before = self.cursor.state()
            self.block = self.cursor.pull(limit)
            self.offset = 0
        return self.block

    def state(self) -> State:
        if self.block is not None and self.offset == self.block.size:
            return {"made_at": self.made_at, "before": self.cursor.state(), "offset": 0}
        return {"made_at": self.made_at, "before": self.before, "offset": self.offset}


class InterleaveCursor(Through):
    """Goes around the slots. A slot whose dataset has ended is filled again when its turn comes."""

    def __init__(self, source: Cursor, node: Interleave, orders: NestedOrders) -> None:
        super().__init__(source)
        self.node, self.orders = node, orders
        self.skipped_before = 0  # in datasets that have ended
        self.counts = current_counts()
        self._begin()

    def _begin(self) -> None:
        self.slots: list[_Slot | None] = [None] * self.node.cycle_length
        self.turn = 0
        self.given = 0  # in this turn
        self.source_ended = False

    def go_to(self, state: State) -> None:
        """Open the datasets that were open, each at its position."""
        self.turn, self.given, self.source_ended = state["turn"], state["given"], state["ended"]
        for i, slot in enumerate(state["slots"]):
            if slot is not None:
                source = self.node.input.open(slot["made_at"])
                block = source.pull(1)
                source.close()
                assert block is not None, "the input is shorter than it was"
                # The position contains the orders.
                cursor = self._open(next(block.elements()), NestedOrders(), slot["before"])
                self.slots[i] = _Slot(slot["made_at"], cursor, slot["offset"])

    def _advance(self) -> None:
        self.turn = (self.turn + 1) % len(self.slots)
        self.given = 0

    def _current(self) -> _Slot | None:
        """The slot whose turn it is; None at the end."""
        for _ in range(len(self.slots)):
            slot = self.slots[self.turn]
            if slot is None and not self.source_ended:
                slot = self.slots[self.turn] = self._open_next()
            if slot is not None:
                return slot
            self._advance()
        return None

    def _open_next(self) -> _Slot | None:
        made_at = self.source.state()
        block = self.source.pull(1)
        if block is None:
            self.source_ended = True
            return None
        return _Slot(made_at, self._open(next(block.elements()), self.orders))

    def _open(self, element: Any, orders: NestedOrders, position: State | None = None) -> Cursor:
        node = self.node.child(element, orders)
        with counting(self.counts):
            return node.open(position)

    def pull(self, limit: int) -> Block | None:
        parts = _Parts()
        share = -(-limit // len(self.slots))  # what each slot will probably be asked for
        while parts.size < limit and (slot := self._current()) is not None:
            block = slot.ready(share)
            if block is None:
                self.skipped_before += slot.cursor.num_skipped
                slot.cursor.close()
                self.slots[self.turn] = None
                self._advance()
                continue
            count = min(limit - parts.size, block.size - slot.offset, self.node.block_length - self.given)
            parts.add(block, slot.offset, count)
            slot.offset += count
            self.given += count
            if self.given == self.node.block_length:
                self._advance()
        return parts.joined()

    def reset(self) -> None:
        self.skipped_before = self.num_skipped - self.source.num_skipped
        self._close_slots()
        self.source.reset()
        self.orders.next_pass()
        self._begin()

    def close(self) -> None:
        self._close_slots()
        self.source.close()

    @property
    def num_skipped(self) -> int:
        return self.skipped_before + self.source.num_skipped + sum(slot.cursor.num_skipped for slot in self.slots if slot)

    def _close_slots(self) -> None:
        for slot in self.slots:
            if slot is not None:
                slot.cursor.close()

    def state(self) -> State:
        return {
            "orders": self.orders.state(),
            "turn": self.turn,
            "given": self.given,
            "ended": self.source_ended,
            "slots": [slot and slot.state() for slot in self.slots],
            "source": self.source.state(),
        }


class _Parts:
    """Runs of elements from several blocks, in the order in which they are returned. Each block is copied only once."""

    def __init__(self) -> None:
        self.size = 0
        self.blocks: dict[int, tuple[Block, int]] = {}  # with the number of the block's first element among all
        self.held = 0
        self.chosen: list[range] = []

    def add(self, block: Block, start: int, count: int) -> None:
        if id(block) not in self.blocks:
            self.blocks[id(block)] = (block, self.held)
            self.held += block.size
        first = self.blocks[id(block)][1] + start
        self.chosen.append(range(first, first + count))
        self.size += count

    def joined(self) -> Block | None:
        if not self.chosen:
            return None
        together = concatenate([block for block, _ in self.blocks.values()])
        numbers = np.fromiter((number for run in self.chosen for number in run), np.int64, self.size)
        return together.take(numbers)
