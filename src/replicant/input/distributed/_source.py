"""What an iterator reads this worker's steps from: a cursor at a position, and who asks it."""

import contextlib
import functools
import os
from typing import Any, Protocol

from ...storage._counts import counting
from ..graph._background import END, Background, check_process
from ..graph._graph import State
from ..graph._watch import Stage
from ._direct import Direct, Pace
from ._shares import ShareCursor, Shares
from ._stats import Meter


class Reader(Protocol):
    """Asks a cursor for this worker's steps: a thread that reads ahead (`Background`), or the loop itself (`Direct`)."""

    def next(self) -> Any:
        """Return the next step, placed or to be placed, with its number of examples and the position after it; or `END`."""
        ...

    @property
    def num_ready(self) -> int:
        """The number of steps that wait for the loop."""
        ...

    def close(self) -> None:
        """Be at the end from now on."""
        ...


class Source:
    """This worker's steps from a position on. After an error, they begin again behind the last one that was given.

    Args:
        shares: What is read.
        position: Where it begins; None for the beginning.
        meter: Measures what is read.
        pace: Decides whether a thread reads ahead. None has a thread do so in any case.
        placed: Whether whoever asks the cursor places what it gets.
        ahead: How many steps a thread keeps ready.

    Attributes:
        last: The position after the last step that was given.
        reader: Who asks the cursor.

    Raises:
        DatasetError: If the position cannot be opened.
    """

    def __init__(
        self, shares: Shares, position: State | None, meter: Meter, *, pace: Pace | None, placed: bool, ahead: int
    ) -> None:
        self._shares, self._meter, self._pace, self.placed, self._ahead = shares, meter, pace, placed, ahead
        self._cursor = self._open(position)
        self.last = self._cursor.state()
        self.reader = self._reader()
        self._failed = False  # nobody knows where the cursor is then
        self._skipped_before = 0  # by cursors that failed
        self._process = os.getpid()

    def _open(self, position: State | None) -> ShareCursor:
        # Batches of arrays in memory take less time than it takes to watch their stages.
        watching = contextlib.nullcontext() if self._pace else self._meter.stages.watching()
        with counting(self._meter.counts), watching:
            return self._shares.open(position)

    def _reader(self) -> Reader:
        thread = functools.partial(_thread, placing=self._meter.placing if self.placed else None, ahead=self._ahead)
        return Direct(self._cursor, self._shares.open, thread, self._pace) if self._pace else thread(self._cursor)

    def next(self) -> Any:
        """Return what the reader does.

        Raises:
            Exception: What reading raised, on this call and every later one until its cause is gone.
        """
        if self._failed:
            check_process(self._process)
            self._go_to(self.last)
        try:
            return self.reader.next()
        except Exception:
            self._failed = True
            raise

    def fix(self) -> State:
        """Draw now the random numbers with which a pass begins, and return the position."""
        self._cursor.fix()
        self.last = self._cursor.state()
        return self.last

    def begin_at(self, position: State) -> None:
        """Go to another position before the first step."""
        if position != self.last:
            self.end()
            self._go_to(position)

    def _go_to(self, position: State) -> None:
        self.reader.close()
        self._skipped_before += self._cursor.num_skipped
        self._cursor = self._open(position)
        self.last = self._cursor.state()
        self.reader = self._reader()
        self._failed = False

    @property
    def num_ready(self) -> int:
        """The number of steps that wait for the loop."""
        return self.reader.num_ready

    @property
    def num_skipped(self) -> int:
        """The number of records that were left out."""
        return self._skipped_before + self._cursor.num_skipped

    def close(self) -> None:
        """Have no more steps. A cursor that a thread is still in, the thread closes."""
        self.reader.close()

    def end(self) -> None:
        """Close the cursor, too, which nobody is in any more."""
        self.reader.close()
        self._cursor.close()


def _thread(cursor: ShareCursor, *, placing: Stage | None, ahead: int) -> Background:
    """Return what reads ahead of the loop. It must not refer to the iterator, or this would never be collected."""

    def produce() -> Any:
        share = cursor.next()
        if share is None:
            return END
        return (share if placing is None else placing.call(share.placed)), share.num_examples, cursor.state()

    return Background(produce, cursor.close, ahead, "replicant-input")
