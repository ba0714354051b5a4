"""`Dataset`: the API of tf.data over the graph. Each method checks its arguments and adds a node."""

import copy
import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError, DatasetError
from ..storage._urls import local_path
from ._arguments import calls_in_parallel, function, number_dtype, whole
from ._iterator import DatasetIterator
from ._methods import chosen_seed, saved_compression
from ._options import AutoShardPolicy, Options
from ._own_methods import OwnMethods
from ._profile import profiled
from .files._file_names import matching_files
from .files._limits import MAX_RECORD_BYTES, checked_limit
from .files.columns._huggingface import huggingface
from .files.saved._load import is_there, shards_of
from .graph._graph import INFINITE, UNKNOWN, Node, describe
from .graph._structure import flatten
from .sharding._facts import PipelineFacts
from .sharding._plan import InputPlan, input_plan
from .sources._generator import generator as yielded
from .sources._generator import signature_of
from .sources._sources import integers, tensor_slices
from .sources._sources import tensors as one_element
from .transforms._cache_file import FileStore
from .transforms._random import LARGEST_SEED, Counter, RandomNumbers
from .transforms._shards import all_shards
from .transforms.batches._batch import Batch, Unbatch
from .transforms.batches._padded import PaddedBatch, checked_shapes
from .transforms.elements._index import Enumerate, Repeat, Shard, Skip, Take
from .transforms.elements._map import Filter, Map
from .transforms.memory._cache import Cache
from .transforms.memory._prefetch import Prefetch
from .transforms.mixtures._combine import Concatenate, Zip
from .transforms.mixtures._curriculum import Curriculum, WeightFunction, is_table, weight_table
from .transforms.mixtures._interleave import Interleave
from .transforms.mixtures._sample_from import Choose, Sample
from .transforms.order._shuffle import Shuffle

AUTOTUNE = -1  # as a number of parallel calls or a buffer size: chosen for you

_WAIT_SECONDS = 0.5  # between two looks for a saved dataset
_MAX_WAIT_SECONDS = 3600.0  # for `load(..., wait=True)`
_PROFILED = 100  # elements
_DEFAULT_CYCLE = 4  # for AUTOTUNE in `interleave`: the order must not depend on the machine


