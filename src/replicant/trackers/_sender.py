"""Hands rows to one tracker from a thread of its own. Whatever the tracker does, whoever logs never waits."""

import collections
import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ._protocol import Row, Tracker

_logger = logging.getLogger("replicant.track")
_MOST_AT_ONCE = 1000  # rows of one write
_GATHER_SECONDS = 0.2  # after a row, in which others gather for the same write
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # between two tries to begin


class Sender:
    """The rows that wait for a tracker.

    Args:
        tracker: The tracker.
        config: The settings of the run.
        most: The number of rows that may wait. More are not taken, and count as lost.
    """

    def __init__(self, tracker: Tracker, config: Mapping[str, Any], most: int):
        self.name = type(tracker).__name__
        self.written = 0  # rows that the tracker has taken
        self.lost = 0  # rows that it has not
        self._tracker, self._config, self._most = tracker, config, most
        self._rows: collections.deque[Callable[[], Row]] = collections.deque()
        self._in_hand = 0  # rows that are being written
        self._changed = threading.Condition()
        self._is_over = self._failed = self._has_ended = self._is_given_up = False
        self._told: set[str] = set()
        self._thread = threading.Thread(target=self._work, name=f"replicant-track-{self.name}", daemon=True)
        self._thread.start()

    def put(self, row: Callable[[], Row]) -> None:
        """Add a row, which is worked out in the sender's thread. This never waits for the tracker."""
        with self._changed:
            if is_full := len(self._rows) + self._in_hand >= self._most:
                self.lost += 1
            else:
                self._rows.append(row)
                self._changed.notify()
        if is_full:
            self._tell("full", f"takes rows more slowly than they are logged: {self._most} rows wait, and further ones are lost.")

    def finish(self, *, failed: bool) -> None:
        """Ask the thread to write what waits, and to end the run. This does not wait."""
        with self._changed:
            self._is_over, self._failed = True, failed
            self._changed.notify()

    def wait(self, deadline: float) -> None:
        """Wait until the run has ended, and say what is lost.

        Args:
            deadline: Until when to wait, on the monotonic clock.
        """
        self._thread.join(max(0.0, deadline - time.monotonic()))
        with self._changed:
            self._is_given_up = True
            left = len(self._rows) + self._in_hand
            self._rows.clear()
            self.lost += left
            has_ended, lost, written = self._has_ended, self.lost, self.written
        if lost:
            _logger.warning("%s has taken %d of %d rows; %d are lost.", self.name, written, written + lost, lost)
        elif not has_ended:
            _logger.warning("%s has taken all %d rows, but has not ended its run in time.", self.name, written)

    def _work(self) -> None:
        self._begin()
        while rows := self._next():
            made = self._made(rows)
            try:
                self._tracker.write(made)
            except Exception as error:  # noqa: BLE001 - a tracker may raise anything, and training goes on
                self._settle(len(rows), 0)
                self._tell("write", f"did not take {len(rows)} row(s), which are lost: {_name_of(error)}.")
            else:
                self._settle(len(rows) - len(made), len(made))
        if self._is_given_up:
            return
        try:
            self._tracker.end(failed=self._failed)
        except Exception as error:  # noqa: BLE001 - likewise
            self._tell("end", f"did not end its run: {_name_of(error)}.")
        self._has_ended = True

    def _made(self, rows: list[Callable[[], Row]]) -> list[Row]:
        """Work out rows, which waits for devices. A step that has failed has no values."""
        made = []
        for row in rows:
            try:
                made.append(row())
            except Exception as error:  # noqa: BLE001 - JAX may raise anything, and the training's own thread shows it too
                self._tell("value", f"gets no row for a value that cannot be read: {_name_of(error)}.")
        return made

    def _begin(self) -> None:
        for tries in itertools.count():
            try:
                self._tracker.begin(self._config)
            except Exception as error:  # noqa: BLE001 - likewise
                self._tell("begin", f"did not begin its run, and is asked again: {_name_of(error)}.")
                with self._changed:
                    pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(tries, 10))
                    self._changed.wait_for(lambda: self._is_over, pause)
                    if self._is_given_up:
                        return
                    is_last = self._is_over
                if is_last:
                    time.sleep(_FIRST_PAUSE)  # until the deadline of `wait`
            else:
                return

    def _next(self) -> list[Callable[[], Row]]:
        """Wait for rows and take them. There are none once the run is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._rows or self._is_over)
            self._changed.wait_for(lambda: len(self._rows) >= _MOST_AT_ONCE or self._is_over, _GATHER_SECONDS)
            rows = [self._rows.popleft() for _ in range(min(len(self._rows), _MOST_AT_ONCE))]
            self._in_hand = len(rows)
            return rows

    def _settle(self, lost: int, written: int) -> None:
        with self._changed:
            self._in_hand = 0
            if not self._is_given_up:  # otherwise they were counted as lost
                self.lost += lost
                self.written += written

    def _tell(self, what: str, text: str) -> None:
        """Say something once."""
        with self._changed:
            if what in self._told:
                return
            self._told.add(what)
        with contextlib.suppress(Exception):  # a handler of the program's own may raise anything
            _logger.warning("%s %s Training continues. This is reported only once.", self.name, text)


def _name_of(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"
