"""Replicant's datasets as input of ``fit``, ``evaluate`` and ``predict``."""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import Any, Self

from ...errors import ArgumentError, ArgumentTypeError, DatasetError
from ...input._dataset import Dataset
from ...input._shapes_only import planned
from ...input.distributed._distributed import DistributedDataset
from ...input.files.columns._huggingface import is_huggingface
from ...input.graph._graph import Node
from ...replicas._context import planning
from .. import _internals
from ._array_batches import Several, rows_of, several
from ._batch_dtypes import in_dtypes_of_jax, own_batch, usable_data
from ._batches import MAX_AHEAD, Batches
from ._check_batches import check_batch, check_labels, no_suspicion
from ._worker_datasets import shared

_OPTIONS = ("batch_size", "steps_per_epoch", "shuffle", "class_weight")  # of Keras's function, in its order


_only_builds: contextvars.ContextVar[Callable[[], bool]] = contextvars.ContextVar("replicant_only_builds", default=lambda: False)


@contextlib.contextmanager
def building(is_building: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Leave the batches that Keras reads to build a model for the next pass.

    Args:
        is_building: Returns whether a pass that begins now is one to build the model.
    """
    token = _only_builds.set(is_building)
    try:
        yield
    finally:
        _only_builds.reset(token)


def predict(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Predict. Keras reads a batch first if a layer has not been built."""
    with building(lambda: not all(layer.built for layer in model._flatten_layers())):
        return original(model, *args, **kwargs)


class DatasetAdapter(_internals.DataAdapter):
    """Feeds a Replicant dataset, distributed or not, to Keras as global batches."""

    def __init__(self, dataset: Dataset | DistributedDataset, class_weight: dict[int, float] | None = None):
        self._dataset = dataset
        self._class_weight = class_weight
        self.batches: Batches | None = None  # of the last pass
        self._num_checked = 0

    def get_numpy_iterator(self) -> Batches:
        """Begin a pass that yields tuples (x,), (x, y) or (x, y, sample_weight)."""
        if self.batches is not None and self.batches.only_looks:
            self.batches.close()
        self.batches = Batches(
            self._dataset, self._finished, lambda: _no_batch(repr(self._dataset)), only_looks=_only_builds.get()()
        )
        return self.batches

    get_jax_iterator = get_numpy_iterator

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The root nodes of the dataset's graph."""
        return self._dataset.nodes if isinstance(self._dataset, DistributedDataset) else (self._dataset.node,)

    def _finished(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        """Check the first batch, and add the weights of the labels' classes to a batch."""
        if self._num_checked <= MAX_AHEAD and isinstance(self._dataset, Dataset):
            if self._num_checked == 0:
                check_batch(batch, self._dataset.node, repr(self._dataset))
            elif self._num_checked == MAX_AHEAD:
                no_suspicion()
            self._num_checked += 1
        if self._class_weight is None:
            return batch
        if len(batch) != 2 or not hasattr(batch[1], "shape"):
            raise ArgumentError(
                f"`class_weight` needs a dataset that yields (x, y) with one array of labels, but this one yields {len(batch)} "
                "component(s). Let the dataset yield (x, y, sample_weight) instead."
            )
        return *batch, _internals.class_weight_to_sample_weights(batch[1], self._class_weight)

    @property
    def num_batches(self) -> int | None:
        """The number of batches of one epoch; None if it is infinite or unknown."""
        cardinality = self._dataset.cardinality()
        return cardinality if cardinality >= 0 else None

    @property
    def batch_size(self) -> int | None:
        """None: Keras reads it, but nothing depends on it."""
        return None

    @property
    def has_partial_batch(self) -> bool | None:
        """None: Keras reads it, but nothing depends on it."""
        return None

    @property
    def partial_batch_size(self) -> int | None:
        """None: Keras reads it, but nothing depends on it."""
        return None


def adapt(original: Callable[..., Any], x: Any, y: Any = None, sample_weight: Any = None, *args: Any, **options: Any) -> Any:
    """Choose an adapter as Keras does, but for Replicant's datasets too."""
    options |= dict(zip(_OPTIONS, args, strict=False))
    if isinstance(x, _internals.DataAdapter):
        return x
    if is_huggingface(x):
        raise ArgumentTypeError(
            f"A Hugging Face {type(x).__name__} has rows, not the (x, y) that Keras needs. Make them of its columns: "
            "`Dataset.from_huggingface(dataset).batch(64).map(lambda row: (row['x'], row['y']))`."
        )
    if not isinstance(x, Dataset | DistributedDataset):
        x, y, sample_weight = usable_data(x, "x"), usable_data(y, "y"), usable_data(sample_weight, "sample_weight")
        check_labels(y)
        return _never_empty(original(_owned(x) if isinstance(x, GeneratorType) else x, y, sample_weight, **options), x)
    for name, value in (("y", y), ("sample_weight", sample_weight)):
        if value is not None:
            raise ArgumentError(
                f"`{name}` was given together with a dataset. Let the dataset yield (x, y) or (x, y, sample_weight) instead."
            )
    data = shared(x)
    if isinstance(data, Dataset) and (plan := planning()) is not None:
        data = planned(data, plan)
    return DatasetAdapter(data, options.get("class_weight"))


def _owned(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield copies of batches, of which Keras reads two before the first is used."""
    yield from map(own_batch, batches)


def _never_empty(adapter: Any, x: Any) -> Any:
    """Make Keras's adapter raise if it never yields a batch: Keras's loops would fail later, with an obscure error."""
    begin = functools.partial(rows_of, adapter, adapter.get_jax_iterator)
    shape = getattr(x, "shape", None)
    what = f"The {type(x).__name__}{'' if shape is None else f' of shape {tuple(shape)}'}"
    seen: list[int] = []
    adapter.get_jax_iterator = lambda: _Pass(begin, seen, what)
    return adapter


class _Pass:
    """One pass over what Keras reads. It begins when the first batch is asked for.

    Args:
        begin: Begins a pass over the batches.
        seen: Gets an item once any pass yields a batch. A generator may be exhausted by an earlier pass, and Keras warns of that.
        what: Names the data in the message.
    """

    def __init__(self, begin: Callable[[], Iterator[Any]], seen: list[int], what: str):
        self._begin, self._seen, self._what = begin, seen, what
        self._batches: Iterator[Any] | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        for batch in self.several(1):
            return batch
        raise StopIteration

    def several(self, num: int) -> list[Any]:
        """Return the next `num` batches, as `_array_batches.several` does."""
        if self._batches is None:
            self._batches = iter(self._begin())
        found = [
            batch.map(in_dtypes_of_jax) if isinstance(batch, Several) else in_dtypes_of_jax(batch)
            for batch in several(self._batches, num)
        ]
        if found and not self._seen:
            self._seen.append(len(found))
        if not self._seen:
            raise _no_batch(self._what)
        return found


def _no_batch(what: str) -> DatasetError:
    return DatasetError(
        f"{what} yields no batch, so there is nothing to train on, evaluate or predict. Check its source, and filter, take, skip "
        "and batch(..., drop_remainder=True), which can leave nothing."
    )
