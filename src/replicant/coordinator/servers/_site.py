"""What one process of a cluster has: its way to the servers, and its own objects for the cluster's variables and iterators."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import ContextError
from ._client import Client
from ._store import VariableSpec


class Site:
    """One process, or one thread that plays a process.

    prepare: called with an optimizer's number and the numbers of the variables that it is about to be applied to; returns once
    every server knows it. optimizers: on the coordinator, by number, what does so: it is given the cluster and these variables.
    """

    def __init__(self, client: Client, prepare: Callable[[int, list[int]], None], *, is_coordinator: bool = False):
        self.client = client
        self.prepare = prepare
        self.is_coordinator = is_coordinator
        self.strategy: Any = None
        self.variables: dict[int, Any] = {}
        self.optimizers: dict[int, Callable[[Any, list[int]], None]] = {}
        self.resources: dict[int, Any] = {}
        self.parcels: dict[int, bytes] = {}  # that have arrived and have not been opened
        self.prepared: dict[int, frozenset[int]] = {}

    def variable(self, spec: VariableSpec, make: Callable[[], Any]) -> Any:
        """This process's object for a variable."""
        if spec.number not in self.variables:
            self.variables[spec.number] = make()
        return self.variables[spec.number]

    def drop(self, number: int) -> None:
        """Forget a parcel that nobody names any more."""
        self.parcels.pop(number, None)
        self.resources.pop(number, None)

    def prepare_rule(self, optimizer: int, variables: list[int]) -> None:
        """Make sure that the servers can apply `optimizer` to `variables`."""
        if not self.prepared.get(optimizer, frozenset()).issuperset(variables):
            self.prepare(optimizer, variables)
            self.prepared[optimizer] = self.prepared.get(optimizer, frozenset()) | frozenset(variables)


class _Here(threading.local):
    site: Site | None = None


_here = _Here()


def current_site() -> Site:
    """The site of a worker's thread, or of the coordinator while it unpickles."""
    if _here.site is None:
        raise ContextError("This needs a worker of a ParameterServerStrategy, and runs somewhere else.")
    return _here.site


def in_worker() -> bool:
    """Whether this thread is a worker."""
    return _here.site is not None and not _here.site.is_coordinator


@contextmanager
def at(site: Site) -> Iterator[None]:
    """Make `site` this thread's."""
    before, _here.site = _here.site, site
    try:
        yield
    finally:
        _here.site = before
