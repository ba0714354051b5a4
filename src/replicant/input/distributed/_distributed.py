"""Distributed datasets: each step's share of every replica, placed on their devices ahead of time.

This module gets a `Topology` and functions that place batches, but knows nothing about strategies.
"""

import functools
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import ArgumentError, ArgumentTypeError, DatasetError
from ...replicas._topology import Topology
from ...storage._counts import Counts, counting
from .._contexts import InputContext
from .._iterator import ElementIterator
from .._options import AutoShardPolicy, InputOptions, InputReplicationMode
from ..adapters import as_dataset
from ..graph._background import END, Background, check_process
from ..graph._graph import Node, State
from ..graph._watch import Stage, Stages
from ..sharding._autoshard import Sharding, autoshard, files_of, unseeded_shuffle
from ..sharding._plan import InputPlan, input_plan
from ..transforms.mixtures._epochs import epochs_by_source
from ._agreed_steps import MOST_STEPS, AgreedSteps
from ._agreement import End, ExchangeFn, OpenEnd, agree_on_end, agreed_position
from ._direct import Direct, Pace, PlaceAtOnce, only_moves_memory
from ._handover import handover
from ._same_data import check_same, facts_of
from ._shares import BatchShares, ElementShares, Place, PlaceEach, ShareCursor, Shares, WorkersPlace
from ._stats import InputStats, Meter

_MIN_AHEAD = 2
_SMALL_BYTES = 2 << 20  # batches up to this size may wait in the number of a block's steps

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
        node, sharding = _sharded(dataset.node, topology, policy, exchange)
        self._explain: Callable[[], InputPlan] = lambda: input_plan(
            dataset.node, policy, topology.num_workers, topology.replicas_per_worker
        )
        by_files = sharding.policy is AutoShardPolicy.FILE
        self._shares: Shares = BatchShares(node, topology, place, sharding.shared, dataset.node, workers, by_files)
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

    def __iter__(self) -> "DistributedIterator":
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


