"""Windowed shuffle: each output is drawn from a buffer of ``buffer_size`` elements and replaced by the next input.

The draws do not depend on how many elements are pulled at a time, so one seed gives one order. A position is the number of
draws. To continue from it, the draws are repeated on element numbers alone, and only the elements that are then in the buffer
are read.
"""

import contextvars
import dataclasses
import itertools
import threading
from typing import Any

import numpy as np

from ...graph._blocks import Block, concatenate
from ...graph._graph import Cursor, Node, OneInput, State, Through, pull_exactly

_REPLAY_CHUNK = 1 << 16


# Whether a function that makes datasets of elements (`interleave`) is being called.
in_function: contextvars.ContextVar[bool] = contextvars.ContextVar("replicant_in_dataset_function", default=False)


class Iterations:
    """Numbers the iterations over one shuffle, so that each has its own order."""

    def __init__(self, first: int = 0, entropy: int | None = None) -> None:
        self._next = first
        self.entropy = entropy  # of a run that is continued, so that its order continues too
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:  # a lock cannot travel to the workers of parameter servers
        return Iterations, (self._next, self.entropy)

    def draw(self) -> int:
        with self._lock:
            self._next += 1
            return self._next - 1

    def ensure_past(self, iteration: int) -> None:
        """Number later iterations after this one."""
        with self._lock:
            self._next = max(self._next, iteration + 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Drawing(Node):
    """A node that draws random numbers. ``entropy``, the number of the iteration and that of the pass in it determine them.

    ``made_in_function`` says that a function of `interleave` made it, which makes a new one each time.
    """

    seed: int | None = None
    reshuffle: bool = True
    entropy: int = 0
    iterations: Iterations = dataclasses.field(default_factory=Iterations)
    made_in_function: bool = dataclasses.field(default_factory=in_function.get)

    def draws(self, state: State | None) -> tuple[int, int, int]:
        """Return entropy, iteration and pass: of a new iteration, or of the position, after which later ones are numbered."""
        if state is None:
            entropy = self.entropy if self.iterations.entropy is None else self.iterations.entropy
            return entropy, self.iterations.draw() if self.reshuffle else 0, 0
        if self.reshuffle:
            self.iterations.ensure_past(state["iteration"])
        if self.seed is None:
            self.iterations.entropy = state["entropy"]
        return state["entropy"], state["iteration"], state["pass"]


@dataclasses.dataclass(frozen=True, eq=False)
class Shuffle(OneInput, Drawing):
    """Shuffles."""

    buffer_size: int = 1

    @property
    def label(self) -> str:
        settings = [str(self.buffer_size)]
        if self.seed is not None:
            settings.append(f"seed={self.seed}")
        if not self.reshuffle:
            settings.append("reshuffle_each_iteration=False")
        return f"shuffle({', '.join(settings)})"

    @property
    def sampled(self) -> Node:
        return self.input

    def open(self, state: State | None = None) -> Cursor:
        cursor = ShuffleCursor(self, self.input.open(state and state["begin"]), self.draws(state))
        if state:
            cursor.replay(state["filled"], state["swapped"], state["drained"])
        return cursor


class ShuffleCursor(Through):
    """Works in three phases: fill the buffer, swap while there is input, drain the rest as one permutation."""

    def __init__(self, node: Shuffle, source: Cursor, order: tuple[int, int, int]) -> None:
        super().__init__(source)
        self.node = node
        self.entropy, self.iteration, self.pass_ = order
        self._begin()

    def _begin(self) -> None:
        self.begin = self.source.state()
        self.rng = np.random.Generator(np.random.PCG64([self.entropy, self.iteration, self.pass_]))
        self.buffer: Block | None = None
        self.order: np.ndarray | None = None  # of the elements while draining
        self.filled = self.swapped = self.drained = 0

    def reset(self) -> None:
        self.source.reset()
        self.pass_ += self.node.reshuffle
        self._begin()

    def state(self) -> State:
        return {
            "entropy": self.entropy,
            "iteration": self.iteration,
            "pass": self.pass_,
            "filled": self.filled,
            "swapped": self.swapped,
            "drained": self.drained,
            "begin": self.begin,
        }

    def pull(self, limit: int) -> Block | None:
        if self.buffer is None and not self._fill():
            return None
        assert self.buffer is not None
        if self.order is None:
            incoming = self.source.pull(limit)
            if incoming is not None:
                return self._swap(incoming)
            self.order = self.rng.permutation(self.filled)
        chosen = self.order[self.drained : self.drained + limit]
        self.drained += len(chosen)
        return self.buffer.take(chosen) if len(chosen) else None

    def _fill(self) -> bool:
        block = pull_exactly(self.source, self.node.buffer_size)
        if block is None:
            return False
        self._hold(block)
        self.filled = block.size
        return True

    def _hold(self, block: Block) -> None:
        # The buffer overwrites references, so it needs its own copy.
        self.buffer = Block(block.structure, [c.with_refs(c.refs.copy()) for c in block.columns], block.size)

    def _swap(self, incoming: Block) -> Block:
        assert self.buffer is not None
        held, incoming = self.buffer.aligned(incoming)
        if held is not self.buffer:
            self._hold(held)
        swap = Swap(_draw(self.rng, self.filled, incoming.size))
        self.swapped += incoming.size
        columns = [
            old.with_refs(swap.apply(old.refs, new.refs)) for old, new in zip(self.buffer.columns, incoming.columns, strict=True)
        ]
        return Block(incoming.structure, columns, incoming.size)

    def replay(self, filled: int, swapped: int, drained: int) -> None:
        """Go to the position after these numbers of steps in each phase."""
        if not filled:
            return
        self.filled, self.swapped, self.drained = filled, swapped, drained
        slots = np.arange(filled)
        for start in range(0, swapped, _REPLAY_CHUNK):
            count = min(_REPLAY_CHUNK, swapped - start)
            Swap(_draw(self.rng, filled, count)).apply(slots, np.arange(filled + start, filled + start + count))
        by_number = np.argsort(slots)
        places = np.empty_like(by_number)
        places[by_number] = np.arange(filled)
        self._hold(read_numbers(self.source, slots[by_number]).take(places))


class Swap:
    """Many draws at once. Draw ``t`` takes what is in slot ``drawn[t]``, and puts incoming element ``t`` there."""

    def __init__(self, drawn: np.ndarray) -> None:
        self.by_slot = np.argsort(drawn, kind="stable")
        self.slots = drawn[self.by_slot]
        again = self.slots[1:] == self.slots[:-1]
        self.repeats = np.flatnonzero(again) + 1  # these take what the draw before them put there
        self.last = np.append(~again, True)

    def apply(self, held: np.ndarray, incoming: np.ndarray) -> np.ndarray:
        """Return what comes out, and update ``held`` in place."""
        out = held[self.slots]
        out[self.repeats] = incoming[self.by_slot[self.repeats - 1]]
        held[self.slots[self.last]] = incoming[self.by_slot[self.last]]
        in_order = np.empty_like(out)
        in_order[self.by_slot] = out
        return in_order


def _draw(rng: np.random.Generator, num_slots: int, count: int) -> np.ndarray:
    # One double per draw, whatever `count` is; `integers` may use up the stream in other units.
    return (rng.random(count) * num_slots).astype(np.int64)


def read_numbers(source: Cursor, numbers: np.ndarray) -> Block:
    """Return the elements with these increasing numbers. The last one read is always among them, because no draw came after it."""
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    blocks: list[Block] = []
    position = 0
    for first, last in itertools.pairwise([0, *breaks.tolist(), len(numbers)]):
        start, stop = int(numbers[first]), int(numbers[last - 1]) + 1
        source.skip(start - position)
        block = pull_exactly(source, stop - start)
        assert block is not None, "the source is shorter than it was"
        blocks.append(block)
        position = stop
    return concatenate(blocks)
