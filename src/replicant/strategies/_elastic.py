"""``run_elastic``: continues training in the same processes when workers are lost or come back."""

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from ..cluster.jax import _bootstrap
from ..cluster.resolvers._environ import number
from ..cluster.wire import _supervisor
from ..errors import ArgumentTypeError, ClusterError, WorkerError, WorkerLostError
from ..runtime import _in_flight

T = TypeVar("T")

_SECONDS = 120.0  # to wait for the supervisor's next order


def run_elastic(train: Callable[[], T]) -> T:
    """Call ``train()``, and call it again whenever ``replicant launch --elastic`` forms a new generation of workers.

    Without ``--elastic``, it is called once.

    Args:
        train: A function of the whole training: it makes the strategy, the model and the data, restores the last checkpoint
            (``BackupAndRestore`` or ``CheckpointManager``) and trains. What it makes lives on devices that are lost when the
            workers change, so keep nothing of it from one call to the next. Use the same global batch with any number of workers.

    Returns:
        The result of the last call of `train`.

    Raises:
        ArgumentTypeError: If `train` is not callable.
        WorkerLostError: If this worker should join a new generation, but the supervisor or the other workers did not come.
        Exception: What `train` raises, unless another worker caused it.

    >>> import replicant
    >>> replicant.run_elastic(lambda: replicant.MultiWorkerMirroredStrategy().num_replicas_in_sync >= 1)
    True
    """
    if not callable(train):
        raise ArgumentTypeError(f"run_elastic: train must be a function that takes no arguments; got {train!r}.")
    heartbeat = _supervisor.start() if os.environ.get("REPLICANT_ELASTIC") == "1" else None
    if heartbeat is None:
        return train()
    heartbeat.is_elastic = True
    try:
        if os.environ.get(_supervisor.JOIN) == "1":
            heartbeat.say(kind="ready")
            _obey(heartbeat, None)
        while True:
            result, error = _attempt(train)
            if error is None:
                return result
            _leave()
            heartbeat.say(kind="waiting", generation=int(os.environ[_supervisor.GENERATION]), text=str(error)[:500])
            _obey(heartbeat, error)
    finally:
        heartbeat.is_elastic = False


def _attempt(train: Callable[[], T]) -> "tuple[Any, Exception | None]":
    """Return the result of `train`, or the error that a lost worker caused, without the frames that hold its arrays."""
    try:
        return train(), None
    except (WorkerError, ClusterError, jax.errors.JaxRuntimeError) as error:
        kept = error
    kept.__cause__ = kept.__context__ = None
    return None, kept.with_traceback(None)


def _leave() -> None:
    """Give up everything that lives on the devices of the old generation."""
    _in_flight.forget()
    keras = sys.modules.get("keras")
    if keras is not None:
        keras.utils.clear_session(free_memory=True)  # so that new layers get the names that the checkpoints have
    _bootstrap.leave()


def _obey(heartbeat: _supervisor.Heartbeat, error: Exception | None) -> None:
    """Wait until the supervisor tells which worker this one is now, and put that where the strategy looks."""
    order = heartbeat.take_order(_SECONDS)
    while order is not None and order["kind"] == "form":
        _become(order)
        heartbeat.say(kind="formed", generation=order["generation"])
        # Nobody starts before all have left the old generation.
        order = heartbeat.take_order((number(os.environ, "REPLICANT_START_TIMEOUT") or _SECONDS) + _supervisor.SUPERVISOR_FIRST)
        if order is not None and order["kind"] == "go":
            return
    if order is not None and error is not None:  # no worker was lost, so the error is this worker's own
        raise error
    reason = "the supervisor is gone" if not heartbeat.is_connected else "the other workers did not come in time"
    raise WorkerLostError(f"This worker was to join a new generation, but {reason}.") from error


def _become(order: dict[str, Any]) -> None:
    os.environ.update(JAX_PROCESS_ID=str(order["rank"]), JAX_NUM_PROCESSES=str(order["num_workers"]))
    os.environ[_supervisor.GENERATION] = str(order["generation"])
    if order["coordinator"] is None:
        os.environ.pop("JAX_COORDINATOR_ADDRESS", None)
    else:
        os.environ["JAX_COORDINATOR_ADDRESS"] = order["coordinator"]
