"""`Dataset`: the words of tf.data over the graph. Each method checks its arguments and adds a node."""

import copy
import operator
import random
from collections.abc import Callable
from typing import Any

from replicant.errors import ArgumentError, ArgumentTypeError

from ._batch import Batch, Unbatch
from ._cache import Cache
from ._combine import Concatenate, Zip
from ._graph import INFINITE, UNKNOWN, Node, describe
from ._index import Enumerate, Repeat, Shard, Skip, Take
from ._iterator import DatasetIterator
from ._map import Filter, Map
from ._options import AutoShardPolicy, Options
from ._prefetch import Prefetch
from ._shuffle import Shuffle
from ._sources import integers, tensor_slices, tensors
from ._structure import flatten

_MAX_SEED = 2**63


class Dataset:
    """A sequence of elements: NumPy arrays, scalars and strings in tuples, dicts, named tuples or other pytrees.

    Transforms return a new dataset and read nothing; iterating reads. As in tf.data, a list is a tensor, and Python
    numbers become float32 and int32. Strings are Python objects that stay on the host. Arrays are not copied: leave
    them alone while the dataset is used.

    >>> dataset = Dataset.from_tensor_slices({"x": [1.0, 2.0, 3.0], "y": [0, 1, 0]}).batch(2)
    >>> for element in dataset:
    ...     print(element)
    {'x': array([1., 2.], dtype=float32), 'y': array([0, 1], dtype=int32)}
    {'x': array([3.], dtype=float32), 'y': array([0], dtype=int32)}
    """

    INFINITE = INFINITE
    UNKNOWN = UNKNOWN

    def __init__(self, node: Node, options: Options | None = None) -> None:
        self._node = node
        self._options = options or Options()

    @property
    def node(self) -> Node:
        """The last node of the graph."""
        return self._node

    def _then(self, node: Node) -> "Dataset":
        return Dataset(node, self._options)

    # Sources

    @staticmethod
    def from_tensors(tensors_: Any, /) -> "Dataset":
        """One element: the whole structure.

        >>> list(Dataset.from_tensors(([1, 2], 3)).as_numpy_iterator())
        [(array([1, 2], dtype=int32), np.int32(3))]
        """
        return Dataset(tensors(tensors_))

    @staticmethod
    def from_tensor_slices(tensors_: Any, /) -> "Dataset":
        """One element per row of the arrays (NumPy, JAX, lists), which all have the same number of rows.

        Raises:
            ArgumentError: a scalar component.
            ElementError: components with different numbers of rows.

        >>> import numpy as np
        >>> list(Dataset.from_tensor_slices((np.zeros((2, 3)), ["a", "b"])))
        [(array([0., 0., 0.]), 'a'), (array([0., 0., 0.]), 'b')]
        """
        return Dataset(tensor_slices(tensors_))

    @staticmethod
    def range(*args: int) -> "Dataset":
        """The int64 numbers of Python's ``range(*args)``.

        Raises:
            ArgumentError: no argument, more than three, or a step of 0.

        >>> list(Dataset.range(1, 7, 2))
        [np.int64(1), np.int64(3), np.int64(5)]
        """
        return Dataset(integers(*(_whole("range", "an argument", value) for value in args)))

    @staticmethod
    def zip(*datasets: Any) -> "Dataset":
        """Elements of several datasets side by side, to the end of the shortest; also of a tuple or dict of datasets.

        Raises:
            ArgumentTypeError: something else than datasets.

        >>> list(Dataset.zip(Dataset.range(2), Dataset.range(5, 9)))
        [(np.int64(0), np.int64(5)), (np.int64(1), np.int64(6))]
        """
        given = datasets[0] if len(datasets) == 1 else datasets
        leaves, structure = flatten(given)
        for leaf in leaves:
            _check_dataset("zip", leaf)
        if not leaves:
            raise ArgumentError("zip: needs at least one dataset.")
        return Dataset(Zip(inputs=tuple(leaf.node for leaf in leaves), structure=structure), _merged_options(leaves))

    # One function per element

    def map(self, map_func: Callable[..., Any]) -> "Dataset":
        """``map_func`` of every element; tuples arrive as several arguments, anything else as one.

        The result is used as it is, without a copy: do not return the same buffer twice. What the function raises is
        what the loop over the dataset raises.

        >>> list(Dataset.range(3).map(lambda x: x * 10).as_numpy_iterator())
        [np.int64(0), np.int64(10), np.int64(20)]
        """
        return self._then(Map(inputs=(self._node,), fn=_function("map", map_func)))

    def filter(self, predicate: Callable[..., Any]) -> "Dataset":
        """The elements for which ``predicate`` is true; its arguments are those of `map`.

        >>> list(Dataset.range(5).filter(lambda x: x % 2 == 1))
        [np.int64(1), np.int64(3)]
        """
        return self._then(Filter(inputs=(self._node,), predicate=_function("filter", predicate)))

    # Batches

    def batch(self, batch_size: int, drop_remainder: bool = False) -> "Dataset":
        """Stacks ``batch_size`` consecutive elements; the last batch may be smaller, or is dropped.

        Under a strategy this is the *global* batch. Iterating raises ElementError if elements of one batch differ in
        shape or dtype.

        Raises:
            ArgumentError: a size below 1.

        >>> list(Dataset.range(5).batch(2))
        [array([0, 1]), array([2, 3]), array([4])]
        """
        size = _whole("batch", "batch_size", batch_size, 1)
        return self._then(Batch(inputs=(self._node,), sizes=(size,), drop_remainder=bool(drop_remainder)))

    def unbatch(self) -> "Dataset":
        """The rows of every element.

        >>> list(Dataset.range(5).batch(3).unbatch().batch(2))
        [array([0, 1]), array([2, 3]), array([4])]
        """
        return self._then(Unbatch(inputs=(self._node,)))

    def rebatch(self, batch_size: int | list[int] | tuple[int, ...], drop_remainder: bool = False) -> "Dataset":
        """Batches of another size; of several sizes in turn if given a list.

        Raises:
            ArgumentError: a size below 1, or no size.

        >>> list(Dataset.range(6).batch(3).rebatch([2, 1]))
        [array([0, 1]), array([2]), array([3, 4]), array([5])]
        """
        given = batch_size if isinstance(batch_size, list | tuple) else [batch_size]
        sizes = tuple(_whole("rebatch", "batch_size", size, 1) for size in given)
        if not sizes:
            raise ArgumentError("rebatch: batch_size must name at least one size. Received: an empty list.")
        return self._then(Batch(inputs=(Unbatch(inputs=(self._node,)),), sizes=sizes, drop_remainder=bool(drop_remainder)))

    # Order and number

    def shuffle(self, buffer_size: int, seed: int | None = None, reshuffle_each_iteration: bool | None = None) -> "Dataset":
        """Random order through a buffer of ``buffer_size`` elements; uniform if the dataset fits into it.

        Every iteration, and every pass of a later `repeat`, has another order unless ``reshuffle_each_iteration`` is
        False. One ``seed`` gives one sequence of orders. Without one it is taken from Python's `random`, so
        ``random.seed`` or ``keras.utils.set_random_seed`` fixes it.

        Raises:
            ArgumentError: a buffer size below 1.

        >>> dataset = Dataset.range(4).shuffle(4, seed=1)
        >>> sorted(dataset.as_numpy_iterator()) == [0, 1, 2, 3]
        True
        """
        size = _whole("shuffle", "buffer_size", buffer_size, 1)
        seed = None if seed is None else _whole("shuffle", "seed", seed)
        entropy = random.getrandbits(63) if seed is None else seed % _MAX_SEED
        reshuffle = reshuffle_each_iteration is not False
        return self._then(Shuffle(inputs=(self._node,), buffer_size=size, seed=seed, reshuffle=reshuffle, entropy=entropy))

    def repeat(self, count: int | None = None) -> "Dataset":
        """``count`` passes one after the other; without end if None or -1.

        >>> list(Dataset.range(2).repeat(2).batch(4))
        [array([0, 1, 0, 1])]
        """
        times = INFINITE if count is None else _whole("repeat", "count", count, -1)
        return self._then(Repeat(inputs=(self._node,), count=times))

    def take(self, count: int) -> "Dataset":
        """The first ``count`` elements; all if -1.

        >>> list(Dataset.range(10).take(2))
        [np.int64(0), np.int64(1)]
        """
        number = _whole("take", "count", count, -1)
        return self if number == -1 else self._then(Take(inputs=(self._node,), count=number))

    def skip(self, count: int) -> "Dataset":
        """All but the first ``count`` elements; none if -1.

        >>> list(Dataset.range(4).skip(2))
        [np.int64(2), np.int64(3)]
        """
        number = _whole("skip", "count", count, -1)
        return self.take(0) if number == -1 else self._then(Skip(inputs=(self._node,), count=number))

    def shard(self, num_shards: int, index: int) -> "Dataset":
        """Every ``num_shards``-th element, from number ``index`` on.

        Raises:
            ArgumentError: fewer than one shard, or an index outside them.

        >>> list(Dataset.range(7).shard(3, 1))
        [np.int64(1), np.int64(4)]
        """
        number = _whole("shard", "num_shards", num_shards, 1)
        which = _whole("shard", "index", index, 0)
        if which >= number:
            raise ArgumentError(f"shard: index must be from 0 to {number - 1} with {number} shards. Received: {which}.")
        return self._then(Shard(inputs=(self._node,), num_shards=number, index=which))

    def enumerate(self, start: int = 0) -> "Dataset":
        """Pairs ``(number, element)``, numbers as int64.

        >>> list(Dataset.from_tensor_slices(["a", "b"]).enumerate())
        [(np.int64(0), 'a'), (np.int64(1), 'b')]
        """
        return self._then(Enumerate(inputs=(self._node,), start=_whole("enumerate", "start", start)))

    def concatenate(self, dataset: "Dataset") -> "Dataset":
        """The elements of this dataset, then those of another.

        Raises:
            DatasetError: they differ in structure or dtype.

        >>> list(Dataset.range(2).concatenate(Dataset.range(8, 9)))
        [np.int64(0), np.int64(1), np.int64(8)]
        """
        _check_dataset("concatenate", dataset)
        node = Concatenate(inputs=(self._node, dataset.node))
        _ = node.spec  # raises where the two do not fit
        return Dataset(node, _merged_options([self, dataset]))

    # Memory and time

    def cache(self) -> "Dataset":
        """Keeps the elements of the first complete pass in memory, and replays them in every later one.

        >>> calls = []
        >>> dataset = Dataset.range(2).map(lambda x: (calls.append(1), x)[1]).cache().repeat(3)
        >>> len(list(dataset)), len(calls)
        (6, 2)
        """
        return self._then(Cache(inputs=(self._node,)))

    def prefetch(self, buffer_size: int) -> "Dataset":
        """Reads up to ``buffer_size`` elements ahead on a thread; -1 (AUTOTUNE) reads 2 ahead.

        Distributed datasets read ahead by themselves and need none at their end.

        >>> list(Dataset.range(4).batch(2).prefetch(2))
        [array([0, 1]), array([2, 3])]
        """
        size = _whole("prefetch", "buffer_size", buffer_size, -1)
        return self if size == 0 else self._then(Prefetch(inputs=(self._node,), buffer_size=size))

    # Facts and options

    @property
    def element_spec(self) -> Any:
        """Structure of specs of the elements; None if there are none. Functions of `map` are called to learn it.

        >>> Dataset.range(5).batch(2).element_spec
        TensorSpec(shape=(None,), dtype=int64)
        """
        return self._node.spec

    def cardinality(self) -> int:
        """Number of elements, -1 (`INFINITE`) or -2 (`UNKNOWN`).

        >>> Dataset.range(5).batch(2).cardinality(), Dataset.range(5).repeat().cardinality()
        (3, -1)
        """
        return self._node.cardinality

    def with_options(self, options: Options) -> "Dataset":
        """The same dataset with these options."""
        if not isinstance(options, Options):
            raise ArgumentTypeError(f"with_options takes a replicant.data.Options. Received: {type(options).__name__}.")
        return Dataset(self._node, copy.deepcopy(options))

    def options(self) -> Options:
        """A copy of the options."""
        return copy.deepcopy(self._options)

    # Iteration

    def __iter__(self) -> DatasetIterator:
        return DatasetIterator(self._node)

    def as_numpy_iterator(self) -> DatasetIterator:
        """The same as ``iter(dataset)``: elements are NumPy already."""
        return iter(self)

    def __len__(self) -> int:
        size = self.cardinality()
        if size < 0:
            what = "infinite" if size == INFINITE else "unknown until it was read"
            raise TypeError(f"The dataset's length is {what}. Use `cardinality()`, which says so without an error.")
        return size

    def __bool__(self) -> bool:
        return True  # not len() > 0, which may be unknown

    def __repr__(self) -> str:
        return f"<Dataset: {describe(self._node)}>"


def _whole(method: str, name: str, value: Any, minimum: int | None = None) -> int:
    """The value as an int, not below the minimum."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentTypeError(f"{method}: {name} must be an integer. Received: {value!r}.") from None
    if minimum is not None and number < minimum:
        raise ArgumentError(f"{method}: {name} must be at least {minimum}. Received: {number}.")
    return number


def _function(method: str, value: Any) -> Callable[..., Any]:
    if not callable(value):
        raise ArgumentTypeError(f"{method} takes a function of one element. Received: {value!r}.")
    return value


def _check_dataset(method: str, value: Any) -> None:
    if not isinstance(value, Dataset):
        raise ArgumentTypeError(f"{method} takes datasets. Received: {type(value).__name__}.")


def _merged_options(datasets: list[Dataset]) -> Options:
    """The first that says anything."""
    for dataset in datasets:
        if dataset._options.experimental_distribute.auto_shard_policy is not AutoShardPolicy.AUTO:
            return dataset._options
    return datasets[0]._options
