"""Per-worker datasets and values, which each worker makes for itself from one function."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from ...errors import ArgumentTypeError, ContextError, OutOfRangeError
from ...input._contexts import InputContext
from . import _pickling


class PerWorkerValues(_pickling.Parcel):
    """A value that each worker makes for itself. As an argument of a closure, it becomes the worker's own value.

    Made by ``ClusterCoordinator.create_per_worker_resource``.
    """


class PerWorkerDataset:
    """A dataset of which each worker has its own copy. Made by ``ClusterCoordinator.create_per_worker_dataset``.

    Pass ``iter(dataset)`` to closures, which call ``next`` on it. On the coordinator, ``next`` raises ContextError.
    """

    def __init__(self, make: Callable[..., Any], element_spec: Any = None):
        self.make = make
        self.element_spec = element_spec

    def __iter__(self) -> "PerWorkerIterator":
        return PerWorkerIterator(self.make, self.element_spec)


class PerWorkerIterator(PerWorkerValues):
    """The workers' iterators over their copies of a dataset."""

    def __init__(self, make: Callable[[], Any], element_spec: Any = None):
        super().__init__(lambda: WorkerIterator(make()))
        self.element_spec = element_spec

    def __iter__(self) -> "PerWorkerIterator":
        return self

    def __next__(self) -> Any:
        raise ContextError(
            "The elements of a per-worker iterator are on the workers. Pass it to a scheduled function and call next() there: "
            "coordinator.schedule(step, args=(iterator,))."
        )

    def get_next(self) -> Any:
        """Return the next element on a worker; raise ContextError on the coordinator."""
        return next(self)


class WorkerIterator:
    """A worker's own iterator over its copy of a dataset."""

    def __init__(self, dataset: Any):
        self._iterator = iter(dataset)

    def __iter__(self) -> "WorkerIterator":
        return self

    def __next__(self) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:
            raise OutOfRangeError(
                "End of this worker's dataset: its iterator has no more elements. Repeat the dataset, or make a new iterator."
            ) from None

    get_next = __next__


def dataset_maker(dataset_or_fn: Any) -> Callable[[], Any]:
    """Make a function that makes a worker's dataset. Raises ArgumentTypeError for anything but a dataset or a function."""
    if isinstance(dataset_or_fn, Iterator):
        raise ArgumentTypeError(
            f"create_per_worker_dataset takes a dataset, or a function that makes one; got the iterator {dataset_or_fn!r}, of "
            "which each worker would get only a part. Pass the dataset itself."
        )
    if hasattr(dataset_or_fn, "__iter__"):
        return lambda: dataset_or_fn
    if not callable(dataset_or_fn):
        raise ArgumentTypeError(f"create_per_worker_dataset takes a dataset, or a function that makes one; got {dataset_or_fn!r}.")

    parameters = inspect.signature(dataset_or_fn).parameters.values()
    takes_context = any(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    return lambda: dataset_or_fn(InputContext(1, 0, 1)) if takes_context else dataset_or_fn()
