"""Who is told what happens to the workers of a cluster."""

from typing import Any, Protocol

from ._member import Member


class Events(Protocol):
    """What a cluster calls when something happens: in its watching thread, and at the end in the thread that closes it."""

    def ready(self, worker: Member) -> None:
        """A worker can be given something to do."""
        ...

    def said(self, worker: Member, message: Any) -> None:
        """A worker sent a message."""
        ...

    def lost(self, worker: Member, how: str) -> None:
        """A worker is gone, and its replacement has not been started. The cluster's `failure` may be set here."""
        ...

    def woken(self) -> None:
        """`Cluster.wake` was called, or the cluster has come to its end."""
        ...

    def look(self, passed: float) -> None:
        """A second or more has gone by. passed: how many."""
        ...


class Relay:
    """Passes events on to an object that is made after the cluster. Until then there is nothing to do about them."""

    def __init__(self) -> None:
        self._to: Events | None = None

    def pass_on_to(self, events: Events) -> None:
        """Tell `events` from now on. The cluster's lock must be held, so that no worker is replaced meanwhile."""
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
