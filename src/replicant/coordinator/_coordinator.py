"""ClusterCoordinator: schedules closures on the workers of a ParameterServerStrategy."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..errors import ArgumentError, ArgumentTypeError
from ._remote_value import RemoteValue
from ._strategy import ParameterServerStrategy
from .scheduling._dispatch import Dispatcher
from .scheduling._rounds import Rounds
from .workers._datasets import PerWorkerDataset, PerWorkerValues, dataset_maker


class ClusterCoordinator:
    """Schedules closures on the workers of a ParameterServerStrategy.

    Each strategy has one coordinator: constructing it again returns the same object.

    Args:
        strategy: a ParameterServerStrategy.
        max_staleness: int >= 0 or None. How many other closures may change the variables between a closure's reads and its own
            changes; workers wait rather than exceed it. 0 runs one closure at a time, None sets no bound.
        synchronous: whether to combine the changes of several closures, one per worker, into one update. All of them read the
            same values, their gradients are summed, and the optimizer is applied once. So divide each loss by the size of the
            global batch; ``fit`` divides by the actual number of rows. `join` applies what is left over at the end.
        backup_workers: int from 0 to the number of workers - 1. How many slow workers a synchronous coordinator does not wait
            for. With n workers, the first ``n - backup_workers`` gradients make an update. Later ones are dropped and counted in
            ``stats()["dropped_closures"]``.

    Raises:
        ArgumentTypeError: if `strategy` is not a ParameterServerStrategy.
        ArgumentError: if an argument is out of its range, if `backup_workers` is set without `synchronous`, if `max_staleness`
            is combined with `synchronous`, or if the strategy's coordinator was made with other arguments.

    Semantics: tf.distribute.coordinator.ClusterCoordinator; tf.compat.v1.train.SyncReplicasOptimizer for synchronous updates.

    >>> import replicant
    >>> from replicant.coordinator import ClusterCoordinator
    >>> strategy = replicant.ParameterServerStrategy(transport="threads")
    >>> coordinator = ClusterCoordinator(strategy)
    >>> with strategy.scope():
    ...     total = replicant.Variable(0.0)
    >>> def step(x):
    ...     total.assign_add(x)
    ...     return 2 * x
    >>> results = [coordinator.schedule(step, args=(x,)) for x in (1.0, 2.0, 3.0)]
    >>> coordinator.join()
    >>> print(total.numpy(), coordinator.fetch(results))
    6.0 [2.0, 4.0, 6.0]
    >>> strategy.close()
    """

    def __new__(  # noqa: PYI034 - returns the strategy's only coordinator
        cls,
        strategy: ParameterServerStrategy,
        *,
        max_staleness: int | None = None,
        synchronous: bool = False,
        backup_workers: int = 0,
    ) -> "ClusterCoordinator":
        """The strategy's coordinator."""
        if not isinstance(strategy, ParameterServerStrategy):
            raise ArgumentTypeError(
                f"ClusterCoordinator schedules closures on the workers of a ParameterServerStrategy; got {strategy!r}. Pass a "
                "ParameterServerStrategy."
            )
        mode = _Mode(max_staleness, synchronous, backup_workers)
        mode.check(strategy.shape.num_workers)
        found: ClusterCoordinator | None = strategy._coordinator  # noqa: SLF001 - where the strategy keeps its only coordinator
        if found is None:
            found = strategy._coordinator = object.__new__(cls)  # noqa: SLF001 - likewise
            found._strategy, found._mode = strategy, mode
            rounds = Rounds(found.functions_per_update, backup_workers) if synchronous else None
            found._dispatcher = Dispatcher(strategy.cluster, strategy.relay, strategy.site.prepare, max_staleness, rounds)
        else:
            found._mode.check_same(mode)
        return found

    _strategy: ParameterServerStrategy
    _mode: "_Mode"
    _dispatcher: Dispatcher

    @property
    def strategy(self) -> ParameterServerStrategy:
        """The strategy on whose workers this coordinator schedules closures."""
        return self._strategy

    @property
    def functions_per_update(self) -> int:
        """How many closures' gradients are summed into one update: 1, unless the coordinator is synchronous."""
        return self._strategy.shape.num_workers - self._mode.backup_workers if self._mode.synchronous else 1

    def schedule(self, fn: Callable[..., Any], args: Any = (), kwargs: dict[str, Any] | None = None) -> RemoteValue:
        """Schedule ``fn(*args, **kwargs)`` on a worker, and return at once.

        If a worker is lost, another one runs the closure again; its changes to variables are applied once.

        Args:
            fn: a function, best a ``replicant.function``. Each worker gets it once, with everything it closes over, and does not
                see what you change afterwards, except in the strategy's variables.
            args: tuple or list of positional arguments: arrays, numbers, nested structures of them, iterators of per-worker
                datasets, RemoteValues.
            kwargs: dict of keyword arguments, of the same kinds.

        Returns:
            A RemoteValue for the result of `fn`: arrays, numbers, None, or nested structures of them.

        Raises:
            ArgumentTypeError: if `fn` is not callable, or `args` is not a tuple or list.
            UnserializableError: if `fn` or an argument cannot be sent to a worker.
            Exception: whatever a closure raised before. It is raised once, and nothing is scheduled by that call.
        """
        if not callable(fn):
            raise ArgumentTypeError(f"schedule: fn must be a function; got {fn!r}. Write schedule(step), not schedule(step()).")
        if not isinstance(args, tuple | list):
            raise ArgumentTypeError(
                f"schedule: args must be a tuple or list of positional arguments, got {type(args).__name__}. Write args=(value,)."
            )
        return self._dispatcher.schedule(fn, tuple(args), dict(kwargs or {}))

    def join(self, timeout: float | None = None) -> None:
        """Wait until all scheduled closures have ended.

        Args:
            timeout: the most seconds to wait; None sets no limit.

        Raises:
            LostProcessError: if closures are still unfinished after `timeout` seconds, or the cluster is lost or closed.
            Exception: whatever a closure raised, once. The closures that had not started were cancelled.
        """
        self._dispatcher.join(timeout)

    def done(self) -> bool:
        """Whether all scheduled closures have ended.

        Raises:
            Exception: whatever a closure raised, once.
        """
        return self._dispatcher.done()

    def fetch(self, val: Any) -> Any:
        """Wait for RemoteValues and return their values.

        Args:
            val: a RemoteValue, or a nested structure with RemoteValues in it.

        Returns:
            `val` with each RemoteValue replaced by its value. Arrays are NumPy arrays.

        Raises:
            Exception: whatever one of the closures raised; see ``RemoteValue.fetch``.
        """

        def leaf(x: Any) -> Any:
            if isinstance(x, RemoteValue):
                return x.fetch()
            return np.asarray(x) if isinstance(x, jax.Array) else x

        return jax.tree.map(leaf, val, is_leaf=lambda x: isinstance(x, RemoteValue))

    def create_per_worker_dataset(self, dataset_fn: Any) -> PerWorkerDataset:
        """Make a dataset of which each worker has its own copy.

        Args:
            dataset_fn: a ``replicant.data.Dataset``, or a function that makes one. If the function takes an argument, it gets an
                InputContext of one pipeline. Nothing is sharded: shuffle with different seeds, or without a seed, to give workers
                different elements.

        Returns:
            A PerWorkerDataset. Pass its ``iter()`` to closures, which call ``next`` on it; at the end that raises
            OutOfRangeError. A worker that replaces a lost one starts its copy from the beginning.

        Raises:
            ArgumentTypeError: if `dataset_fn` is neither a dataset nor a function.
        """
        return PerWorkerDataset(dataset_maker(dataset_fn), getattr(dataset_fn, "element_spec", None))

    def create_per_worker_resource(self, fn: Callable[[], Any]) -> PerWorkerValues:
        """Make a value on each worker, to pass to closures.

        Args:
            fn: a function without arguments. Each worker calls it once, when it first needs the value.

        Returns:
            A PerWorkerValues. In a closure, it is what `fn` returned on that worker.

        Raises:
            ArgumentTypeError: if `fn` is not callable.
        """
        if not callable(fn):
            raise ArgumentTypeError(f"create_per_worker_resource takes a function; got {fn!r}. Pass a function that makes it.")
        return PerWorkerValues(fn)

    def stats(self) -> dict[str, Any]:
        """What the cluster has done so far.

        Returns:
            A dict: closures by worker and per second, bytes moved per closure, updates by server, processes replaced. Some keys:

            * ``closures_per_second_by_worker``, ``bytes_per_closure``: since the coordinator was made.
            * ``staleness``: how many pushes arrived after the server had made 0, 1, 2, ... updates since their values were read.
            * ``dropped_closures``: closures of a synchronous coordinator whose changes came too late.
            * ``mixed_closures``: closures whose changes come partly from an attempt whose worker was lost and partly from the
              attempt that repeated it, which may have drawn another batch.
        """
        return self._dispatcher.stats.summary(self._strategy.cluster)


