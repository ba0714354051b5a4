"""Methods of `Dataset` that remember, group or leave out elements. Each checks its arguments and adds a node."""

import os
import random
from collections.abc import Callable
from typing import Any, Self, cast

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError, DatasetError, ElementError
from ..storage._urls import local_path
from ._arguments import function, whole
from ._options import Options
from .files.saved._save import save
from .graph._graph import Node, describe
from .transforms._cache_file import FileStore
from .transforms._ignore_errors import IgnoreErrors
from .transforms._pipeline_fingerprint import fingerprint
from .transforms.batches._group import BucketBatches, BucketedWindows, Buckets, GroupByWindow, Windows
from .transforms.batches._padded import checked_shapes
from .transforms.batches._window import Window
from .transforms.elements._map import call, name_of
from .transforms.elements._stateful import Memory, Scan, TakeWhile, Unique, reduced
from .transforms.memory._cache import Cache
from .transforms.mixtures._resample import Resample, checked_distribution

MAX_SEED = 2**63


class Methods:
    """Methods that `Dataset` inherits."""

    _node: Node
    _options: Options

    @staticmethod
    def _of(node: Node) -> Any:
        """A dataset of the elements of a node."""
        raise NotImplementedError

    def _then(self, node: Node) -> Any:
        """A dataset of the elements of a node, with the options of this one."""
        raise NotImplementedError

    # What depends on earlier elements

    def scan(self, initial_state: Any, scan_func: Callable[[Any, Any], Any], name: str | None = None) -> Self:
        """Call ``scan_func(state, element)``, which returns the next state and the element to pass on.

        An iterator's position contains the state, so large states make large positions.

        Args:
            initial_state: The state before the first element of each pass: a structure of arrays and numbers.
            scan_func: The function. Every state has the structure and the dtypes of the first one.
            name: Without effect.

        >>> from replicant.data import Dataset
        >>> import numpy as np
        >>> list(Dataset.range(1, 5).scan(np.int64(0), lambda total, x: (total + x, total + x)))
        [np.int64(1), np.int64(3), np.int64(6), np.int64(10)]
        """
        fn, memory = function("scan", scan_func), Memory.of("scan", initial_state)
        return self._then(Scan(inputs=(self._node,), fn=fn, memory=memory, initial=memory.first))

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any], name: str | None = None) -> Any:
        """Return the state after the last element. ``reduce_func(state, element)`` returns the next state.

        Raises:
            DatasetError: If the dataset is infinite.
            ElementError: If the function returns a state of another structure or dtype.

        >>> from replicant.data import Dataset
        >>> import numpy as np
        >>> Dataset.range(5).reduce(np.int64(0), lambda total, x: total + x)
        np.int64(10)
        """
        fn = function("reduce", reduce_func)
        self._check_finite("reduce")
        return reduced(self._node, Memory.of("reduce", initial_state), fn)

    def take_while(self, predicate: Callable[..., Any], name: str | None = None) -> Self:
        """Return the elements before the first one for which ``predicate`` is false.

        >>> from replicant.data import Dataset
        >>> list(Dataset.range(10).take_while(lambda x: x < 3))
        [np.int64(0), np.int64(1), np.int64(2)]
        """
        return self._then(TakeWhile(inputs=(self._node,), predicate=function("take_while", predicate)))

    def unique(self, name: str | None = None) -> Self:
        """Leave out elements that are equal to an earlier one of the same pass.

        The values that were seen stay in memory. To continue at a position, the elements before it are read again.

        >>> from replicant.data import Dataset
        >>> list(Dataset.from_tensor_slices([1, 37, 2, 37, 2, 1]).unique())
        [np.int32(1), np.int32(37), np.int32(2)]
        """
        return self._then(Unique(inputs=(self._node,)))

    # Windows and groups

    def window(
        self, size: int, shift: int | None = None, stride: int = 1, drop_remainder: bool = False, name: str | None = None
    ) -> Self:
        """Return windows of elements. Each component of an element becomes a dataset of its own.

        Args:
            size: The number of elements in a window; fewer at the end.
            shift: The number of elements from the beginning of one window to that of the next; None means ``size``.
            stride: The number of elements from one element of a window to the next.
            drop_remainder: Whether to leave out windows with fewer elements.
            name: Without effect.

        Raises:
            ArgumentError: If a number is below 1.

        >>> from replicant.data import Dataset
        >>> for window in Dataset.range(5).window(3, shift=2):
        ...     print(*window)
        0 1 2
        2 3 4
        4
        >>> list(Dataset.range(4).window(2, shift=1, drop_remainder=True).flat_map(lambda window: window.batch(2)))
        [array([0, 1]), array([1, 2]), array([2, 3])]
        """
        number = whole("window", "size", size, 1)
        node = Window(
            inputs=(self._node,),
            make_dataset=self._of,
            size=number,
            shift=number if shift is None else whole("window", "shift", shift, 1),
            stride=whole("window", "stride", stride, 1),
            drop_remainder=bool(drop_remainder),
        )
        return self._then(node)

    def group_by_window(
        self,
        key_func: Callable[..., Any],
        reduce_func: Callable[[Any, Any], Any],
        window_size: int | None = None,
        window_size_func: Callable[[Any], int] | None = None,
        name: str | None = None,
    ) -> Self:
        """Collect elements with the same key, and return the elements of ``reduce_func(key, window)`` for each full window.

        At the end, the windows that are not full follow in the order of their keys.

        Args:
            key_func: A function of one element that returns its key, a whole number.
            reduce_func: A function of a key and the dataset of the elements in a window that returns a dataset.
            window_size: The number of elements in a window.
            window_size_func: A function of the key that returns this number. Give one of the two.
            name: Without effect.

        Raises:
            ArgumentError: If neither or both of the last two are given, or the number is below 1.

        >>> from replicant.data import Dataset
        >>> dataset = Dataset.range(6).group_by_window(lambda x: x % 2, lambda key, window: window.batch(2), window_size=2)
        >>> list(dataset)
        [array([0, 2]), array([1, 3]), array([4]), array([5])]
        """
        if (window_size is None) == (window_size_func is None):
            raise ArgumentError(
                f"group_by_window: give either window_size or window_size_func. Received: {window_size!r} and {window_size_func!r}."
            )
        size = (
            function("group_by_window", window_size_func)
            if window_size is None
            else whole("group_by_window", "window_size", window_size, 1)
        )
        key = function("group_by_window", key_func)
        windows = Windows(inputs=(self._node,), key_func=key, size=size, make_dataset=self._of)
        return self._then(GroupByWindow(inputs=(windows,), fn=function("group_by_window", reduce_func)))

    def bucket_by_sequence_length(  # noqa: PLR0917 - the arguments are those of tf.data
        self,
        element_length_func: Callable[..., Any],
        bucket_boundaries: Any,
        bucket_batch_sizes: Any,
        padded_shapes: Any = None,
        padding_values: Any = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Self:
        """Return padded batches of elements of similar length.

        Args:
            element_length_func: A function of one element that returns its length, a whole number.
            bucket_boundaries: Lengths that grow. Bucket i takes the lengths below boundary i, the last bucket the longest.
            bucket_batch_sizes: The batch size of each bucket: one more than there are boundaries.
            padded_shapes: The shapes to pad to, as in `padded_batch`; None pads to the longest in the batch.
            padding_values: The values to pad with, as in `padded_batch`.
            pad_to_bucket_boundary: Whether to pad to the boundary of the bucket, less 1: the sizes that are None in
                ``padded_shapes``, or the first size of each component.
            no_padding: Whether to batch without padding.
            drop_remainder: Whether to leave out batches that are not full at the end.
            name: Without effect.

        Raises:
            ArgumentError: If the numbers of boundaries and batch sizes do not fit, or a number is not allowed.

        >>> from replicant.data import Dataset
        >>> dataset = Dataset.range(1, 6).map(lambda n: [n] * n)
        >>> for batch in dataset.bucket_by_sequence_length(len, [4], [2, 2]):
        ...     print(batch.tolist())
        [[1, 0], [2, 2]]
        [[4, 4, 4, 4, 0], [5, 5, 5, 5, 5]]
        [[3, 3, 3]]
        """
        method = "bucket_by_sequence_length"
        buckets = Buckets(
            tuple(whole(method, "a boundary", each) for each in bucket_boundaries),
            tuple(whole(method, "a batch size", each) for each in bucket_batch_sizes),
            checked_shapes(padded_shapes),
            padding_values,
            bool(pad_to_bucket_boundary),
            bool(no_padding),
            bool(drop_remainder),
        )
        key = function(method, element_length_func)
        windows = BucketedWindows(inputs=(self._node,), key_func=key, size=1, make_dataset=self._of, buckets=buckets)
        return self._then(BucketBatches(inputs=(windows,), fn=_batches_of(buckets), buckets=buckets))

    # What is left out

    def ignore_errors(self, log_warning: bool = False, name: str | None = None) -> Self:
        """Leave out the elements whose making raises an error.

        What was read of an unfinished batch is left out with it, as in tf.data, so write this before `batch`. Nothing in front of
        it reads ahead. An error that comes again at the same place, such as that of a source which cannot be read, is raised.
        The iterator's ``num_skipped`` counts what was left out, a batch as one.

        Args:
            log_warning: Whether to log a warning for each error, to the logger ``replicant.data``.
            name: Without effect.

        >>> from replicant.data import Dataset
        >>> numbers = Dataset.from_tensor_slices(["1", "x", "3"])
        >>> list(numbers.map(int).ignore_errors().batch(2))
        [array([1, 3], dtype=int32)]
        """
        return self._then(IgnoreErrors(inputs=(self._node,), log_warning=bool(log_warning)))

    def rejection_resample(
        self,
        class_func: Callable[..., Any],
        target_dist: Any,
        initial_dist: Any = None,
        seed: int | None = None,
        name: str | None = None,
    ) -> Self:
        """Leave out elements at random, so that classes become as frequent as ``target_dist`` says. Returns pairs (class, element).

        Args:
            class_func: A function of one element that returns the number of its class.
            target_dist: The frequency of each class that is wanted.
            initial_dist: The frequency of each class in this dataset; None counts them while elements are read.
            seed: A seed, as in `shuffle`. Every pass draws other numbers.
            name: Without effect.

        Raises:
            ArgumentError: If these are not frequencies, or there are not as many of one as of the other.

        >>> from replicant.data import Dataset
        >>> dataset = Dataset.range(1000).rejection_resample(lambda x: x % 2, [0.0, 1.0], [0.5, 0.5], seed=1)
        >>> next(iter(dataset))
        (np.int64(1), np.int64(1))
        """
        method = "rejection_resample"
        target = checked_distribution("target_dist", target_dist)
        initial = None if initial_dist is None else checked_distribution("initial_dist", initial_dist)
        if initial is not None and len(initial) != len(target):
            raise ArgumentError(
                f"{method}: initial_dist and target_dist need one frequency per class. Received {len(initial)} and {len(target)}."
            )
        seed, entropy = chosen_seed(method, seed)
        node = Resample(
            inputs=(self._node,),
            class_func=function(method, class_func),
            target=target,
            initial=initial,
            seed=seed,
            entropy=entropy,
        )
        return self._then(node)

    # Whole datasets

    def apply(self, transformation_func: Callable[[Self], Self]) -> Self:
        """Return ``transformation_func(dataset)``, which is a dataset.

        Raises:
            ArgumentTypeError: If the function returns something else.

        >>> from replicant.data import Dataset
        >>> list(Dataset.range(100).apply(lambda dataset: dataset.filter(lambda x: x < 2)))
        [np.int64(0), np.int64(1)]
        """
        made = function("apply", transformation_func)(self)
        if not isinstance(made, Methods):
            raise ArgumentTypeError(f"apply: the function must return a Dataset. It returned {made!r}.")
        return cast(Self, made)  # nothing but Dataset has these methods

    def get_single_element(self, name: str | None = None) -> Any:
        """Return the only element.

        Raises:
            DatasetError: If there is none, or more than one.

        >>> from replicant.data import Dataset
        >>> Dataset.range(3).batch(3).get_single_element()
        array([0, 1, 2])
        """
        cursor = self._node.open()
        try:
            block = cursor.pull(1)
            if block is None:
                raise DatasetError(f"get_single_element: the dataset has no element. It is: {describe(self._node)}.")
            if cursor.pull(1) is not None:
                raise DatasetError(
                    f"get_single_element: the dataset has more than one element. It is: {describe(self._node)}. Use `take(1)` for "
                    "the first."
                )
        finally:
            cursor.close()
        return next(block.elements())

    def save(
        self,
        path: str | os.PathLike[str],
        compression: str | None = None,
        shard_func: Callable[..., Any] | None = None,
        checkpoint_args: Any = None,
    ) -> None:
        """Write all elements to a folder, from which `load` reads them.

        What was saved there before is replaced at once, when everything has been written. So a crash leaves the old or the new
        dataset, never a mixture. The files hold plain numbers and text with checksums, and reading them executes nothing.

        Args:
            path: The folder. It is made if need be.
            compression: "GZIP" makes smaller files; None writes elements as they are.
            shard_func: A function of one element that returns the number of the file to put it in; None puts all in one.
            checkpoint_args: Not supported, because a save is complete or has not happened.

        Raises:
            ArgumentError: If the compression is another one, or ``checkpoint_args`` is given.
            DatasetError: If the dataset is infinite, or the folder cannot be written.

        >>> import tempfile
        >>> from replicant.data import Dataset
        >>> folder = tempfile.mkdtemp()
        >>> Dataset.range(3).save(folder)
        >>> list(Dataset.load(folder))
        [np.int64(0), np.int64(1), np.int64(2)]
        """
        if checkpoint_args is not None:
            raise ArgumentError(
                "save: checkpoint_args cannot be used: a save is complete or has not happened. Leave it out. "
                f"Received: {checkpoint_args!r}."
            )
        self._check_finite("save")
        shard_of = None if shard_func is None else shard_numbers(function("save", shard_func))
        save(self._node, local_path("save: path", path), shard_of, saved_compression("save", compression))

    def snapshot(
        self,
        path: str | os.PathLike[str],
        compression: str | None = "AUTO",
        reader_func: Any = None,
        shard_func: Any = None,
        name: str | None = None,
    ) -> Self:
        """Keep the elements of the first complete pass in a folder, and replay them in later passes and runs.

        It works as ``cache(filename)`` does, but the folder may hold snapshots of several pipelines. If the pipeline or its data
        change (docs/input-files.md says what is compared), another snapshot is written instead of an error.

        Args:
            path: The folder. It is made if need be.
            compression: "AUTO" or None: elements are written as they are.
            reader_func: Not supported. Use `save` and `load` to write and read several files.
            shard_func: Not supported, as ``reader_func``.
            name: Without effect.

        Raises:
            ArgumentError: If an argument is given that is not supported.

        >>> import tempfile
        >>> from replicant.data import Dataset
        >>> calls = []
        >>> dataset = Dataset.range(2).map(lambda x: (calls.append(1), x)[1]).snapshot(tempfile.mkdtemp())
        >>> list(dataset) == list(dataset), len(calls)
        (True, 2)
        """
        if reader_func is not None or shard_func is not None:
            raise ArgumentError(
                "snapshot: reader_func and shard_func cannot be used: a snapshot is one file. Use `save(path, shard_func=...)` and "
                "`load(path, reader_func=...)`."
            )
        if compression not in (None, "", "NONE", "AUTO"):
            raise ArgumentError(f"snapshot: compression must be None or 'AUTO'. Received: {compression!r}.")
        folder = local_path("snapshot: path", path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DatasetError(f"snapshot: cannot write to {str(folder)!r}: {error.strerror}.") from error
        store = FileStore(str(folder / f"{fingerprint(self._node)}.snapshot"), self._node, "snapshot")
        return self._then(Cache(inputs=(self._node,), store=store, name=folder.name, method="snapshot"))

    def fingerprint(self) -> np.uint64:
        """Return a number that two datasets have in common only if they are the same pipeline over the same data.

        It covers what `cache` compares. Shuffles without a seed count as equal.

        >>> from replicant.data import Dataset
        >>> Dataset.range(3).batch(2).fingerprint() == Dataset.range(3).batch(2).fingerprint() != Dataset.range(3).fingerprint()
        np.True_
        """
        return np.uint64(int(fingerprint(self._node), 16))

    def _check_finite(self, method: str) -> None:
        if self._node.cardinality == -1:
            raise DatasetError(f"{method}: the dataset is infinite, so this would never end. Use `take` before it.")


def chosen_seed(method: str, seed: int | None) -> tuple[int | None, int]:
    """Return a checked seed, and what stands for it: the seed, or a number that Python's `random` draws."""
    checked = None if seed is None else whole(method, "seed", seed)
    return checked, random.getrandbits(63) if checked is None else checked % MAX_SEED


def saved_compression(method: str, value: str | None) -> str:
    """Return the compression of saved elements: "" or "GZIP". "AUTO" and "NONE" stand for none.

    Raises:
        ArgumentError: If it is another one.
    """
    if value not in (None, "", "NONE", "AUTO", "GZIP"):
        raise ArgumentError(f'{method}: compression must be None or "GZIP". Received: {value!r}.')
    return "GZIP" if value == "GZIP" else ""


def shard_numbers(fn: Callable[..., Any]) -> Callable[[Any], int]:
    """Return the function that gives the number of an element's shard."""

    def number(element: Any) -> int:
        value = call(fn, element)
        found = np.asarray(value)
        if found.ndim or found.dtype.kind not in "iu" or found < 0:
            raise ElementError(f"save: {name_of(fn)} must return a whole number of at least 0 per element. Received: {value!r}.")
        return int(found)

    return number


def _batches_of(buckets: Buckets) -> Callable[[Any, Any], Any]:
    """The function that makes batches of a window."""

    def batches(bucket: Any, window: Any) -> Any:
        size = buckets.batch_sizes[int(bucket)]
        if buckets.no_padding:
            return window.batch(size, drop_remainder=buckets.drop_remainder)
        shapes = buckets.shapes(window.element_spec, int(bucket))
        return window.padded_batch(size, shapes, buckets.padding_values, drop_remainder=buckets.drop_remainder)

    return batches
