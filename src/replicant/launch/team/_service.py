"""JAX's coordination service, run by the supervisor, so that it survives the end of any worker.

In this folder, no other file uses private parts of jaxlib. Each generation needs its own service, because a service counts its
workers only once.
"""

import contextlib
import importlib
import importlib.metadata
import os
import socket
from collections.abc import Iterator
from typing import Any, Self

from ...cluster._addresses import split_address
from ...cluster.jax._service_sockets import outlast_cuts
from ...errors import ConfigurationError

_SHUTDOWN_SECONDS = 10
_TRIES = 20  # to find a free port that nobody else takes before this service listens there


class CoordinationService:
    """A running coordination service.

    Args:
        num_workers: The number of workers that it waits for.
        heartbeat: The seconds without a heartbeat after which a worker counts as lost.
        port: The port at which it listens. By default a free one.
        host: The address of this machine at which it listens.

    Raises:
        ConfigurationError: If the port is in use, or if jaxlib has no such service.
    """

    def __init__(self, num_workers: int, heartbeat: float, port: int | None = None, host: str = "127.0.0.1"):
        self._service: Any = None
        self._is_connected = False
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
                    raise ConfigurationError(f"JAX's coordination service could not start at {address}: {error}") from error
            else:
                self.address = address
                return

    def note_connected(self) -> None:
        """Note that the workers have connected: from now on their connections outlast a cut link."""
        if not self._is_connected:
            self._is_connected = True
            outlast_cuts(split_address(self.address, "coordinator address")[1])

    def close(self) -> None:
        """End the service. Idempotent."""
        if self._service is not None:
            self._service.shutdown()
            self._service = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def free_port(host: str = "127.0.0.1") -> int:
    """A port at which nobody listens."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def check_port(port: int, host: str = "127.0.0.1") -> int:
    """Check that nobody listens at a port, and return it.

    Two gRPC servers can share a port without noticing, so this must be checked before.

    Raises:
        ConfigurationError: If the port cannot be used.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closing connections of the last job do no harm
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigurationError(
                f"Port {port} of {host} cannot be used: {error.strerror}. Give another --port, or leave it out to get a free one."
            ) from error
    return port


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide jaxlib's warning on standard error that services whose workers may come back are experimental.

    Setting a log level does not help, because jaxlib reads it only once, when it is loaded. Errors are still raised.
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
        return private.get_distributed_runtime_service  # noqa: TRY300 - this may be what is missing
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"jaxlib {version} has no coordination service where this release looks for it ({error}). This release was tested with "
            "jaxlib 0.10 to 0.12: install one of these, or a newer Replicant."
        ) from error