class DistributedIterator(ElementIterator):
    """One pass over a distributed dataset; a thread keeps the next batches on the devices, unless they are made at once."""

    def __init__(self, shares: Shares, options: InputOptions, exchange: ExchangeFn | None, pace: Pace | None = None) -> None:
        super().__init__(shares.description)
        self._whole_pass, self._pace = shares, pace
        self._others = Stage("other workers")
        self._exchange = None if exchange is None else functools.partial(self._others.call, exchange)
        self._fetch_wanted = options.fetch
        self._ahead = max(_MIN_AHEAD, options.experimental_per_replica_buffer_size)
        self._process = os.getpid()
        self._go_to(None)

    def _go_to(self, position: State | None) -> None:
        self._step = position["step"] if position else 0
        self._resharded = bool(position and position.get("resharded"))
        self._ended = False
        self._meter = Meter()
        self._counts, self._stages = Counts(), Stages()
        self._skipped_before = 0  # by cursors that failed or are over
        self._failed = False
        self._placing = Stage("placing")
        self._others.worked = self._others.waited = 0.0
        self._handover = handover(self._whole_pass, position) if position else None
        if self._handover is None:
            self._go_on_with(self._whole_pass, position and self._own_share(position))
        else:
            assert isinstance(self._whole_pass, BatchShares), "others have no handover"
            self._go_on_with(self._handover.rest(self._whole_pass), self._handover.begin)

    def _go_on_with(self, shares: Shares, state: State | None) -> None:
        """Read these shares from now on, from a position."""
        self._shares = shares
        self._fetch = self._fetch_wanted and not shares.asks_others  # exchanges with others all happen on the consumer's thread
        self._end: End | None = None
        self._agreed: AgreedSteps | None = None
        self._failure: Exception | None = None
        try:
            cursor = self._open(state)
        except Exception as error:
            if not self._agrees:
                raise
            self._failure = error  # raised once it can be reported to the other workers
        else:
            self._read_with(cursor)

    def _open(self, position: State | None) -> ShareCursor:
        with counting(self._counts):
            if (
                self._pace is not None and self._handover is None
            ):  # batches of arrays in memory take less time than it takes to watch their stages
                return self._shares.open(position)
            with self._stages.watching():
                return self._shares.open(position)

    def _read_with(self, cursor: ShareCursor) -> None:
        self._cursor = cursor
        self._last = cursor.state()
        thread = functools.partial(_thread, placing=self._placing if self._fetch else None, ahead=self._ahead)
        pace = self._pace if self._handover is None else None
        self._background = thread(cursor) if pace is None else Direct(cursor, self._shares.open, thread, pace)

    def _take(self) -> Any:
        if self._ended:
            return END
        self._meter.ask()
        if self._end is None:
            self._end = self._agreed_end()
            if self._end.is_open or self._shares.asks_others:
                self._agreed = self._made_steps()
        if self._failed:
            self._go_back()
        try:
            item, forms = self._next(self._end)
        except Exception:
            self._failed = self._agreed is None  # otherwise the others have stopped, too
            self._meter.end()
            raise
        if item is None:
            more = self._read_afterwards()
            self._meter.end()
            if more:
                return self._take()
            self._ended = True
            return END
        self._step += 1
        if item is END:
            self._meter.answer(0)
            return self._shares.nothing().placed(forms)
        element, num_examples, self._last = item
        element = element if self._fetch else self._placing.call(element.placed, forms)
        self._meter.answer(num_examples)
        return element

    def _go_back(self) -> None:
        """Begin again after the last element that was returned."""
        check_process(self._process)
        self._background.close()
        self._skipped_before += self._cursor.num_skipped
        self._read_with(self._open(self._last))
        self._failed = False

    def _next(self, end: End) -> tuple[Any, Sequence[Any] | None]:
        """This worker's item for the next step (`END` if it has none, None after the last step), and the forms of all workers."""
        if self._agreed is not None and not end.is_at(self._step):
            return self._agreed.next(self._step) or (None, None)
        item = self._background.next() if self._agreed is None else self._agreed.own()
        return (None if end.reached(self._step, item is not END) else item), None

    def _read_afterwards(self) -> bool:
        """Begin what comes after the rest of other workers' passes, if that is over now and there is more."""
        over, self._handover = self._handover, None
        if over is None:
            return False
        assert isinstance(self._whole_pass, BatchShares), "others have no handover"
        shares = over.afterwards(self._whole_pass)
        if shares is None:
            self._handover = over  # which the position needs
            return False
        self._background.close()
        self._skipped_before += self._cursor.num_skipped
        self._cursor.close()
        self._resharded = True
        self._go_on_with(shares, None)
        return True

    def _made_steps(self) -> AgreedSteps:
        assert self._exchange is not None, "checked when the dataset was made"
        background, shares, fetch = self._background, self._shares, self._fetch
        assert isinstance(background, Background), "several workers always read ahead"

        def size_of(item: Any) -> int:
            return 0 if fetch else item[0].num_bytes

        def take() -> Any:
            item = background.next()
            if item is not END and not fetch and size_of(item) < _SMALL_BYTES:
                background.keep(max(self._ahead, MOST_STEPS))
            return item

        return AgreedSteps(
            take,
            lambda: background.is_ready,
            form_of=lambda item: None if fetch else item[0].form(),
            form_of_nothing=lambda: shares.nothing().form(),
            size_of=size_of,
            exchange=self._exchange,
        )

    def _agreed_end(self) -> End:
        if self._agrees:
            self._go_to_the_chiefs()
        if self._shares.ends_everywhere:
            return End()
        assert self._exchange is not None, "checked when the dataset was made"
        return OpenEnd() if self._resharded else agree_on_end(self._shares.cardinality, self._exchange)

    @property
    def _agrees(self) -> bool:
        """Whether all workers read the same data, and so must begin at the same position."""
        shares = self._shares
        return self._exchange is not None and shares.topology.num_workers > 1 and shares.ends_everywhere

    def _go_to_the_chiefs(self) -> None:
        assert self._exchange is not None, "only called then"

        def begin() -> tuple[int, State]:
            if self._failure is not None:
                raise self._failure
            self._cursor.fix()
            self._last = self._cursor.state()
            return self._step, self._last

        position = agreed_position(self._exchange, self._shares.nodes, begin)
        if position != self._last:
            self._background.close()
            self._cursor.close()
            self._read_with(self._open(position))

    def _position(self) -> State:
        if self._failure is not None:
            raise self._failure
        shares, begun = self._shares, {"step": self._step, **({"resharded": True} if self._resharded else {})}
        if self._handover is not None:
            return {**begun, "share": self._last, "rest": self._handover.left_by}
        if shares.workers is None or not shares.asks_others:
            return {**begun, "share": self._last}
        of_files = {"by_files": shares.by_files} if isinstance(shares, BatchShares) else {}
        replicas = shares.topology.replicas_per_worker
        return {**begun, "workers": shares.workers.states(self._last), "replicas_per_worker": replicas, **of_files}

    def restore(self, state: State) -> None:
        """Continue after the last element that was returned before ``state`` was taken. All workers restore the same state.

        The number of workers may be another one, unless `explain` says that it may not. Under FILE, the workers then share what
        each of those before had left, as under DATA, to the end of the pass. Files are shared anew from the next pass on.

        Raises:
            DatasetError: If the state belongs to another pipeline, or to other workers than these and only they can continue.
        """
        if position := state.get("position"):
            handover(self._whole_pass, position)  # which may refuse it: the pass in flight goes on then
        super().restore(state)

    @property
    def has_other_steps(self) -> bool:
        """Whether other workers began this pass, so that its number of steps is not the dataset's cardinality."""
        return self._handover is not None or self._resharded

    def _own_share(self, position: State) -> State:
        """This worker's position: the same as that of all, or one of its own."""
        if "workers" not in position:
            return position["share"]
        return position["workers"][self._shares.topology.worker_index]

    def close(self) -> None:
        self._ended = True
        self._agreed = None
        if self._failure is None:
            self._background.close()

    def stats(self) -> InputStats:
        """Return how fast examples came, how long the consumer waited, and what was read, since this was made or restored.

        >>> from replicant.data import Dataset
        >>> place = lambda rows, sizes: rows
        >>> with iter(DistributedDataset(Dataset.range(6).batch(4), Topology(), place)) as iterator:
        ...     elements = list(iterator)
        ...     stats = iterator.stats()
        >>> stats.num_steps, stats.num_examples
        (2, 6)
        """
        num_skipped = self._skipped_before + self._cursor.num_skipped if self._failure is None else 0
        num_ready = self._background.num_ready if self._failure is None else 0
        stages = [*(stage for _, stage in self._stages), self._placing, self._others]
        epochs = epochs_by_source(self._shares.nodes, self._last) if self._failure is None else {}
        return self._meter.stats(num_ready, self._ahead, num_skipped, self._counts, stages, epochs=epochs)

    @property
    def element_spec(self) -> Any:
        """A structure of `PerReplicaSpec`, or of `TensorSpec` if there is one replica."""
        return self._shares.spec


