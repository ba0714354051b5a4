"""Starts JAX's devices, where each process waits for all others. The wait ends early if they form a new group, or cannot meet."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from ...errors import WorkerLostError
from ..wire import _supervisor
from . import _gloo_chatter

_LOOK_SECONDS = 0.1


def start(store: Any, num_processes: int) -> str:
    """Start this process's devices.

    XLA waits here for what the other processes put into the store, for minutes if one of them is gone. The wait cannot be
    cancelled, but it fails once this process has left the store. Processes that may form a new group also make their first exchange
    here, because CPU workers connect to each other in it.

    Args:
        store: The ``JaxStore`` that all processes share.
        num_processes: The number of processes that start their devices.

    Returns:
        The platform of the devices.

    Raises:
        WorkersChangedError: If the workers are to form a new group.
        WorkerLostError: If the coordination service is gone.
    """
    import jax

    with _broken_off(store):
        platform = jax.devices()[0].platform
        if _supervisor.is_elastic() and platform == "cpu" and num_processes > 1:
            _exchange()
        return platform


def _exchange() -> None:
    """Add up one number from each device."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = jax.devices()
    sharding = NamedSharding(Mesh(devices, "devices"), PartitionSpec("devices"))
    ones = jax.make_array_from_callback((len(devices),), sharding, lambda _: np.ones(1, np.int32))
    add = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(sharding.mesh, PartitionSpec()))
    with _gloo_chatter.connecting().quiet(lambda: None):
        add(ones).block_until_ready()


@contextlib.contextmanager
def _broken_off(store: Any) -> Iterator[None]:
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_SECONDS):
            if (_supervisor.is_elastic() and _supervisor.is_ordered()) or store.gone():
                store.close()
                return

    watcher = threading.Thread(target=watch, name="replicant-devices", daemon=True)
    watcher.start()
    try:
        yield
    except RuntimeError as error:
        _supervisor.check_order()
        if store.gone():
            raise WorkerLostError(
                f"This worker could not start its devices together with the others: {store.gone()}. The process that holds "
                "the coordination service (worker 0, or the launcher) has ended, or its host is lost; see its log."
            ) from error
        raise
    finally:
        over.set()
        watcher.join()