class Dataset(OwnMethods):
    """A sequence of elements: NumPy arrays, scalars and strings in tuples, dicts, named tuples or other pytrees.

    Transforms return a new dataset and read nothing; data is read when you iterate. As in tf.data, a list is a tensor, and Python
    numbers become float32 and int32. Strings are Python objects that stay on the host. Arrays are not copied, so do not change
    them while the dataset is in use. Arguments called ``name`` are accepted, as in tf.data, and have no effect.

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
        self._facts = PipelineFacts(node)

    @property
    def node(self) -> Node:
        """The last node of the graph."""
        return self._node

    @staticmethod
    def _of(node: Node) -> "Dataset":
        return Dataset(node)

    def _then(self, node: Node) -> "Dataset":
        return Dataset(node, self._options)

    # Sources

    @staticmethod
    def from_tensors(tensors: Any, name: str | None = None) -> "Dataset":
        """Return a dataset of one element: the whole structure.

        >>> list(Dataset.from_tensors(([1, 2], 3)).as_numpy_iterator())
        [(array([1, 2], dtype=int32), np.int32(3))]
        """
        return Dataset(one_element(tensors))

    @staticmethod
    def from_tensor_slices(tensors: Any, name: str | None = None) -> "Dataset":
        """Return a dataset with one element per row of the arrays (NumPy, JAX, lists), which all have the same number of rows.

        Raises:
            ArgumentError: If a component is a scalar.
            ElementError: If the components have different numbers of rows.

        >>> import numpy as np
        >>> list(Dataset.from_tensor_slices((np.zeros((2, 3)), ["a", "b"])))
        [(array([0., 0., 0.]), 'a'), (array([0., 0., 0.]), 'b')]
        """
        return Dataset(tensor_slices(tensors))

    @staticmethod
    def range(*args: int, output_type: Any = np.int64, name: str | None = None) -> "Dataset":
        """Return the numbers of Python's ``range(*args)``, as int64 or another dtype.

        Raises:
            ArgumentError: If there is no argument, there are more than three, or the step is 0.
            ArgumentTypeError: If an argument is not an integer, or ``output_type`` is not a dtype of numbers.

        >>> list(Dataset.range(1, 7, 2))
        [np.int64(1), np.int64(3), np.int64(5)]
        """
        numbers = [whole("range", "an argument", value) for value in args]
        return Dataset(integers(*numbers, dtype=number_dtype("range", output_type)))

    @staticmethod
    def from_generator(  # noqa: PLR0917 - the arguments are those of tf.data
        generator: Callable[..., Any],
        output_types: Any = None,
        output_shapes: Any = None,
        args: Any = None,
        output_signature: Any = None,
        name: str | None = None,
    ) -> "Dataset":
        """Return a dataset of what ``generator(*args)`` yields. A yielded array may itself be a global batch.

        The function is called once for each pass. What is read to learn the element spec, here or for a `map`, is the beginning
        of the next pass. So the generator may be one that is read once, as from a queue or a socket: no element is lost or read
        twice, though functions of `map` may be called twice for it. A saved position is a number of elements, which are skipped
        on restore.

        Args:
            generator: A function that returns an iterator for each pass.
            output_types: An older way to say the signature: a structure of dtypes, or the signature itself.
            output_shapes: The shapes that belong to these dtypes, in the same structure.
            args: The arguments of the function.
            output_signature: A structure (tuples and dicts) of `TensorSpec`. Elements are checked against it, and Python
                numbers take its dtypes. None means the dtypes and ranks of the first element, with any sizes.
            name: Without effect.

        Raises:
            ArgumentTypeError: If ``generator`` cannot be called, or the signature contains anything but specs.
            ArgumentError: If dtypes come without shapes, or with a signature.

        >>> def batches():
        ...     yield [1.0, 2.0]
        ...     yield [3.0]
        >>> list(Dataset.from_generator(batches))
        [array([1., 2.], dtype=float32), array([3.], dtype=float32)]
        """
        return Dataset(yielded(generator, signature_of(output_types, output_shapes, output_signature), args))

    @staticmethod
    def from_huggingface(dataset: Any) -> "Dataset":
        """Return the rows of a dataset of the package ``datasets`` (Hugging Face), each as a dict of its columns.

        Rows of a ``Dataset`` are read from its table as `ArrowDataset` reads them, whatever its format, but through the function of
        ``set_transform`` if it has one. Pictures become ``uint8[height, width, channels]``, as in
        `image_dataset_from_directory`, or the bytes of their files if the feature says ``decode=False``. Sounds are the bytes of
        their files, and a list of dicts is a dict of lists. Its position is a number. An ``IterableDataset`` is read row by row,
        and its position is its own ``state_dict``.

        Args:
            dataset: A ``datasets.Dataset`` or ``datasets.IterableDataset``.

        Raises:
            ArgumentTypeError: If it is something else.
            ConfigurationError: During iteration, if there are pictures, and Pillow is not installed (``pip install
                'replicant-jax[images]'``).
            DatasetError: If a column has a type that no array holds. During iteration, if a file cannot be read or decoded.
            ElementError: During iteration, if a value is missing, or has another shape than was declared.

        >>> import datasets
        >>> numbers = datasets.Dataset.from_dict({"x": [1, 2, 3]})
        >>> list(Dataset.from_huggingface(numbers).batch(2))
        [{'x': array([1, 2])}, {'x': array([3])}]
        """
        return Dataset(huggingface(dataset))

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        element_spec: Any = None,
        compression: str | None = None,
        reader_func: Callable[["Dataset"], "Dataset"] | None = None,
        wait: bool | float = False,
        *,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> "Dataset":
        """Return the dataset that `save` wrote to a folder, or that of tf.data.

        Several files are read in turn, one element of each, as tf.data does on a machine with as many cores or more. Strings that
        tf.data has saved are bytes.

        Args:
            path: The folder.
            element_spec: The structure of the specs. It is needed only for structures other than tuples and dicts.
            compression: The compression that `save` was given.
            reader_func: A function of a dataset whose elements are the datasets of the files; it returns the dataset to read.
            wait: Whether to wait until there is a saved dataset: for an hour, or for so many seconds.
            max_record_bytes: The most bytes that a compressed record may become. It holds 256 elements, or 8 MiB of arrays that
                are elements or batches by themselves.

        Raises:
            DatasetError: If there is no saved dataset, even after waiting, or it has other elements or another compression.
            ArgumentTypeError: If ``reader_func`` does not return a dataset.

        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> Dataset.range(6).save(folder, shard_func=lambda x: x % 2)
        >>> list(Dataset.load(folder, reader_func=lambda files: files.flat_map(lambda file: file)).batch(6))
        [array([0, 2, 4, 1, 3, 5])]
        """
        folder, method = local_path("load: path", path), saved_compression("load", compression)
        seconds = _MAX_WAIT_SECONDS if wait is True else float(wait)
        deadline = time.monotonic() + seconds
        while wait and not is_there(folder):
            if time.monotonic() > deadline:
                raise DatasetError(
                    f"load: nobody has saved a dataset in {str(folder)!r} within {seconds:g} s. Check the path, or wait longer: "
                    f"`wait={2 * seconds:g}`."
                )
            time.sleep(min(_WAIT_SECONDS, seconds))
        shards = shards_of(folder, element_spec, method, checked_limit("load", max_record_bytes))
        if reader_func is not None:
            made = function("load", reader_func)(Dataset(all_shards(shards, folder.name, Dataset)))
            _check_dataset("load: reader_func", made)
            return made
        if len(shards) == 1:
            return Dataset(shards[0])
        return Dataset(all_shards(shards, folder.name, Dataset)).interleave(_itself, cycle_length=len(shards))

    @staticmethod
    def list_files(file_pattern: Any, shuffle: bool | None = None, seed: int | None = None, name: str | None = None) -> "Dataset":
        """Return the names of the files that match a pattern, or one of several.

        They are sorted, then shuffled again in every pass unless ``shuffle`` is False. Patterns are those of Python's
        `glob`, and files are looked up when this method is called. A pattern may also be a URL.

        Raises:
            DatasetError: If a pattern matches nothing, or an object store does not answer.

        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in ("b.txt", "a.txt"):
        ...     _ = (folder / name).write_text(name)
        >>> [pathlib.Path(name).name for name in Dataset.list_files(str(folder / "*.txt"), shuffle=False)]
        ['a.txt', 'b.txt']
        """
        node = matching_files(file_pattern)
        return Dataset(node) if shuffle is False else Dataset(node).shuffle(node.size, seed)

    @staticmethod
    def zip(*args: Any, datasets: Any = None, name: str | None = None) -> "Dataset":
        """Pair up the elements of several datasets (also of a tuple or dict of them), to the end of the shortest.

        Raises:
            ArgumentTypeError: If something is not a dataset.
            ArgumentError: If there is no dataset.

        >>> list(Dataset.zip(Dataset.range(2), Dataset.range(5, 9)))
        [(np.int64(0), np.int64(5)), (np.int64(1), np.int64(6))]
        """
        if datasets is not None and args:
            raise ArgumentError("zip: give the datasets in one way: `zip(a, b)` or `zip(datasets=(a, b))`.")
        given = (args[0] if len(args) == 1 else args) if datasets is None else datasets
        leaves, structure = flatten(given)
        for leaf in leaves:
            _check_dataset("zip", leaf)
        if not leaves:
            raise ArgumentError("zip: needs at least one dataset.")
        return Dataset(Zip(inputs=tuple(leaf.node for leaf in leaves), structure=structure), _merged_options(leaves))

    @staticmethod
    def random(seed: int | None = None, rerandomize_each_iteration: bool | None = None, name: str | None = None) -> "Dataset":
        """Return endlessly many random numbers from 0 to 2**32 - 1, as int64. With a seed, they are TensorFlow's.

        Args:
            seed: A seed. Without one, it is drawn from Python's `random`.
            rerandomize_each_iteration: Whether every iteration, and every pass of a later `repeat`, has other numbers. These are
                not TensorFlow's, not even with a seed.
            name: Without effect.

        >>> numbers = Dataset.random(seed=4).take(2)
        >>> list(numbers) == list(numbers)
        True
        """
        checked, entropy = chosen_seed("random", seed)
        entropy = entropy if checked is None else checked % LARGEST_SEED
        return Dataset(RandomNumbers(inputs=(), seed=checked, entropy=entropy, reshuffle=bool(rerandomize_each_iteration)))

    @staticmethod
    def counter(start: float = 0, step: float = 1, dtype: Any = np.int64, name: str | None = None) -> "Dataset":
        """Return ``start``, ``start + step``, and so on without end.

        Raises:
            ArgumentTypeError: If ``start`` or ``step`` is not a number.

        >>> list(Dataset.counter(start=2, step=3).take(3))
        [np.int64(2), np.int64(5), np.int64(8)]
        """
        for what, value in (("start", start), ("step", step)):
            if not isinstance(value, int | float | np.integer | np.floating):
                raise ArgumentTypeError(f"counter: {what} must be a number. Received: {value!r}.")
        return Dataset(Counter(inputs=(), start=start, step=step, dtype=np.dtype(dtype)))

    @staticmethod
    def sample_from_datasets(
        datasets: Any,
        weights: Any = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
    ) -> "Dataset":
        """Take each element from a dataset that is drawn at random.

        Args:
            datasets: A list of datasets of similar elements.
            weights: The weight of each dataset; None gives all the same. Or weights that change: a table
                ``[(first_draw, weights), ...]``, a function that returns the weights of draw 0, 1, 2 and so on, or a dataset of
                lists of weights. If a draw has weights for none but datasets that have ended, a table goes on with its next
                stage, and the others with the next draw.
            seed: A seed. Without one, it is drawn from Python's `random`.
            stop_on_empty_dataset: Whether to end when a dataset is drawn that has ended. By default, the others go on.
            rerandomize_each_iteration: Whether every iteration, and every pass of a later `repeat`, draws other numbers.

        Raises:
            ArgumentError: If there is no dataset, there are not as many weights, or the stages of a table do not grow from 0.
            ArgumentTypeError: If something is not a dataset, or a stage does not begin at a whole number.
            DatasetError: If the datasets differ in structure or dtype.
            ElementError: During iteration, if the weights of a draw are invalid, or 10,000 draws in a row have weights for none
                but datasets that have ended.

        >>> halves = [Dataset.range(3), Dataset.range(10, 13)]
        >>> list(Dataset.sample_from_datasets(halves, weights=[1.0, 0.0]))
        [np.int64(0), np.int64(1), np.int64(2)]
        >>> list(Dataset.sample_from_datasets(halves, weights=[(0, [0.0, 1.0]), (2, [1.0, 0.0])]))
        [np.int64(10), np.int64(11), np.int64(0), np.int64(1), np.int64(2)]
        """
        given = _datasets("sample_from_datasets", datasets)
        checked, entropy = chosen_seed("sample_from_datasets", seed)
        fixed, numbers = None, tuple(range(len(given)))
        inputs = given
        if isinstance(weights, Dataset):
            inputs = [weights, *given]
        else:
            fixed, numbers = _weights_of(weights, len(given))
            inputs = [given[number] for number in numbers]
            if len(inputs) < 2:
                return inputs[0] if inputs else given[0].take(0)
        node = Sample(
            inputs=tuple(each.node for each in inputs),
            seed=checked,
            entropy=entropy,
            reshuffle=bool(rerandomize_each_iteration),
            weights=fixed,
            numbers=numbers,
            stop_on_empty=bool(stop_on_empty_dataset),
        )
        _ = node.spec  # raises if the datasets do not fit
        return Dataset(node, _merged_options(given))

    @staticmethod
    def choose_from_datasets(datasets: Any, choice_dataset: "Dataset", stop_on_empty_dataset: bool = True) -> "Dataset":
        """Take each element from the dataset whose number ``choice_dataset`` gives next.

        Args:
            datasets: A list of datasets of similar elements.
            choice_dataset: A dataset of whole numbers.
            stop_on_empty_dataset: Whether to end when a dataset is chosen that has ended. Otherwise the others go on.

        Raises:
            ArgumentError: If there is no dataset.
            ArgumentTypeError: If something is not a dataset.
            DatasetError: If the datasets differ in structure or dtype.
            ElementError: During iteration, if a choice is not a number of a dataset, or 1,000,000 choices in a row name only
                datasets that have ended.

        >>> parts = [Dataset.range(3), Dataset.range(10, 13)]
        >>> list(Dataset.choose_from_datasets(parts, Dataset.from_tensor_slices([1, 0, 1])))
        [np.int64(10), np.int64(0), np.int64(11)]
        """
        given = _datasets("choose_from_datasets", datasets)
        _check_dataset("choose_from_datasets", choice_dataset)
        nodes = (choice_dataset.node, *(each.node for each in given))
        node = Choose(inputs=nodes, stop_on_empty=bool(stop_on_empty_dataset))
        _ = node.spec  # raises if the datasets do not fit
        return Dataset(node, _merged_options(given))

    # One function per element

    def map(  # noqa: PLR0917 - the arguments are those of tf.data
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        synchronous: bool | None = None,
        use_unbounded_threadpool: bool = False,
        name: str | None = None,
    ) -> "Dataset":
        """Apply ``map_func`` to every element. Tuples arrive as several arguments, anything else as one.

        The result is used as it is, without a copy, so do not return the same buffer twice. The loop over the dataset
        raises what the function raises.

        Args:
            map_func: The function, which is called once per element.
            num_parallel_calls: The number of threads that call it, ahead of the consumer; AUTOTUNE (-1) takes one per core.
                Threads help functions that release Python's lock: decoders, file access, large NumPy operations.
            deterministic: Whether the order must be kept. It always is; False only permits another.
            synchronous: True says that it needs no threads, so ``num_parallel_calls`` must be None.
            use_unbounded_threadpool: As in tf.data, but without effect: there are as many threads as calls.
            name: Without effect.

        Raises:
            ArgumentError: If ``synchronous`` is True, and ``num_parallel_calls`` is not None.

        >>> list(Dataset.range(3).map(lambda x: x * 10).as_numpy_iterator())
        [np.int64(0), np.int64(10), np.int64(20)]
        >>> list(Dataset.range(3).map(lambda x: x * 10, num_parallel_calls=2))
        [np.int64(0), np.int64(10), np.int64(20)]
        """
        num_threads = calls_in_parallel("map", num_parallel_calls) or 0
        if synchronous and num_threads:
            raise ArgumentError(
                f"map: num_parallel_calls asks for threads, and synchronous for none. Received: {num_parallel_calls}."
            )
        return self._then(Map(inputs=(self._node,), fn=function("map", map_func), num_threads=num_threads))

    def flat_map(self, map_func: Callable[..., "Dataset"], name: str | None = None) -> "Dataset":
        """Return all elements of the datasets that ``map_func`` makes from the elements, one dataset after the other.

        >>> list(Dataset.range(1, 4).flat_map(lambda n: Dataset.range(n)))
        [np.int64(0), np.int64(0), np.int64(1), np.int64(0), np.int64(1), np.int64(2)]
        """
        return self._then(Interleave(inputs=(self._node,), fn=function("flat_map", map_func)))

    def interleave(  # noqa: PLR0917 - the arguments are those of tf.data
        self,
        map_func: Callable[..., "Dataset"],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> "Dataset":
        """Work as `flat_map` does, but take elements from several datasets in turn.

        Args:
            map_func: A function of one element, as in `map`, that returns a dataset.
            cycle_length: The number of datasets that are read in turn; None and AUTOTUNE (-1) stand for 4.
            block_length: The number of consecutive elements taken from each; None means 1.
            num_parallel_calls: If it is not None, each dataset is read ahead on a thread of its own.
            deterministic: Whether the order must be kept. It always is; False only permits another.
            name: Without effect.

        Raises:
            ArgumentError: If a length is below 1.

        >>> list(Dataset.range(2).interleave(lambda n: Dataset.range(10 * n, 10 * n + 3), block_length=2).batch(6))
        [array([ 0,  1, 10, 11,  2, 12])]
        """
        cycle = AUTOTUNE if cycle_length is None else whole("interleave", "cycle_length", cycle_length, -1)
        if cycle == 0:
            raise ArgumentError("interleave: cycle_length must be at least 1, or AUTOTUNE (-1). Received: 0.")
        return self._then(
            Interleave(
                inputs=(self._node,),
                fn=function("interleave", map_func),
                cycle_length=_DEFAULT_CYCLE if cycle == AUTOTUNE else cycle,
                block_length=1 if block_length is None else whole("interleave", "block_length", block_length, 1),
                parallel=calls_in_parallel("interleave", num_parallel_calls) is not None,
            )
        )

    def filter(self, predicate: Callable[..., Any], name: str | None = None) -> "Dataset":
        """Keep the elements for which ``predicate`` is true. It gets its arguments as the function of `map` does.

        >>> list(Dataset.range(5).filter(lambda x: x % 2 == 1))
        [np.int64(1), np.int64(3)]
        """
        return self._then(Filter(inputs=(self._node,), predicate=function("filter", predicate)))

    # Batches

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> "Dataset":
        """Stack ``batch_size`` consecutive elements; the last batch may be smaller, or is dropped.

        Under a strategy this is the *global* batch. Iteration raises ElementError if the elements of a batch differ in
        shape or dtype.

        Args:
            batch_size: The number of elements in a batch.
            drop_remainder: Whether to leave out a last batch that would be smaller.
            num_parallel_calls: As in tf.data, but without effect: a batch is copied at once.
            deterministic: Whether the order must be kept. It always is.
            name: Without effect.

        Raises:
            ArgumentError: If the size is below 1.

        >>> list(Dataset.range(5).batch(2))
        [array([0, 1]), array([2, 3]), array([4])]
        """
        size = whole("batch", "batch_size", batch_size, 1)
        _ = calls_in_parallel("batch", num_parallel_calls)
        return self._then(Batch(inputs=(self._node,), sizes=(size,), drop_remainder=bool(drop_remainder)))

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> "Dataset":
        """Work as `batch` does, for elements of different sizes, which are padded at their ends.

        Args:
            batch_size: The number of elements in a batch.
            padded_shapes: A shape, or a structure of shapes, of elements without the batch dimension. None (or -1) in a shape
                stands for the largest size in the batch. None alone pads every dimension to its largest size.
            padding_values: One value, or a structure of values. None means 0, False and the empty string.
            drop_remainder: Whether to leave out a last batch that would be smaller.
            name: Without effect.

        Raises:
            ArgumentError: If the size is below 1, or ``padded_shapes`` holds no shapes.

        >>> list(Dataset.range(1, 4).map(lambda n: [n] * n).padded_batch(2, padding_values=-1))
        [array([[ 1, -1],
               [ 2,  2]]), array([[3, 3, 3]])]
        """
        node = PaddedBatch(
            inputs=(self._node,),
            sizes=(whole("padded_batch", "batch_size", batch_size, 1),),
            drop_remainder=bool(drop_remainder),
            shapes=checked_shapes(padded_shapes),
            values=padding_values,
        )
        return self._then(node)

    def unbatch(self, name: str | None = None) -> "Dataset":
        """Return the rows of every element.

        >>> list(Dataset.range(5).batch(3).unbatch().batch(2))
        [array([0, 1]), array([2, 3]), array([4])]
        """
        return self._then(Unbatch(inputs=(self._node,)))

    def rebatch(
        self, batch_size: int | list[int] | tuple[int, ...], drop_remainder: bool = False, name: str | None = None
    ) -> "Dataset":
        """Return batches of another size, or of several sizes in turn if given a list.

        Raises:
            ArgumentError: If a size is below 1, or there is no size.

        >>> list(Dataset.range(6).batch(3).rebatch([2, 1]))
        [array([0, 1]), array([2]), array([3, 4]), array([5])]
        """
        given = batch_size if isinstance(batch_size, list | tuple) else [batch_size]
        sizes = tuple(whole("rebatch", "batch_size", size, 1) for size in given)
        if not sizes:
            raise ArgumentError("rebatch: batch_size must name at least one size. Received: an empty list.")
        return self._then(Batch(inputs=(Unbatch(inputs=(self._node,)),), sizes=sizes, drop_remainder=bool(drop_remainder)))

    # Order and number

    def shuffle(
        self, buffer_size: int, seed: int | None = None, reshuffle_each_iteration: bool | None = True, name: str | None = None
    ) -> "Dataset":
        """Shuffle through a buffer of ``buffer_size`` elements; the order is uniform if the dataset fits into it.

        Every iteration, and every pass of a later `repeat`, has another order unless ``reshuffle_each_iteration`` is
        False. One ``seed`` gives one sequence of orders. Without a seed, one is drawn from Python's `random`, so
        ``random.seed`` or ``keras.utils.set_random_seed`` fixes it.

        Raises:
            ArgumentError: If the buffer size is below 1.

        >>> dataset = Dataset.range(4).shuffle(4, seed=1)
        >>> sorted(dataset.as_numpy_iterator()) == [0, 1, 2, 3]
        True
        """
        size = whole("shuffle", "buffer_size", buffer_size, 1)
        seed, entropy = chosen_seed("shuffle", seed)
        reshuffle = reshuffle_each_iteration is not False
        return self._then(Shuffle(inputs=(self._node,), buffer_size=size, seed=seed, reshuffle=reshuffle, entropy=entropy))

    def repeat(self, count: int | None = None, name: str | None = None) -> "Dataset":
        """Make ``count`` passes one after the other, or endlessly many if it is None or -1.

        >>> list(Dataset.range(2).repeat(2).batch(4))
        [array([0, 1, 0, 1])]
        """
        times = INFINITE if count is None else whole("repeat", "count", count, -1)
        return self._then(Repeat(inputs=(self._node,), count=times))

    def take(self, count: int, name: str | None = None) -> "Dataset":
        """Return the first ``count`` elements, or all if it is -1.

        >>> list(Dataset.range(10).take(2))
        [np.int64(0), np.int64(1)]
        """
        number = whole("take", "count", count, -1)
        return self if number == -1 else self._then(Take(inputs=(self._node,), count=number))

    def skip(self, count: int, name: str | None = None) -> "Dataset":
        """Return all but the first ``count`` elements, or none if it is -1.

        >>> list(Dataset.range(4).skip(2))
        [np.int64(2), np.int64(3)]
        """
        number = whole("skip", "count", count, -1)
        return self.take(0) if number == -1 else self._then(Skip(inputs=(self._node,), count=number))

    def shard(self, num_shards: int, index: int, name: str | None = None) -> "Dataset":
        """Return every ``num_shards``-th element, starting with number ``index``.

        Raises:
            ArgumentError: If there are fewer shards than one, or the index is not that of a shard.

        >>> list(Dataset.range(7).shard(3, 1))
        [np.int64(1), np.int64(4)]
        """
        number = whole("shard", "num_shards", num_shards, 1)
        which = whole("shard", "index", index, 0)
        if which >= number:
            raise ArgumentError(f"shard: index must be from 0 to {number - 1} with {number} shards. Received: {which}.")
        return self._then(Shard(inputs=(self._node,), num_shards=number, index=which))

    def enumerate(self, start: int = 0, name: str | None = None) -> "Dataset":
        """Return pairs ``(number, element)``, with int64 numbers.

        >>> list(Dataset.from_tensor_slices(["a", "b"]).enumerate())
        [(np.int64(0), 'a'), (np.int64(1), 'b')]
        """
        return self._then(Enumerate(inputs=(self._node,), start=whole("enumerate", "start", start)))

    def concatenate(self, dataset: "Dataset", name: str | None = None) -> "Dataset":
        """Return the elements of this dataset, then those of another.

        Raises:
            DatasetError: If the datasets differ in structure or dtype.

        >>> list(Dataset.range(2).concatenate(Dataset.range(8, 9)))
        [np.int64(0), np.int64(1), np.int64(8)]
        """
        _check_dataset("concatenate", dataset)
        node = Concatenate(inputs=(self._node, dataset.node))
        _ = node.spec  # raises if the two do not fit
        return Dataset(node, _merged_options([self, dataset]))

    # Memory and time

    def cache(self, filename: str | os.PathLike[str] = "", name: str | None = None) -> "Dataset":
        """Keep the elements of the first complete pass, and replay them in every later one.

        Without a name they are kept in memory. With one they are kept in that file, which is written under another name
        and renamed when complete. Later runs of the same pipeline replay the file without calling anything. A file is
        refused when it is read if it is damaged, or was written by another pipeline, or from other arrays, files or
        functions (docs/input-files.md says what is compared).

        >>> calls = []
        >>> dataset = Dataset.range(2).map(lambda x: (calls.append(1), x)[1]).cache().repeat(3)
        >>> len(list(dataset)), len(calls)
        (6, 2)
        """
        if not (path := os.fspath(filename)):
            return self._then(Cache(inputs=(self._node,)))
        name = local_path("cache: filename", filename).name
        return self._then(Cache(inputs=(self._node,), store=FileStore(path, self._node), name=name))

    def prefetch(self, buffer_size: int | None, name: str | None = None) -> "Dataset":
        """Read up to ``buffer_size`` elements ahead on a thread; -1 (AUTOTUNE) and None read 2 ahead.

        Distributed datasets read ahead anyway, so they need no `prefetch` at the end.

        >>> list(Dataset.range(4).batch(2).prefetch(2))
        [array([0, 1]), array([2, 3])]
        """
        size = AUTOTUNE if buffer_size is None else whole("prefetch", "buffer_size", buffer_size, -1)
        return self if size == 0 else self._then(Prefetch(inputs=(self._node,), buffer_size=size))

    # Facts and options

    @property
    def element_spec(self) -> Any:
        """The structure of the elements' specs; None if there are no elements. Functions of `map` are called to find it out.

        >>> Dataset.range(5).batch(2).element_spec
        TensorSpec(shape=(None,), dtype=int64)
        """
        return self._node.spec

    def cardinality(self) -> int:
        """Return the number of elements, or -1 (`INFINITE`) or -2 (`UNKNOWN`).

        >>> Dataset.range(5).batch(2).cardinality(), Dataset.range(5).repeat().cardinality()
        (3, -1)
        """
        return self._node.cardinality

    def explain(
        self,
        num_workers: int = 1,
        replicas_per_worker: int = 1,
        policy: AutoShardPolicy | None = None,
        *,
        profile: bool = False,
    ) -> InputPlan:
        """Say who would read what if this dataset of global batches were distributed. The result can be printed.

        Args:
            num_workers: The number of workers that share the dataset.
            replicas_per_worker: The number of replicas on each worker.
            policy: The policy to use; None means that of the options.
            profile: Whether to read up to 100 elements in this process, and to say which stage binds. Functions of the dataset
                are called for that. The orders of later iterations stay as they are, and `cache` keeps nothing of it.

        Raises:
            ArgumentError: If a number is below 1.
            DatasetError: If the dataset cannot be shared by this policy, or it is to be profiled and another library makes it.

        >>> print(Dataset.range(10).batch(4).explain(num_workers=2))
        Input plan: 2 workers, 2 replicas
          policy: DATA, because the dataset reads no files
          global batches: of 4, the last one of 2
          worker 0: replica 0; reads everything; rows per batch: 2; of the last: 1
          worker 1: replica 1; reads everything; rows per batch: 2; of the last: 1
        """
        options = self.options()
        if policy is not None:
            options.experimental_distribute.auto_shard_policy = policy
        plan = input_plan(
            self._facts,
            options.experimental_distribute.auto_shard_policy,
            whole("explain", "num_workers", num_workers, 1),
            whole("explain", "replicas_per_worker", replicas_per_worker, 1),
        )
        return dataclasses.replace(plan, profile=profiled(self._node, _PROFILED)) if profile else plan

    def with_options(self, options: Options, name: str | None = None) -> "Dataset":
        """Return the same dataset with these options.

        Raises:
            ArgumentTypeError: If it is not given an `Options`.
        """
        if not isinstance(options, Options):
            raise ArgumentTypeError(f"with_options takes a replicant.data.Options. Received: {type(options).__name__}.")
        return Dataset(self._node, copy.deepcopy(options))

    def options(self) -> Options:
        """Return a copy of the options."""
        return copy.deepcopy(self._options)

    # Iteration

    def __iter__(self) -> DatasetIterator:
        return DatasetIterator(self._node)

    def as_numpy_iterator(self) -> DatasetIterator:
        """Return ``iter(dataset)``, whose elements are NumPy already."""
        return iter(self)

    def __len__(self) -> int:
        size = self.cardinality()
        if size < 0:
            what = "infinite" if size == INFINITE else "unknown until it has been read"
            raise TypeError(f"The dataset's length is {what}. Use `cardinality()`, which says so without an error.")
        return size

    def __bool__(self) -> bool:
        return True  # not len() > 0, which may be unknown

    def __repr__(self) -> str:
        return f"<Dataset: {describe(self._node)}>"


def facts_of_pipeline(dataset: Dataset) -> PipelineFacts:
    """Return what is known of a dataset's graph."""
    return dataset._facts  # noqa: SLF001 - for this package: users have `explain`


