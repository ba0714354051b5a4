"""Transforms that remember something from element to element: scan, take_while, unique; and `reduce`."""

import base64
import dataclasses
import functools
import hashlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ....errors import ElementError
from ...files.saved._block_bytes import decode_block, encode_block
from ...graph._blocks import Block
from ...graph._graph import UNKNOWN, Cursor, Node, OneInput, State, Through, sample
from ...graph._structure import STRING, TensorSpec, as_leaf, component_names, flatten, show_structure, spec_of
from ._map import call, converted, free_sizes, name_of, truth

_LONG_KEY = 64  # bytes; of longer values, `unique` keeps a digest


@dataclasses.dataclass(frozen=True, eq=False)
class Memory:
    """A structure of leaves that a function replaces at each element: the state of `scan` and `reduce`."""

    method: str
    structure: Any
    first: tuple[Any, ...]

    @classmethod
    def of(cls, method: str, initial_state: Any) -> "Memory":
        """Return the memory that begins with this state."""
        leaves, structure = converted(initial_state)
        return cls(method, structure, tuple(map(_fixed, leaves)))

    def value(self, leaves: tuple[Any, ...]) -> Any:
        """Return the state as the user's structure."""
        return jax.tree_util.tree_unflatten(self.structure, leaves)

    def leaves(self, value: Any) -> tuple[Any, ...]:
        """Return the leaves of a new state.

        Raises:
            ElementError: If its structure or a dtype is not that of the initial state.
        """
        leaves, structure = flatten(value)
        if structure != self.structure:
            raise ElementError(
                f"{self.method}: the new state has the structure {show_structure(structure)}, but the initial state has "
                f"{show_structure(self.structure)}. Return a state of the same structure."
            )
        return tuple(self._leaf(i, leaf) for i, leaf in enumerate(leaves))

    def _leaf(self, number: int, value: Any) -> Any:
        name = component_names(self.structure)[number].replace("the element", "the state")
        wanted = spec_of(self.first[number]).dtype
        leaf = as_leaf(value, lambda: f"{self.method}: {name}")
        found = spec_of(leaf).dtype
        if found == wanted:
            return leaf
        if not hasattr(value, "dtype") and STRING not in (found, wanted) and np.can_cast(found, wanted, "same_kind"):
            return np.asarray(value, wanted)[()]  # Python numbers take the dtype of the state
        raise ElementError(
            f"{self.method}: {name} was {_named(wanted)} and became {_named(found)}. Begin with a value of the dtype that the "
            f"function returns, such as `np.{_named(found)}(0)`, or convert what it returns."
        )

    def encode(self, leaves: tuple[Any, ...]) -> str:
        """Return a state as text, for a position."""
        return base64.b64encode(encode_block(Block.of_elements(self.structure, [leaves]))).decode()

    def decode(self, text: str) -> tuple[Any, ...]:
        """Return the state that `encode` wrote."""
        return next(decode_block(base64.b64decode(text), self.structure).leaves())


def _fixed(leaf: Any) -> Any:
    """The leaf, which a function that changes it in place would spoil for the next pass."""
    if isinstance(leaf, np.ndarray):
        leaf = leaf.copy()
        leaf.flags.writeable = False
    return leaf


def _named(dtype: np.dtype) -> str:
    return "str_" if dtype == STRING else dtype.name


def reduced(node: Node, memory: Memory, fn: Callable[[Any, Any], Any]) -> Any:
    """Return the state after the last element."""
    leaves = memory.first
    cursor = node.open()
    try:
        while (block := cursor.pull(1)) is not None:
            leaves = memory.leaves(_called(fn, memory.value(leaves), next(block.elements())))
    finally:
        cursor.close()
    return memory.value(leaves)


def _called(fn: Callable[[Any, Any], Any], state: Any, element: Any) -> Any:
    return call(fn, (state, element))


@dataclasses.dataclass(frozen=True, eq=False)
class Scan(OneInput):
    """``fn(state, element)`` returns the next state and the element to pass on."""

    fn: Callable[[Any, Any], Any]
    memory: Memory
    initial: tuple[Any, ...]  # the leaves of the first state, which decide on the elements

    @property
    def label(self) -> str:
        return f"scan({name_of(self.fn)})"

    @property
    def spec(self) -> Any:
        return self._spec

    @functools.cached_property
    def _spec(self) -> Any:
        element = sample(self.input)
        if element is None:
            return None
        # Twice, because the sizes may depend on the state.
        state, (first, structure) = self.step(self.memory.first, element)
        second = self.step(state, element)[1][0]
        free = free_sizes(element, self.input.spec)
        return jax.tree_util.tree_unflatten(structure, [_common(a, b, free) for a, b in zip(first, second, strict=True)])

    def step(self, leaves: tuple[Any, ...], element: Any) -> tuple[tuple[Any, ...], tuple[list[Any], Any]]:
        """Return the leaves of the next state, and leaves and structure of the element to pass on.

        Raises:
            ElementError: If the function does not return a pair.
        """
        result = _called(self.fn, self.memory.value(leaves), element)
        if type(result) is not tuple or len(result) != 2:
            raise ElementError(
                f"scan: {name_of(self.fn)} must return a pair: the new state, and the element to pass on. It returned {result!r}."
            )
        return self.memory.leaves(result[0]), converted(result[1])

    def open(self, state: State | None = None) -> Cursor:
        leaves = self.memory.decode(state["state"]) if state else self.memory.first
        return ScanCursor(self.input.open(state and state["source"]), self, leaves)


