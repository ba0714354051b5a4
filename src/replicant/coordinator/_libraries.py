"""Libraries whose variables and optimizers can lie on servers. The folder of each registers how it is connected."""

import sys
from collections.abc import Callable

_connectors: dict[str, Callable[[], None]] = {}


def register(library: str, connect: Callable[[], None]) -> None:
    """Have `connect` teach a library about parameter servers once it has been imported. It may be called several times."""
    _connectors[library] = connect


def connect_libraries() -> None:
    """Connect the libraries that are in use."""
    for library, connect in _connectors.items():
        if library in sys.modules:
            connect()
