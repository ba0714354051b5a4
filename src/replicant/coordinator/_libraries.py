"""Libraries whose variables and optimizers can live on servers. Each library's folder registers how to connect it."""

import sys
from collections.abc import Callable

_connectors: dict[str, Callable[[], None]] = {}


def register(library: str, connect: Callable[[], None]) -> None:
    """Register `connect`, which teaches an imported library about parameter servers. It may be called several times."""
    _connectors[library] = connect


def connect_libraries() -> None:
    """Connect every registered library that has been imported."""
    for library, connect in _connectors.items():
        if library in sys.modules:
            connect()