def _check_dataset(method: str, value: Any) -> None:
    if not isinstance(value, Dataset):
        raise ArgumentTypeError(f"{method} takes datasets. Received: {type(value).__name__}.")


def _itself(dataset: Dataset) -> Dataset:
    return dataset


def _datasets(method: str, values: Any) -> list[Dataset]:
    """The datasets of a list, which must not be empty."""
    if isinstance(values, Dataset):
        raise ArgumentTypeError(f"{method} takes a list of datasets. Received one dataset. Write it in brackets.")
    given = list(values)
    for each in given:
        _check_dataset(method, each)
    if not given:
        raise ArgumentError(f"{method}: needs at least one dataset.")
    return given


def _weights_of(weights: Any, count: int) -> tuple[tuple[float, ...] | Curriculum, tuple[int, ...]]:
    """The weights or what gives them, and the numbers of the datasets that can be drawn."""
    if is_table(weights):
        return weight_table(weights, count), tuple(range(count))
    if callable(weights):
        return WeightFunction(weights, count), tuple(range(count))
    return _weighted(weights, count)


def _weighted(weights: Any, count: int) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """The weights that are not 0, and the numbers of their datasets."""
    given = np.ones(count) if weights is None else np.asarray(weights, np.float64)
    if given.shape != (count,):
        raise ArgumentError(
            f"sample_from_datasets: weights must hold one number for each of the {count} datasets. Received: {weights!r}."
        )
    if not np.all(given >= 0) or not np.all(np.isfinite(given)):
        raise ArgumentError(f"sample_from_datasets: weights must be at least 0. Received: {weights!r}.")
    numbers = tuple(number for number, weight in enumerate(given.tolist()) if weight)
    return tuple(given[[*numbers]].tolist()), numbers


def _merged_options(datasets: list[Dataset]) -> Options:
    """The options of the first dataset that sets any."""
    for dataset in datasets:
        options = dataset.options()
        if options.experimental_distribute.auto_shard_policy is not AutoShardPolicy.AUTO:
            return options
    return datasets[0].options()
