"""One pass over a distributed dataset, of which a position can be saved, also for other workers.

An iterator is in one of three states: what it reads is opened, it reads, or it has ended. What a pass that other workers began
consists of, its `Leg`s, is opened one after the other.
"""

import functools
from typing import Any, NamedTuple

from .._iterator import ElementIterator, NotOpened
from .._options import InputOptions
from ..graph._background import END, Background
from ..graph._graph import INFINITE, UNKNOWN, State, known
from ..transforms.mixtures._epochs import epochs_by_source
from ._agreement import ExchangeFn, agreed_end, agreed_position
from ._direct import Pace
from ._handover import Leg, leg_at, rest_at
from ._shares import Shares
from ._source import Source
from ._stats import InputStats, Meter
from ._steps import AgreedSteps, CountedSteps, OwnSteps, Steps

MIN_AHEAD = 2


class _Opened(NamedTuple):
    """Nobody has asked for a step of this leg yet, and the workers have not agreed on where it begins and ends."""

    leg: Leg
    source: Source | NotOpened


class _Reading(NamedTuple):
    """The steps of this leg come."""

    leg: Leg
    source: Source
    steps: Steps


class _Ended(NamedTuple):
    """There is no more, or `close` was called. The position is that of the last leg."""

    leg: Leg
    source: Source | NotOpened


class DistributedIterator(ElementIterator):
    """One pass over a distributed dataset; a thread keeps the next batches on the devices, unless they are made at once."""

    def __init__(self, shares: Shares, options: InputOptions, exchange: ExchangeFn | None, pace: Pace | None = None) -> None:
        super().__init__(shares.description)
        self._whole, self._exchange, self._pace, self._fetch = shares, exchange, pace, options.fetch
        self._ahead = max(MIN_AHEAD, options.experimental_per_replica_buffer_size)
        self._step, self._meter = 0, Meter()
        self._now: _Opened | _Reading | _Ended = self._opened(leg_at(shares, None), self._meter)

    def _opened(self, leg: Leg, meter: Meter) -> _Opened:
        placed = self._fetch and not leg.shares.asks_others  # exchanges with others all happen on the consumer's thread
        pace = self._pace if leg.left_by is None else None
        try:
            return _Opened(leg, Source(leg.shares, leg.begin, meter, pace=pace, placed=placed, ahead=self._ahead))
        except Exception as error:
            if not self._begins_together(leg):
                raise
            return _Opened(leg, NotOpened(error))

    def _begins_together(self, leg: Leg) -> bool:
        """Whether all workers read the same data, and so must begin at the same position."""
        return self._exchange is not None and leg.shares.topology.num_workers > 1 and leg.shares.ends_everywhere

    def _go_to(self, position: State | None) -> None:
        meter = Meter()
        self._now = self._opened(leg_at(self._whole, position), meter)
        self._step, self._meter = position["step"] if position else 0, meter

    def _go_on(self, before: _Opened | _Reading, after: _Opened | _Reading | _Ended) -> None:
        """Go to another state, unless another thread has called `close` meanwhile."""
        if self._now is before:
            self._now = after
        else:
            after.source.close()

    def _take(self) -> Any:
        now, meter = self._now, self._meter
        if isinstance(now, _Ended):
            return END
        meter.ask()
        if isinstance(now, _Opened):
            before, now = now, self._begun(now)
            self._go_on(before, now)
        try:
            found = now.steps.next(self._step)
        except Exception:
            meter.end()
            raise
        if found is None:
            return self._take_next_leg(now)
        self._step += 1
        item, forms = found
        if item is END:
            meter.answer(0)
            return now.leg.shares.nothing().placed(forms)
        element, num_examples, now.source.last = item
        if not now.source.placed:
            element = meter.placing.call(element.placed, forms)
        meter.answer(num_examples)
        return element

    def _begun(self, now: _Opened) -> _Reading:
        """Agree with the other workers on where this leg begins, and on where it ends."""
        source = now.source
        exchange = self._exchange and functools.partial(self._meter.others.call, self._exchange)

        def begin() -> tuple[int, State]:
            return self._step, source.fix() if isinstance(source, Source) else source.last

        if exchange is not None and self._begins_together(now.leg):
            position = agreed_position(exchange, now.leg.shares.nodes, begin)
        else:
            position = source.last
        assert isinstance(source, Source), "the error of others has been raised"
        source.begin_at(position)
        return _Reading(now.leg, source, self._steps(now.leg, source, exchange))

    def _steps(self, leg: Leg, source: Source, exchange: ExchangeFn | None) -> Steps:
        shares, end = leg.shares, INFINITE
        if not shares.ends_everywhere:
            assert exchange is not None, "checked when the dataset was made"
            end = UNKNOWN if leg.resharded else agreed_end(shares.cardinality, exchange)
        if end == UNKNOWN or shares.asks_others:
            assert exchange is not None, "checked when the dataset was made"
            assert isinstance(source.reader, Background), "several workers always read ahead"
            agreed = AgreedSteps(source.reader, shares.nothing, exchange, placed=source.placed, ahead=self._ahead)
            return CountedSteps(agreed.next, agreed.own, end) if known(end) else agreed
        return CountedSteps(lambda _: (source.next(), None), source.next, end) if known(end) else OwnSteps(source.next)

    def _take_next_leg(self, now: _Reading) -> Any:
        """Begin what comes after this leg, if there is more, and return its first element."""
        leg = now.leg.following()
        if leg is None:
            self._meter.end()
            self._go_on(now, _Ended(now.leg, now.source))
            return END
        now.source.end()
        following = self._opened(leg, self._meter)
        self._meter.skipped_before += now.source.num_skipped
        self._go_on(now, following)
        self._meter.end()
        return self._take()

    def _position(self) -> State:
        return self._now.leg.position(self._step, self._now.source.last)

    def restore(self, state: State) -> None:
        """Continue after the last element that was returned before ``state`` was taken. All workers restore the same state.

        The number of workers may be another one, unless `explain` says that it may not. Under FILE, the workers then share what
        each of those before had left, as under DATA, to the end of the pass. Files are shared anew from the next pass on.

        Raises:
            DatasetError: If the state belongs to another pipeline, or to other workers than these and only they can continue.
        """
        if position := state.get("position"):
            rest_at(self._whole, position)  # which may refuse it: the pass in flight goes on then
        super().restore(state)

    @property
    def has_other_steps(self) -> bool:
        """Whether other workers began this pass, so that its number of steps is not the dataset's cardinality."""
        return self._now.leg.has_other_steps

    def close(self) -> None:
        self._now = _Ended(self._now.leg, self._now.source)
        self._now.source.close()

    def stats(self) -> InputStats:
        """Return how fast examples came, how long the consumer waited, and what was read, since this was made or restored.

        >>> from replicant.data import Dataset, DistributedDataset
        >>> from replicant.replicas._topology import Topology
        >>> place = lambda rows, sizes: rows
        >>> with iter(DistributedDataset(Dataset.range(6).batch(4), Topology(), place)) as iterator:
        ...     elements = list(iterator)
        ...     stats = iterator.stats()
        >>> stats.num_steps, stats.num_examples
        (2, 6)
        """
        source = self._now.source
        epochs = epochs_by_source(self._now.leg.shares.nodes, source.last) if isinstance(source, Source) else {}
        return self._meter.stats(source.num_ready, self._ahead, source.num_skipped, epochs)

    @property
    def element_spec(self) -> Any:
        """A structure of `PerReplicaSpec`, or of `TensorSpec` if there is one replica."""
        return self._now.leg.shares.spec