def _thread(cursor: ShareCursor, *, placing: Stage | None, ahead: int) -> Background:
    """Return what reads ahead of the loop. It must not refer to the iterator, or this would never be collected."""

    def produce() -> Any:
        share = cursor.next()
        if share is None:
            return END
        return (share if placing is None else placing.call(share.placed)), share.num_examples, cursor.state()

    return Background(produce, cursor.close, ahead, "replicant-input")


def _pace(shares: Shares, options: InputOptions, at_once: PlaceAtOnce | None) -> Pace | None:
    """Return what decides whether a thread reads ahead, or None if it must in any case."""
    wanted = not options.fetch or options.experimental_per_replica_buffer_size > _MIN_AHEAD
    if at_once is None or wanted or shares.topology.num_workers > 1 or not only_moves_memory(shares.nodes):
        return None
    return Pace(at_once)


def _sharded(node: Node, topology: Topology, policy: AutoShardPolicy, exchange: ExchangeFn | None) -> tuple[Node, Sharding]:
    """What this worker reads of a dataset. The workers compare their datasets where they have to agree."""
    num_workers, worker = topology.num_workers, topology.worker_index
    if num_workers > 1 and exchange is not None:
        check_same(exchange, lambda: facts_of(node, policy, files_of(node)))
    own, sharding = autoshard(node, num_workers, worker, policy)
    if num_workers == 1:
        return own, sharding
    if policy is AutoShardPolicy.AUTO and sharding.policy is AutoShardPolicy.DATA and worker == 0:
        _inform(
            f"AutoShardPolicy.AUTO: {num_workers} workers share this dataset by DATA, because {sharding.reason}. Every worker "
            "reads everything and keeps its share of each batch."
        )
    if sharding.policy is not AutoShardPolicy.DATA:
        _check_exchange(exchange, topology)
    elif exchange is None and (drawing := unseeded_shuffle(node)) is not None:
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
