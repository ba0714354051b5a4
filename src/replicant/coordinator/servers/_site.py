"""A site: one process's client of the servers, and its own objects for the cluster's variables and iterators."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import ContextError
from ._client import Client
from ._store import VariableSpec


class Site:
    """The state of one process, or of one thread that stands in for a process.

    Args:
        prepare: is called with an optimizer's number and the numbers of the variables to which it will be applied, and returns
            once every server knows the optimizer.

    Attributes:
        optimizers: on the coordinator, by number, functions of the cluster and the variables that send the optimizer to servers.
    """

    def __init__(self, client: Client, prepare: Callable[[int, list[int]], None], *, is_coordinator: bool = False):
        self.client = client
        self.prepare = prepare
        self.is_coordinator = is_coordinator
        self.strategy: Any = None
        self.variables: dict[int, Any] = {}
        self.optimizers: dict[int, Callable[[Any, list[int]], None]] = {}
        self.resources: dict[int, Any] = {}
        self.parcels: dict[int, bytes] = {}  # those not used yet
        self.prepared: dict[int, frozenset[int]] = {}

    def variable(self, spec: VariableSpec, make: Callable[[], Any]) -> Any:
        """This process's object for a variable, which `make` makes if there is none."""
        if spec.number not in self.variables:
            self.variables[spec.number] = make()
        return self.variables[spec.number]

    def drop(self, number: int) -> None:
        """Forget a parcel that nothing refers to any more."""
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
    """The site of this thread: of a worker, or of the coordinator while it unpickles. Raises ContextError elsewhere."""
    if _here.site is None:
        raise ContextError(
            "This object exists on the workers of a ParameterServerStrategy only, and was used elsewhere. Use it in a scheduled "
            "function."
        )
    return _here.site


def in_worker() -> bool:
    """Whether this thread is a worker."""
    return _here.site is not None and not _here.site.is_coordinator


@contextmanager
def at(site: Site) -> Iterator[None]:
    """Make `site` the site of this thread."""
    before, _here.site = _here.site, site
    try:
        yield
    finally:
        _here.site = before
