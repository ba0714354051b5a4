"""Windows of elements with the same key: group_by_window, and bucket_by_sequence_length, which is made of it."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ....errors import ArgumentError, ArgumentTypeError
from ...graph._blocks import Block, concatenate
from ...graph._graph import UNKNOWN, Cursor, OneInput, State, Through
from ...graph._structure import DatasetSpec, TensorSpec, flatten, map_leaves
from ..elements._map import call, name_of
from ..mixtures._interleave import Interleave
from ..order._shuffle import read_numbers
from ._window import MakeDataset, held

_PAIR = (0, 0)


@dataclasses.dataclass(frozen=True, eq=False)
class Windows(OneInput):
    """Pairs of a key and a dataset of elements with that key, as soon as there are enough of them; the rest at the end, by key.

    ``size`` is the number of elements in a window, or a function of the key.
    """

    key_func: Callable[..., Any]
    size: int | Callable[[Any], Any]
    make_dataset: MakeDataset

    @property
    def label(self) -> str:
        size = self.size if isinstance(self.size, int) else name_of(self.size)
        return f"windows(key_func={name_of(self.key_func)}, window_size={size})"

    @property
    def spec(self) -> Any:
        spec = self.input.spec
        return None if spec is None else (TensorSpec((), np.int64), DatasetSpec(spec))

    @property
    def cardinality(self) -> int:
        return 0 if self.input.cardinality == 0 else UNKNOWN

    def open(self, state: State | None = None) -> Cursor:
        cursor = WindowsCursor(self.input.open(state and state["begin"]), self)
        if state:
            cursor.go_to(state)
        return cursor

    def key(self, element: Any) -> int:
        """Return the key of an element.

        Raises:
            ArgumentTypeError: If it is not a whole number.
        """
        value = call(self.key_func, element)
        key = np.asarray(value)
        if key.ndim or key.dtype.kind not in "iu":
            raise ArgumentTypeError(
                f"group_by_window: {name_of(self.key_func)} must return one whole number per element. Received: {value!r}. "
                "Convert it, as `np.int64(key)` does."
            )
        return int(key)

    def size_of(self, key: int) -> int:
        """Return the number of elements in a window of this key.

        Raises:
            ArgumentError: If it is below 1.
            ArgumentTypeError: If it is not a whole number.
        """
        if isinstance(self.size, int):
            return self.size
        value = self.size(np.int64(key))
        size = np.asarray(value)
        if size.ndim or size.dtype.kind not in "iu":
            raise ArgumentTypeError(f"group_by_window: window_size_func must return one whole number. Received: {value!r}.")
        if size < 1:
            raise ArgumentError(f"group_by_window: window_size_func must return at least 1. It returned {value} for {key}.")
        return int(size)


@dataclasses.dataclass
class _Group:
    """The elements of one window that is not full, with their numbers in the pass."""

    size: int
    blocks: list[Block]
    numbers: list[int]


class WindowsCursor(Through):
    """Holds the windows that are not full. The position is where the pass began, and the numbers of the elements in them."""

    def __init__(self, source: Cursor, node: Windows) -> None:
        super().__init__(source)
        self.node = node
        self._begin()

    def _begin(self) -> None:
        self.begin = self.source.state()
        self.groups: dict[int, _Group] = {}
        self.num_read = 0
        self.ended = False

    @functools.cached_property
    def spec(self) -> Any:
        """The spec of the input's elements."""
        return self.node.input.spec

    def go_to(self, state: State) -> None:
        """Read the elements of the windows again."""
        self.groups = {key: _Group(size, [], numbers) for key, size, numbers in state["groups"]}
        numbers = sorted(number for group in self.groups.values() for number in group.numbers)
        if numbers:
            block = read_numbers(self.source, np.array(numbers))
            places = {number: place for place, number in enumerate(numbers)}
            for group in self.groups.values():
                group.blocks = [block.take(np.array([places[number] for number in group.numbers]))]
                group.numbers = [*group.numbers]
        self.source.skip(state["read"] - (numbers[-1] + 1 if numbers else 0))
        self.num_read, self.ended = state["read"], state["ended"]

    def pull(self, limit: int) -> Block | None:
        _ = self.spec  # before anything is read, because it may need a look at the elements
        while not self.ended:
            block = self.source.pull(1)
            if block is None:
                self.ended = True
                break
            key = self.node.key(next(block.elements()))
            number, self.num_read = self.num_read, self.num_read + 1
            group = self.groups.get(key)
            if group is None:
                group = self.groups[key] = _Group(self.node.size_of(key), [], [])
            group.blocks.append(block)
            group.numbers.append(number)
            if len(group.numbers) == group.size:
                return self._emptied(key)
        return self._emptied(min(self.groups)) if self.groups else None

    def _emptied(self, key: int) -> Block:
        block = concatenate(self.groups.pop(key).blocks)
        return Block.of_elements(_structure(), [[np.int64(key), self.node.make_dataset(held(block, self.spec))]])

    def reset(self) -> None:
        self.source.reset()
        self._begin()

    def state(self) -> State:
        groups = [[key, group.size, [*group.numbers]] for key, group in self.groups.items()]
        return {"begin": self.begin, "read": self.num_read, "ended": self.ended, "groups": groups}


def _structure() -> Any:
    return jax.tree_util.tree_structure(_PAIR)


@dataclasses.dataclass(frozen=True, eq=False)
class GroupByWindow(Interleave):
    """The elements of the datasets that ``fn`` makes of keys and windows, one after the other."""

    method: str = "group_by_window"

    @property
    def label(self) -> str:
        return f"{self.method}({name_of(self.fn)})"

    @functools.cached_property
    def _spec(self) -> Any:
        spec = super()._spec
        return None if spec is None else map_leaves(_any_rows, spec)


