"""Distributed datasets: each step's share of every replica, placed on their devices ahead of time.

This module gets a `Topology` and functions that place batches, but knows nothing about strategies.
"""

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

from ...errors import ArgumentError, ArgumentTypeError, DatasetError
from ...replicas._topology import Topology
from .._contexts import InputContext
from .._dataset import facts_of_pipeline
from .._options import AutoShardPolicy, InputOptions, InputReplicationMode
from ..adapters import as_dataset
from ..graph._graph import Node
from ..sharding._autoshard import Sharding, divided
from ..sharding._facts import PipelineFacts
from ..sharding._plan import InputPlan, input_plan
from ..transforms.order._shuffle import Drawing
from ._agreement import ExchangeFn
from ._batch_shares import BatchShares
from ._direct import Pace, PlaceAtOnce, only_moves_memory
from ._distributed_iterator import MIN_AHEAD, DistributedIterator
from ._element_shares import ElementShares, PlaceEach
from ._same_data import check_same, facts_of
from ._shares import Place, Shares, WorkersPlace

_logger = logging.getLogger("replicant.data")


class DistributedDataset:
    """A dataset whose elements, global batches, are split over the replicas.

    Args:
        dataset: A `Dataset` that yields global batches, or an object with which another library yields batches (see
            docs/input.md). Every component has the batch as its leading dimension.
        topology: The workers and replicas.
        place: Makes what the user sees from the rows of this worker's replicas.
        options: Options of the distribution.
        exchange: Sends this worker's value to every worker and returns the values of all. The workers use it to compare
            their datasets, to begin every pass at the chief's position, and to agree on the last step.
        workers: Places batches, instead of `place`, if devices of several workers take part.
        at_once: Places batches that are quickly made, if they may be placed when they are asked for. None has a thread read ahead.

    Raises:
        ArgumentTypeError: If the dataset does not yield batches.
        ArgumentError: If an option only works for input functions.
        DatasetError: If a component is a scalar and there are several replicas, or the workers cannot share the data as asked.
        ElementError: If the components have different batch sizes.

    >>> from replicant.data import Dataset
    >>> def place(rows, sizes):
    ...     return [rows[sum(sizes[:i]) : sum(sizes[: i + 1])].tolist() for i in range(len(sizes))]
    >>> list(DistributedDataset(Dataset.range(7).batch(4), Topology(replicas_per_worker=2), place))
    [[[0, 1], [2, 3]], [[4, 5], [6]]]
    """

    def __init__(
        self,
        dataset: Any,
        topology: Topology,
        place: Place,
        options: InputOptions | None = None,
        exchange: ExchangeFn | None = None,
        *,
        workers: WorkersPlace | None = None,
        at_once: PlaceAtOnce | None = None,
    ) -> None:
        options = options or InputOptions()
        if options.experimental_replication_mode is not InputReplicationMode.PER_WORKER:
            raise ArgumentError(
                "InputReplicationMode.PER_REPLICA only works with `distribute_datasets_from_function`. "
                "Leave experimental_replication_mode at PER_WORKER."
            )
        if isinstance(dataset, DistributedDataset):
            raise ArgumentTypeError("This dataset is already distributed. Loop over it, or pass the dataset that it was made from.")
        dataset = as_dataset(dataset)
        policy = dataset.options().experimental_distribute.auto_shard_policy
        facts = facts_of_pipeline(dataset)
        node, sharding = _sharded(facts, topology, policy, exchange)
        self._explain: Callable[[], InputPlan] = lambda: input_plan(
            facts, policy, topology.num_workers, topology.replicas_per_worker
        )
        by_files = sharding.policy is AutoShardPolicy.FILE
        self._shares: Shares = BatchShares(node, topology, place, sharding.shared, facts, workers, by_files)
        self._cardinality = dataset.cardinality() if self._shares.ends_everywhere else self._shares.cardinality
        self._options, self._exchange = options, exchange
        self._pace = _pace(self._shares, options, at_once)

    @classmethod
    def from_function(
        cls,
        dataset_fn: Callable[[InputContext], Any],
        topology: Topology,
        place: PlaceEach,
        options: InputOptions | None = None,
        exchange: ExchangeFn | None = None,
        *,
        workers: WorkersPlace | None = None,
        at_once: PlaceAtOnce | None = None,
    ) -> "DistributedDataset":
        """Distribute the datasets that an input function makes: each replica in turn gets the next element, unchanged.

        Args:
            dataset_fn: The function, which is called once for this worker, or once per replica of it if the options say so.
            topology: The workers and replicas.
            place: Makes what the user sees from the elements of this worker's replicas.
            options: Options of the distribution.
            exchange: The exchange between workers, as for the class.
            workers: Places batches on several workers, as for the class.
            at_once: Places batches when they are asked for, as for the class.

        Raises:
            ArgumentTypeError: If ``dataset_fn`` is not a function, or does not return a dataset.
        """
        if not callable(dataset_fn):
            raise ArgumentTypeError(
                "distribute_datasets_from_function takes a function that makes a dataset from an InputContext. "
                f"Received: {dataset_fn!r}. To distribute a dataset, use `experimental_distribute_dataset`."
            )
        options = options or InputOptions()
        if options.experimental_replication_mode is InputReplicationMode.PER_REPLICA:
            contexts = [InputContext(topology.num_replicas, i, topology.num_replicas) for i in topology.local_replica_ids]
        else:
            contexts = [InputContext(topology.num_workers, topology.worker_index, topology.num_replicas)]
        datasets = [as_dataset(dataset_fn(context)) for context in contexts]
        new = object.__new__(cls)
        new._shares = ElementShares(tuple(dataset.node for dataset in datasets), topology, place, workers)
        new._explain = _no_plan
        new._cardinality = new._shares.cardinality
        new._options, new._exchange = options, exchange
        new._pace = _pace(new._shares, options, at_once)
        if not new._shares.ends_everywhere:
            _check_exchange(exchange, topology)
        return new

    def __iter__(self) -> DistributedIterator:
        return DistributedIterator(self._shares, self._options, self._exchange, self._pace)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The graphs that this worker reads."""
        return self._shares.nodes

    @property
    def element_spec(self) -> Any:
        """A structure of `PerReplicaSpec`, or of `TensorSpec` if there is one replica."""
        return self._shares.spec

    def cardinality(self) -> int:
        """Return the number of steps of one pass of this worker: -1 if it is infinite, -2 if it is unknown."""
        return self._cardinality

    def explain(self) -> InputPlan:
        """Return the plan of what each worker reads, and what each replica gets of it.

        Raises:
            DatasetError: If an input function made the dataset, because only that function knows.
        """
        return self._explain()


def _pace(shares: Shares, options: InputOptions, at_once: PlaceAtOnce | None) -> Pace | None:
    """Return what decides whether a thread reads ahead, or None if it must in any case."""
    wanted = not options.fetch or options.experimental_per_replica_buffer_size > MIN_AHEAD
    if at_once is None or wanted or shares.topology.num_workers > 1 or not only_moves_memory(shares.nodes):
        return None
    return Pace(at_once)


def _sharded(
    facts: PipelineFacts, topology: Topology, policy: AutoShardPolicy, exchange: ExchangeFn | None
) -> tuple[Node, Sharding]:
    """What this worker reads of a dataset. The workers compare their datasets where they have to agree."""
    num_workers, worker = topology.num_workers, topology.worker_index
    if num_workers > 1 and exchange is not None:
        check_same(exchange, lambda: facts_of(facts, policy))
    own, sharding = divided(facts, num_workers, policy).of_worker(worker)
    if num_workers == 1:
        return own, sharding
    if policy is AutoShardPolicy.AUTO and sharding.policy is AutoShardPolicy.DATA and worker == 0:
        _inform(
            f"AutoShardPolicy.AUTO: {num_workers} workers share this dataset by DATA, because {sharding.reason}. Every worker "
            "reads everything and keeps its share of each batch."
        )
    if sharding.policy is not AutoShardPolicy.DATA:
        _check_exchange(exchange, topology)
    elif exchange is None and (drawing := next((each for each in facts.of(Drawing) if each.seed is None), None)):
        name = drawing.label.partition("(")[0]
        first = {"shuffle": "buffer_size, ", "global_shuffle": ""}.get(name, "..., ")
        raise DatasetError(
            f"The {num_workers} workers would shuffle this dataset in different orders, because `{name}` has no seed: some "
            f"elements would be seen twice, others never. Give it one: `{name}({first}seed=1)`."
        )
    return own, sharding


def _check_exchange(exchange: ExchangeFn | None, topology: Topology) -> None:
    if exchange is None:
        raise DatasetError(
            f"The {topology.num_workers} workers may have different numbers of steps with this dataset, and have no way to "
            "agree on the last one. Distribute the dataset with a strategy for several workers."
        )


def _no_plan() -> InputPlan:
    raise DatasetError(
        "An input function made this dataset, and only that function knows who reads what. `explain()` is for datasets that "
        "`experimental_distribute_dataset` shares."
    )


@functools.cache
def _inform(message: str) -> None:
    """Show a line once: through `logging`, or on standard error if the program has not configured logging."""
    if _logger.hasHandlers():
        _logger.info(message)
    else:
        print(message, file=sys.stderr)  # noqa: T201 - INFO is invisible before logging is configured
