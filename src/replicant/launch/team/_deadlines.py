"""Decides which worker has missed a deadline: a pure state machine. Its owner says what happens, and what time it is."""

from collections.abc import Mapping

from .._settings import Settings
from ..record._progress import Progress
from ._policy import DEADLINE_CODE, Failure, Kind


class Deadlines:
    """The deadlines of workers that are started together.

    Args:
        settings: The settings of the job.
        progress: What is known about the workers, by rank. The owner keeps it up to date.
    """

    def __init__(self, settings: Settings, progress: Mapping[int, Progress]):
        self.left: list[int] = []  # ranks that have ended without an error, in order
        self._settings, self._progress = settings, progress
        self._first_came: float | None = None
        self._first_left: float | None = None

    def come(self, now: float) -> None:
        """Note that a worker has connected."""
        self._first_came = self._first_came or now

    def leave(self, now: float, rank: int | None = None) -> None:
        """Note that a program has come to its end or, if `rank` is given, that its process has ended without an error."""
        self._first_left = self._first_left or now
        if rank is not None:
            self.left.append(rank)

    def missed(self, now: float, rank: int, silent: float) -> Failure | None:
        """The deadline that a running worker has missed, if any.

        Args:
            now: The time, in seconds.
            rank: The rank of the worker.
            silent: The seconds since its last heartbeat or, before the first one, since it was stopped.
        """
        settings, progress = self._settings, self._progress[rank]
        is_frozen = silent > settings.heartbeat
        if progress.seen is None or progress.moved is None:
            if is_frozen:
                return _failure(rank, Kind.FROZEN, settings.heartbeat)
            if self._first_came is not None and now - self._first_came > settings.start:
                return _failure(rank, Kind.LATE, settings.start)
            return None
        if is_frozen and progress.phase != "end":  # while Python ends, its threads do not run
            return _failure(rank, Kind.FROZEN, settings.heartbeat)
        if self._first_left is not None and now - max(self._first_left, progress.moved) > settings.finish:
            other = f"rank {self.left[0]}" if self.left else "one of the workers"
            return _failure(rank, Kind.STUCK, settings.finish, other)
        return None

    def stalled(self, now: float, running: list[int]) -> Failure | None:
        """The failure to report if none of the running workers has made a step for too long."""
        if self._settings.stall is None:
            return None
        moved = [moved for rank in running if (moved := self._progress[rank].moved) is not None]
        if not moved or now - max(moved) <= self._settings.stall:
            return None
        return _failure(running[0], Kind.STALLED, self._settings.stall)


def _failure(rank: int, kind: Kind, seconds: float, other: str = "") -> Failure:
    return Failure(rank, kind, DEADLINE_CODE, f"{seconds:g} s", other)