def _any_rows(leaf: TensorSpec) -> TensorSpec:
    """The spec without a number of rows, because each key may have its own batch size."""
    return TensorSpec((None, *leaf.shape[1:]), leaf.dtype) if leaf.shape else leaf


@dataclasses.dataclass(frozen=True)
class Buckets:
    """What `bucket_by_sequence_length` was told.

    Raises:
        ArgumentError: If there is not one batch size more than boundaries, boundaries do not grow, or a size is below 1.
    """

    boundaries: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    padded_shapes: Any = None
    padding_values: Any = None
    pad_to_boundary: bool = False
    no_padding: bool = False
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        method = "bucket_by_sequence_length"
        if len(self.batch_sizes) != len(self.boundaries) + 1:
            raise ArgumentError(
                f"{method}: bucket_batch_sizes must have one size more than bucket_boundaries. Received {len(self.batch_sizes)} "
                f"sizes and {len(self.boundaries)} boundaries."
            )
        if any(b <= a for a, b in zip(self.boundaries, self.boundaries[1:], strict=False)):
            raise ArgumentError(f"{method}: bucket_boundaries must be numbers that grow. Received: {list(self.boundaries)}.")
        if min(self.batch_sizes) < 1:
            raise ArgumentError(f"{method}: bucket_batch_sizes must be at least 1. Received: {list(self.batch_sizes)}.")

    @property
    def label(self) -> str:
        """The settings, as the user would write them."""
        extra = [
            *([f"padded_shapes={self.padded_shapes}"] if self.padded_shapes is not None else []),
            *([f"padding_values={self.padding_values}"] if self.padding_values is not None else []),
            *(f"{name}=True" for name in ("pad_to_bucket_boundary", "no_padding", "drop_remainder") if self._is_set(name)),
        ]
        return ", ".join([str(list(self.boundaries)), str(list(self.batch_sizes)), *extra])

    def _is_set(self, name: str) -> bool:
        return bool(getattr(self, "pad_to_boundary" if name == "pad_to_bucket_boundary" else name))

    def number(self, length: Any, fn: Callable[..., Any]) -> int:
        """Return the bucket of a length.

        Raises:
            ArgumentTypeError: If the length is not a whole number.
        """
        value = np.asarray(length)
        if value.ndim or value.dtype.kind not in "iu":
            raise ArgumentTypeError(
                f"bucket_by_sequence_length: {name_of(fn)} must return one whole number per element. Received: {length!r}."
            )
        return int(np.searchsorted(self.boundaries, int(value), side="right"))

    def shapes(self, spec: Any, bucket: int) -> Any:
        """Return the shapes to which elements of this bucket are padded.

        Raises:
            ArgumentError: If the bucket is the last one, which has no boundary, and elements are padded to boundaries.
        """
        fill = None
        if self.pad_to_boundary:
            if bucket == len(self.boundaries):
                raise ArgumentError(
                    "bucket_by_sequence_length: with pad_to_bucket_boundary=True, elements must be shorter than the last of "
                    f"bucket_boundaries, which is {self.boundaries[-1]}. Add a boundary, or filter longer elements out."
                )
            fill = self.boundaries[bucket] - 1
        if self.padded_shapes is not None:
            is_shape = _is_shape
            return jax.tree_util.tree_map(lambda shape: _filled(shape, fill), self.padded_shapes, is_leaf=is_shape)
        return map_leaves(lambda leaf: [fill, *[None] * (len(leaf.shape) - 1)] if leaf.shape else [], spec)


def _is_shape(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(size is None or isinstance(size, int) for size in value)


def _filled(shape: Any, fill: int | None) -> list[int | None]:
    return [fill if size in (None, -1) else size for size in shape]


@dataclasses.dataclass(frozen=True, eq=False)
class BucketedWindows(Windows):
    """Windows of elements of similar length. The key is the number of the bucket."""

    buckets: Buckets = Buckets((1,), (1, 1))

    @property
    def label(self) -> str:
        return f"windows(element_length_func={name_of(self.key_func)}, {self.buckets.label})"

    def key(self, element: Any) -> int:
        return self.buckets.number(call(self.key_func, element), self.key_func)

    def size_of(self, key: int) -> int:
        return self.buckets.batch_sizes[key]


@dataclasses.dataclass(frozen=True, eq=False)
class BucketBatches(GroupByWindow):
    """The batches of buckets. Their sizes depend on the bucket."""

    method: str = "bucket_by_sequence_length"
    buckets: Buckets = Buckets((1,), (1, 1))

    @property
    def label(self) -> str:
        return f"{self.method}({self.buckets.label})"

    @functools.cached_property
    def _spec(self) -> Any:
        spec = self.input.spec
        if spec is None:
            return None
        spec = spec[1].element_spec
        if self.buckets.no_padding:
            return map_leaves(lambda leaf: TensorSpec((None, *leaf.shape), leaf.dtype), spec)
        leaves, structure = flatten(spec)
        shapes = jax.tree_util.tree_leaves(self.buckets.shapes(spec, 0), is_leaf=_is_shape)
        if self.buckets.pad_to_boundary:
            unfilled = dataclasses.replace(self.buckets, pad_to_boundary=False)
            shapes = jax.tree_util.tree_leaves(unfilled.shapes(spec, 0), is_leaf=_is_shape)
        specs = [TensorSpec((None, *shape), leaf.dtype) for shape, leaf in zip(shapes, leaves, strict=True)]
        return jax.tree_util.tree_unflatten(structure, specs)
