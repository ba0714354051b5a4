"""Events: how a cluster reports what happens to its workers."""

from typing import Any, Protocol

from ._member import Member


class Events(Protocol):
    """What a cluster calls when something happens: in its watching thread, and finally in the thread that closes it."""

    def ready(self, worker: Member) -> None:
        """A worker is ready for closures."""
        ...

    def said(self, worker: Member, message: Any) -> None:
        """A worker sent a message."""
        ...

    def lost(self, worker: Member, how: str) -> None:
        """A worker was lost, and its replacement has not been started yet. The cluster's `failure` may be set here."""
        ...

    def woken(self) -> None:
        """`Cluster.wake` was called, or the cluster has ended."""
        ...

    def look(self, passed: float) -> None:
        """About once a second: `passed` seconds have gone by since the last call."""
        ...


class Relay:
    """Passes events on to an object that is made after the cluster, and ignores them until then."""

    def __init__(self) -> None:
        self._to: Events | None = None

    def pass_on_to(self, events: Events) -> None:
        """Pass events on to `events` from now on. Hold the cluster's lock, so that no worker is replaced meanwhile."""
        self._to = events

    def ready(self, worker: Member) -> None:
        if self._to is not None:
            self._to.ready(worker)

    def said(self, worker: Member, message: Any) -> None:
        if self._to is not None:
            self._to.said(worker, message)

    def lost(self, worker: Member, how: str) -> None:
        if self._to is not None:
            self._to.lost(worker, how)

    def woken(self) -> None:
        if self._to is not None:
            self._to.woken()

    def look(self, passed: float) -> None:
        if self._to is not None:
            self._to.look(passed)
