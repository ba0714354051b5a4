"""ClusterCoordinator: schedules functions on the workers of a ParameterServerStrategy."""

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
    """Schedules functions on the workers of a ParameterServerStrategy. One for each strategy: the same object comes back.

    Args:
        strategy: a ParameterServerStrategy.
        max_staleness: how many other functions may change the variables between a function's reads and its own changes; workers
            wait where more would. None: no bound, 0: one function at a time.
        synchronous: whether the changes of several functions, one for each worker, are made together: all have read the same
            values, their gradients are summed, and the optimizer is applied once. So divide each loss by the size of the global
            batch; ``fit`` divides by the rows that there were. Where fewer functions are left, `join` has these applied.
        backup_workers: how many of the workers may be slower than the others without being waited for. In a synchronous
            coordinator of n workers the first ``n - backup_workers`` gradients make an update; those that come too late are
            left out, and counted in ``stats()["dropped_closures"]``.

    Raises ArgumentTypeError for another strategy, ArgumentError for a bound that is no whole number >= 0, for backup workers that
    leave nobody or are not synchronous, and for other arguments than those of the strategy's coordinator.
    Semantics: tf.distribute.coordinator.ClusterCoordinator, and, of synchronous updates,
    tf.compat.v1.train.SyncReplicasOptimizer.

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

    def __new__(  # noqa: PYI034 - it is the one of the strategy
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
                f"ClusterCoordinator takes a ParameterServerStrategy, whose workers it can give functions to; got {strategy!r}."
            )
        mode = _Mode(max_staleness, synchronous, backup_workers)
        mode.check(strategy.shape.num_workers)
        found: ClusterCoordinator | None = strategy._coordinator  # noqa: SLF001 - where the strategy keeps its only one
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
        """The strategy whose workers these are."""
        return self._strategy

    @property
    def functions_per_update(self) -> int:
        """How many functions' gradients are summed into one update: 1, unless the coordinator is synchronous."""
        return self._strategy.shape.num_workers - self._mode.backup_workers if self._mode.synchronous else 1

    def schedule(self, fn: Callable[..., Any], args: Any = (), kwargs: dict[str, Any] | None = None) -> RemoteValue:
        """Have a worker call ``fn(*args, **kwargs)``; returns at once.

        Args:
            fn: a function, best a ``replicant.function``. It travels to each worker once, with everything that it closes over: what
                changes here later, other than variables of the strategy, does not change there.
            args: positional arguments: arrays, numbers, nested structures of them, iterators of per-worker datasets, RemoteValues.
            kwargs: keyword arguments, likewise.

        Returns: a RemoteValue of what `fn` returns: arrays, numbers, None, nested structures of them.

        If a worker is lost the function is called again by another; its changes of variables are applied once. Raises the error of
        a function that failed before, once, and schedules nothing then; UnserializableError for what cannot travel,
        ArgumentTypeError for `fn` that is no function.
        """
        if not callable(fn):
            raise ArgumentTypeError(f"schedule: fn must be a function; got {fn!r}.")
        if not isinstance(args, tuple | list):
            raise ArgumentTypeError(
                f"schedule: args must be a tuple or list of positional arguments, got {type(args).__name__}. Write args=(value,)."
            )
        return self._dispatcher.schedule(fn, tuple(args), dict(kwargs or {}))

    def join(self, timeout: float | None = None) -> None:
        """Wait until all scheduled functions have ended.

        Args:
            timeout: seconds to wait at most; None waits as long as the workers work.

        Raises the error of a function that failed, once (the others were cancelled), LostProcessError after `timeout`.
        """
        self._dispatcher.join(timeout)

    def done(self) -> bool:
        """Whether all scheduled functions have ended. Raises the error of one that failed, once."""
        return self._dispatcher.done()

    def fetch(self, val: Any) -> Any:
        """`val`, a nested structure, with the value of each RemoteValue in it; waits for them. Arrays come as NumPy arrays."""

        def leaf(x: Any) -> Any:
            if isinstance(x, RemoteValue):
                return x.fetch()
            return np.asarray(x) if isinstance(x, jax.Array) else x

        return jax.tree.map(leaf, val, is_leaf=lambda x: isinstance(x, RemoteValue))

    def create_per_worker_dataset(self, dataset_fn: Any) -> PerWorkerDataset:
        """A dataset of which each worker makes its own copy.

        Args:
            dataset_fn: a ``replicant.data.Dataset``, or a function that makes one; if it takes an argument it gets an InputContext
                of one pipeline. Nothing is sharded: shuffle with different seeds, or without, to give workers different elements.

        Returns: a dataset whose ``iter()`` can be passed to scheduled functions, which call ``next`` on it. Past its end that
        raises OutOfRangeError. A worker that takes another's place begins anew.
        """
        return PerWorkerDataset(dataset_maker(dataset_fn), getattr(dataset_fn, "element_spec", None))

    def create_per_worker_resource(self, fn: Callable[[], Any]) -> PerWorkerValues:
        """What `fn` returns on each worker, made there once, to be passed to scheduled functions."""
        if not callable(fn):
            raise ArgumentTypeError(f"create_per_worker_resource takes a function; got {fn!r}.")
        return PerWorkerValues(fn)

    def stats(self) -> dict[str, Any]:
        """What has been done: functions by worker and per second, bytes moved for each, updates by server, processes replaced.

        staleness: how often a push met a server that had made 0, 1, 2, ... updates since its values were read.
        closures_per_second_by_worker, bytes_per_closure: since the coordinator was made. dropped_closures: functions of a
        synchronous coordinator whose changes came too late. mixed_closures: functions of which some changes were made by a call
        whose worker was lost, and some by the one that repeated it, which may have drawn another batch.
        """
        return self._dispatcher.stats.summary(self._strategy.cluster)


@dataclasses.dataclass(frozen=True)
class _Mode:
    """How a coordinator lets functions overlap."""

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
                f"backup_workers must be a whole number from 0 to {num_workers - 1}: there are {num_workers} workers, and one at "
                f"least must be waited for. Received: {backups!r}."
            )
        if backups and not self.synchronous:
            raise ArgumentError(
                f"backup_workers={backups} needs synchronous=True: without it nobody is waited for, so nobody needs a backup."
            )
        if bound is not None and self.synchronous:
            raise ArgumentError(
                f"max_staleness={bound} and synchronous=True cannot go together: synchronous updates are never stale. Leave "
                "max_staleness out."
            )

    def check_same(self, other: "_Mode") -> None:
        for field in dataclasses.fields(self):
            mine, asked = getattr(self, field.name), getattr(other, field.name)
            if asked not in (field.default, mine):
                raise ArgumentError(
                    f"This strategy's ClusterCoordinator was made with {field.name}={mine!r}; it cannot become {asked!r}."
                )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
