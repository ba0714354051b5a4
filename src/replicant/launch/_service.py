"""JAX's coordination service, held by the supervisor: no worker's end takes it along. Only here private parts of jaxlib are used.

One service per generation: it counts its workers once.
"""

import contextlib
import importlib
import importlib.metadata
import os
import socket
from collections.abc import Iterator
from typing import Any, Self

from ..errors import ConfigurationError

_TRIED = ((0, 10), (0, 11))  # versions of jaxlib
_SHUTDOWN_SECONDS = 10
_TRIES = 20  # to find a port that nobody takes between looking and listening


class CoordinationService:
    """A running coordination service.

    Args:
        num_workers: that it waits for.
        heartbeat: seconds without a sign of life.
        port: None: a free one.
        host: of this machine, where it listens.

    Raises:
        ConfigurationError: the port is in use, or jaxlib has no such service.
    """

    def __init__(self, num_workers: int, heartbeat: float, port: int | None = None, host: str = "127.0.0.1"):
        self._service: Any = None
        start = _maker()
        for tries_left in reversed(range(_TRIES)):
            address = f"{host}:{free_port(host) if port is None else check_port(port, host)}"
            try:
                with _quiet():
                    self._service = start(
                        address,
                        num_workers,
                        heartbeat_timeout=max(10, int(heartbeat)),
                        shutdown_timeout=_SHUTDOWN_SECONDS,
                        recoverable=True,
                    )
            except RuntimeError as error:
                if port is not None or tries_left == 0:
                    raise ConfigurationError(f"JAX's coordination service does not start at {address}: {error}") from error
            else:
                self.address = address
                return

    def close(self) -> None:
        """End it; idempotent."""
        if self._service is not None:
            self._service.shutdown()
            self._service = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def free_port(host: str = "127.0.0.1") -> int:
    """A port where nobody listens."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def check_port(port: int, host: str = "127.0.0.1") -> int:
    """The port, if nobody listens there.

    Two gRPC servers can share a port without noticing, so this must be asked before.

    Raises:
        ConfigurationError: somebody does.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that rest from the last job do no harm
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigurationError(
                f"Port {port} of {host} cannot be used: {error.strerror}. Give another --port, or none to have a free one found."
            ) from error
    return port


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without jaxlib's warning on standard error that services whose workers may come back are experimental.

    It asks for its log level once, when it is loaded. Errors are raised all the same.
    """
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)


def _maker() -> Any:
    version = importlib.metadata.version("jaxlib")
    try:
        private = importlib.import_module("jaxlib._jax")
        return private.get_distributed_runtime_service  # noqa: TRY300 - it may be what is missing
    except (ImportError, AttributeError) as error:
        tried = " and ".join(".".join(map(str, line)) for line in _TRIED)
        raise ConfigurationError(
            f"jaxlib {version} has no coordination service where this release looks for it ({error}). It was tried with jaxlib "
            f"{tried}: install one of them, or a newer Replicant."
        ) from error
