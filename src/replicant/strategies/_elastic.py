"""``run_elastic``: training goes on in the same processes with the workers that are left, and with those that come back."""

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from ..cluster import _bootstrap, _heartbeat
from ..cluster._environ import number
from ..errors import ArgumentTypeError, ClusterError, WorkerError, WorkerLostError
from ..runtime import _in_flight

T = TypeVar("T")

_SECONDS = 120.0  # for the supervisor to say what comes


def run_elastic(train: Callable[[], T]) -> T:
    """Call ``train()``, and call it again whenever ``replicant launch --elastic`` forms the workers anew.

    Args:
        train: all of the training: it makes the strategy, the model and the data, restores the last checkpoint
            (``BackupAndRestore`` or ``CheckpointManager``) and trains. What it makes lives on devices that are lost when the
            workers change, so nothing of it may be kept from one call to the next. The global batch is the same with any number
            of workers.

    Returns: what `train` returns in the end.

    Without ``--elastic`` it is one call. Raises what `train` raises, if that is not because of another worker.

    >>> import replicant
    >>> replicant.run_elastic(lambda: replicant.MultiWorkerMirroredStrategy().num_replicas_in_sync >= 1)
    True
    """
    if not callable(train):
        raise ArgumentTypeError(f"run_elastic: train must be a function without arguments; got {train!r}.")
    heartbeat = _heartbeat.start() if os.environ.get("REPLICANT_ELASTIC") == "1" else None
    if heartbeat is None:
        return train()
    heartbeat.is_elastic = True
    try:
        if os.environ.get(_heartbeat.JOIN) == "1":
            heartbeat.say(kind="ready")
            _obey(heartbeat, None)
        while True:
            result, error = _attempt(train)
            if error is None:
                return result
            _leave()
            heartbeat.say(kind="waiting", generation=int(os.environ[_heartbeat.GENERATION]), text=str(error)[:500])
            _obey(heartbeat, error)
    finally:
        heartbeat.is_elastic = False


def _attempt(train: Callable[[], T]) -> "tuple[Any, Exception | None]":
    """What `train` returns, or the error that another worker's end has brought about, without the frames that hold its arrays."""
    try:
        return train(), None
    except (WorkerError, ClusterError, jax.errors.JaxRuntimeError) as error:
        kept = error
    kept.__cause__ = kept.__context__ = None
    return None, kept.with_traceback(None)


def _leave() -> None:
    """Give up everything that lives on the devices of the workers' old world."""
    _in_flight.forget()
    keras = sys.modules.get("keras")
    if keras is not None:
        keras.utils.clear_session(free_memory=True)  # layers made again get the names that their checkpoints know
    _bootstrap.leave()


def _obey(heartbeat: _heartbeat.Heartbeat, error: Exception | None) -> None:
    """Wait for the supervisor to say who this worker is now, and put that where the strategy looks."""
    order = heartbeat.take_order(_SECONDS)
    while order is not None and order["kind"] == "form":
        _become(order)
        heartbeat.say(kind="formed", generation=order["generation"])
        # Nobody begins before all have left the workers' old world.
        order = heartbeat.take_order((number(os.environ, "REPLICANT_START_TIMEOUT") or _SECONDS) + _heartbeat.SUPERVISOR_FIRST)
        if order is not None and order["kind"] == "go":
            return
    if order is not None and error is not None:  # nobody is lost: the error is this worker's own
        raise error
    reason = "the supervisor is gone" if not heartbeat.is_connected else "the others did not come in time"
    raise WorkerLostError(f"This worker was to join others, but {reason}.") from error


def _become(order: dict[str, Any]) -> None:
    os.environ.update(JAX_PROCESS_ID=str(order["rank"]), JAX_NUM_PROCESSES=str(order["num_workers"]))
    os.environ[_heartbeat.GENERATION] = str(order["generation"])
    if order["coordinator"] is None:
        os.environ.pop("JAX_COORDINATOR_ADDRESS", None)
    else:
        os.environ["JAX_COORDINATOR_ADDRESS"] = order["coordinator"]