@dataclasses.dataclass(frozen=True)
class _Mode:
    """How a coordinator lets closures overlap."""

    max_staleness: int | None = None
    synchronous: bool = False
    backup_workers: int = 0

    def check(self, num_workers: int) -> None:
        bound, backups = self.max_staleness, self.backup_workers
        if bound is not None and not _is_count(bound):
            raise ArgumentError(f"max_staleness must be a whole number >= 0, or None for no bound. Received: {bound!r}.")
        if not isinstance(self.synchronous, bool):
            raise ArgumentError(f"synchronous must be True or False. Received: {self.synchronous!r}.")
        if not _is_count(backups) or backups >= num_workers:
            raise ArgumentError(
                f"backup_workers must be a whole number from 0 to {num_workers - 1}: there are {num_workers} workers, and an "
                f"update needs at least one of them. Received: {backups!r}."
            )
        if backups and not self.synchronous:
            raise ArgumentError(
                f"backup_workers={backups} needs synchronous=True: otherwise no worker waits for another, so none needs a backup."
            )
        if bound is not None and self.synchronous:
            raise ArgumentError(
                f"max_staleness={bound} cannot be combined with synchronous=True: synchronous updates are never stale. Remove "
                "max_staleness."
            )

    def check_same(self, other: "_Mode") -> None:
        for field in dataclasses.fields(self):
            mine, asked = getattr(self, field.name), getattr(other, field.name)
            if asked not in (field.default, mine):
                raise ArgumentError(
                    f"This strategy's ClusterCoordinator was made with {field.name}={mine!r}, which cannot change to {asked!r}. "
                    "Make another strategy, or leave the argument out."
                )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