class ScanCursor(Through):
    """Holds the state after the last element that was passed on."""

    def __init__(self, source: Cursor, node: Scan, leaves: tuple[Any, ...]) -> None:
        super().__init__(source)
        self.node, self.leaves = node, leaves

    def pull(self, limit: int) -> Block | None:
        block = self.source.pull(limit)
        if block is None:
            return None
        made: list[list[Any]] = []
        structure = None
        for element in block.elements():
            self.leaves, (leaves, its) = self.node.step(self.leaves, element)
            if structure is not None and its != structure:
                raise ElementError(
                    f"scan({name_of(self.node.fn)}) must return the same structure for all elements. "
                    f"It returned {show_structure(structure)}, then {show_structure(its)}."
                )
            structure = its
            made.append(leaves)
        return Block.of_elements(structure, made)

    def reset(self) -> None:
        self.leaves = self.node.memory.first
        self.source.reset()

    def state(self) -> State:
        return {"state": self.node.memory.encode(self.leaves), "source": self.source.state()}


def _common(a: Any, b: Any, free: set[int]) -> TensorSpec:
    """The spec that fits two leaves. Sizes in `free` in front are those of batches."""
    one, two = spec_of(a), spec_of(b)
    sizes = one.shape
    if len(one.shape) == len(two.shape):
        sizes = tuple(x if x == y else None for x, y in zip(one.shape, two.shape, strict=True))
    if sizes and sizes[0] in free:
        sizes = (None, *sizes[1:])
    return TensorSpec(sizes, one.dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class TakeWhile(OneInput):
    """The elements before the first one for which ``predicate`` is false."""

    predicate: Callable[..., Any]

    @property
    def label(self) -> str:
        return f"take_while({name_of(self.predicate)})"

    @property
    def cardinality(self) -> int:
        return 0 if self.input.cardinality == 0 else UNKNOWN

    def open(self, state: State | None = None) -> Cursor:
        return TakeWhileCursor(self.input.open(state and state["source"]), self.predicate, bool(state and state["ended"]))


class TakeWhileCursor(Through):
    """Asks the predicate until it says no."""

    def __init__(self, source: Cursor, predicate: Callable[..., Any], ended: bool) -> None:
        super().__init__(source)
        self.predicate, self.ended = predicate, ended

    def pull(self, limit: int) -> Block | None:
        block = None if self.ended else self.source.pull(limit)
        if block is None:
            return None
        for number, element in enumerate(block.elements()):
            if not truth(call(self.predicate, element), self.predicate, "take_while"):
                self.ended = True
                return block.take(slice(number)) if number else None
        return block

    def reset(self) -> None:
        self.ended = False
        self.source.reset()

    def state(self) -> State:
        return {"ended": self.ended, "source": self.source.state()}


@dataclasses.dataclass(frozen=True, eq=False)
class Unique(OneInput):
    """The elements that are not equal to an earlier one."""

    @property
    def label(self) -> str:
        return "unique()"

    @property
    def cardinality(self) -> int:
        return 0 if self.input.cardinality == 0 else UNKNOWN

    @property
    def sampled(self) -> Node:
        return self.input

    def open(self, state: State | None = None) -> Cursor:
        cursor = UniqueCursor(self.input.open(state and state["begin"]))
        if state:
            cursor.go_to(state["read"])
        return cursor


class UniqueCursor(Through):
    """Knows which values have been seen. The position is where the pass began, and how much of it was read."""

    def __init__(self, source: Cursor) -> None:
        super().__init__(source)
        self._begin()

    def _begin(self) -> None:
        self.begin = self.source.state()
        self.seen: set[Any] = set()
        self.num_read = 0

    def go_to(self, num_read: int) -> None:
        """Read this many elements again, to know their values."""
        while self.num_read < num_read and self._new(num_read - self.num_read) is not None:
            pass

    def _new(self, limit: int) -> tuple[Block, list[int]] | None:
        """The next elements, and which of them are new."""
        block = self.source.pull(limit)
        if block is None:
            return None
        self.num_read += block.size
        chosen = []
        for number, leaves in enumerate(block.leaves()):
            key = tuple(map(_key, leaves))
            if key not in self.seen:
                self.seen.add(key)
                chosen.append(number)
        return block, chosen

    def pull(self, limit: int) -> Block | None:
        while (found := self._new(limit)) is not None:
            block, chosen = found
            if chosen:
                return block.take(np.array(chosen))
        return None

    def reset(self) -> None:
        self.source.reset()
        self._begin()

    def state(self) -> State:
        return {"begin": self.begin, "read": self.num_read}


def _key(leaf: Any) -> Any:
    """A hashable value that equal leaves share."""
    if isinstance(leaf, str | bytes):
        return leaf
    if leaf.dtype == STRING:
        return leaf.shape, tuple(leaf.flat)
    data = (leaf + 0 if leaf.dtype.kind in "fc" else leaf).tobytes()  # -0.0 is equal to 0.0
    return leaf.dtype.name, leaf.shape, data if len(data) <= _LONG_KEY else hashlib.blake2b(data, digest_size=16).digest()
