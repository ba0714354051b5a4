"""Per-worker datasets and values: made by each worker for itself, from one function."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from ...errors import ArgumentTypeError, ContextError, OutOfRangeError
from ...input._contexts import InputContext
from . import _pickling


class PerWorkerValues(_pickling.Parcel):
    """A value that every worker made for itself; as an argument of a scheduled function it is the worker's own.

    Made by ``ClusterCoordinator.create_per_worker_resource``.
    """


class PerWorkerDataset:
    """A dataset of which every worker has a copy. Made by ``ClusterCoordinator.create_per_worker_dataset``.

    ``iter(dataset)`` gives an iterator to pass to scheduled functions, which call ``next`` on it. Iterating it here raises
    ContextError.
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
            "A per-worker iterator has its elements on the workers. Pass it to a scheduled function and call next() there: "
            "coordinator.schedule(step, args=(iterator,))."
        )

    def get_next(self) -> Any:
        """Raises ContextError here; on a worker, the next element."""
        return next(self)


class WorkerIterator:
    """A worker's own iterator. ``next`` inside a scheduled function gives its next element."""

    def __init__(self, dataset: Any):
        self._iterator = iter(dataset)

    def __iter__(self) -> "WorkerIterator":
        return self

    def __next__(self) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:
            raise OutOfRangeError("End of this worker's dataset: its iterator has no more elements.") from None

    get_next = __next__


def dataset_maker(dataset_or_fn: Any) -> Callable[[], Any]:
    """A function that makes a worker's dataset."""
    if isinstance(dataset_or_fn, Iterator):
        raise ArgumentTypeError(
            f"create_per_worker_dataset takes a dataset, or a function that makes one; got the iterator {dataset_or_fn!r}, of "
            "which each worker would have only a part."
        )
    if hasattr(dataset_or_fn, "__iter__"):
        return lambda: dataset_or_fn
    if not callable(dataset_or_fn):
        raise ArgumentTypeError(f"create_per_worker_dataset takes a dataset, or a function that makes one; got {dataset_or_fn!r}.")

    parameters = inspect.signature(dataset_or_fn).parameters.values()
    takes_context = any(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    return lambda: dataset_or_fn(InputContext(1, 0, 1)) if takes_context else dataset_or_fn()
