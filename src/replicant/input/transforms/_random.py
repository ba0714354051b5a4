"""Endless sources: random numbers, and a counter."""

import dataclasses
import hashlib
from typing import Any

import jax
import numpy as np

from ..graph._blocks import Block, Dense
from ..graph._graph import INFINITE, Cursor, Node, State
from ..graph._structure import TensorSpec
from .order._shuffle import Drawing

LARGEST_SEED = 2**31 - 1  # TensorFlow takes seeds modulo this number
_GRAPH_SEED = 87654321  # what TensorFlow puts beside a seed
_ONE_LEAF = jax.tree_util.tree_structure(0)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_FACTORS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


@dataclasses.dataclass(frozen=True, eq=False)
class RandomNumbers(Drawing):
    """Whole numbers from 0 to 2**32 - 1, as int64: TensorFlow's, if there is a seed."""

    @property
    def label(self) -> str:
        settings = [] if self.seed is None else [f"seed={self.seed}"]
        return f"random({', '.join([*settings, *(['rerandomize_each_iteration=True'] if self.reshuffle else [])])})"

    @property
    def spec(self) -> Any:
        return TensorSpec((), np.int64)

    @property
    def cardinality(self) -> int:
        return INFINITE

    def open(self, state: State | None = None) -> Cursor:
        return RandomCursor(self, self.draws(state), state["next"] if state else 0)


class RandomCursor(Cursor):
    """Counts the numbers that it returned. Number i can be computed without those before it."""

    def __init__(self, node: RandomNumbers, order: tuple[int, int, int], position: int) -> None:
        self.node, self.position = node, position
        self.entropy, self.iteration, self.pass_ = order

    def pull(self, limit: int) -> Block | None:
        numbers = philox(*self._seeds(), self.position, limit)
        self.position += limit
        return Block(_ONE_LEAF, [Dense(numbers)], limit)

    def _seeds(self) -> tuple[int, int]:
        if not (self.iteration or self.pass_):
            return _GRAPH_SEED, self.entropy
        digest = hashlib.blake2b(f"{self.entropy} {self.iteration} {self.pass_}".encode(), digest_size=8).digest()
        return _GRAPH_SEED, int.from_bytes(digest, "little")

    def skip(self, count: int) -> int:
        self.position += count
        return count

    def reset(self) -> None:
        self.position = 0
        self.pass_ += self.node.reshuffle

    def state(self) -> State:
        return {"entropy": self.entropy, "iteration": self.iteration, "pass": self.pass_, "next": self.position}


def philox(seed: int, seed2: int, start: int, count: int) -> np.ndarray:
    """Return numbers ``start`` to ``start + count`` of the generator Philox 4x32-10, as TensorFlow seeds it.

    >>> philox(87654321, 4, 0, 0)
    array([], dtype=int64)
    """
    first, last = start // 4, (start + count + 3) // 4
    counter = np.arange(first, last, dtype=np.uint64)
    c0, c1 = counter & _LOW, counter >> _HALF
    c2, c3 = (np.full(len(counter), part & 0xFFFFFFFF, np.uint64) for part in (seed2, seed2 >> 32))
    keys = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(_ROUNDS):
        a, b = c0 * _FACTORS[0], c2 * _FACTORS[1]
        c0, c1, c2, c3 = b >> _HALF ^ c1 ^ np.uint64(keys[0]), b & _LOW, a >> _HALF ^ c3 ^ np.uint64(keys[1]), a & _LOW
        keys = [(key + step) & 0xFFFFFFFF for key, step in zip(keys, _STEPS, strict=True)]
    numbers = np.stack([c0, c1, c2, c3], axis=1).reshape(-1).astype(np.int64)
    return numbers[start - 4 * first :][:count]


@dataclasses.dataclass(frozen=True, eq=False)
class Counter(Node):
    """``start``, ``start + step``, and so on without end."""

    start: int | float = 0
    step: int | float = 1
    dtype: np.dtype = dataclasses.field(default_factory=lambda: np.dtype(np.int64))

    @property
    def label(self) -> str:
        return f"counter({self.start}, {self.step}, {self.dtype})"

    @property
    def spec(self) -> Any:
        return TensorSpec((), self.dtype)

    @property
    def cardinality(self) -> int:
        return INFINITE

    def open(self, state: State | None = None) -> Cursor:
        return CounterCursor(self, state["next"] if state else 0)


class CounterCursor(Cursor):
    """Counts."""

    def __init__(self, node: Counter, position: int) -> None:
        self.node, self.position = node, position

    def pull(self, limit: int) -> Block | None:
        node = self.node
        numbers = np.array([node.start + node.step * i for i in range(self.position, self.position + limit)])
        self.position += limit
        return Block(_ONE_LEAF, [Dense(numbers.astype(node.dtype))], limit)

    def skip(self, count: int) -> int:
        self.position += count
        return count

    def reset(self) -> None:
        self.position = 0

    def state(self) -> State:
        return {"next": self.position}
