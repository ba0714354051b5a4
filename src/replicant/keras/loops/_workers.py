"""``fit``, ``evaluate`` and ``predict`` over several workers: what must be the same on all, and what only the chief does.

Every worker runs the same loop on the same batches and computes its part of each batch. The chief decides the order in which arrays
are shuffled. Callbacks that write files run on the chief. On the other workers, a mute callback of the same name replaces them.
"""

import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from ...cluster.exchange._world import World
from ...errors import ArgumentError
from ..data._same_batches import Read, read
from ..data._worker_datasets import active
from ..state._owner import strategy_of
from ._saved_position import Randomness

_COUNTS = (
    "batch_size",
    "epochs",
    "initial_epoch",
    "steps_per_epoch",
    "steps",
    "validation_split",
    "validation_steps",
    "validation_batch_size",
    "validation_freq",
)
_MUTE = "replicant_is_mute"
_WRITERS = ("ModelCheckpoint", "CSVLogger", "TensorBoard", "RemoteMonitor", "OrbaxCheckpoint")


def loop(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Run ``fit``, ``evaluate`` or ``predict``. Prepare and check the loop if the model's strategy has several workers."""
    strategy = strategy_of(model)
    world = None if strategy is None else strategy.placement.world
    if strategy is None or world is None:
        return original(model, *args, **kwargs)
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    outermost = active.get() is None  # not an evaluation inside another loop
    if outermost:
        _count_alike(world, original.__name__, bound)
        _shuffle_alike(world)
    if "callbacks" in bound.arguments:
        in_slices = strategy.placement.slices_from is not None
        if in_slices:
            _check_readers(bound.arguments["callbacks"])
        if not world.is_chief:
            bound.arguments["callbacks"] = _without_writers(bound.arguments["callbacks"], in_slices)
    own = Read(world) if outermost else read.get() or Read(world)
    token, read_token = active.set(strategy), read.set(own)
    try:
        result = original(*bound.args, **bound.kwargs)
        if outermost:
            own.compare()
    finally:
        active.reset(token)
        read.reset(read_token)
    return result


def _count_alike(world: World, name: str, bound: inspect.BoundArguments) -> None:
    """Raise WorkerMismatchError if the arguments show that the workers are about to take different numbers of steps."""
    given = inspect.BoundArguments(bound.signature, bound.arguments.copy())
    given.apply_defaults()
    facts = [f"{key}={given.arguments[key]!r}" for key in _COUNTS if key in given.arguments]
    rows = getattr(given.arguments.get("x"), "shape", None)
    facts += [f"{rows[0]} rows"] if rows else []
    world.agree(
        "loop",
        f"{name}({', '.join(facts)})",
        "The workers are about to take different numbers of steps. Call fit, evaluate and predict with the same data and the same "
        "numbers on all workers.",
    )


def _shuffle_alike(world: World) -> None:
    """Give all workers the chief's random states: Keras shuffles arrays with NumPy's generator and datasets with Python's.

    Keras's own generator is a variable, whose value programs take from the chief.
    """
    now = Randomness.now()
    said = json.loads(world.tell("random state", json.dumps([now.numpy.tolist(), now.python.tolist(), now.rest])))
    if not world.is_chief:
        Randomness(np.array(said[0], now.numpy.dtype), np.array(said[1], np.uint32), said[2]).bring_back()


def _check_readers(given: Any) -> None:
    """Raise ArgumentError for callbacks that read weights on the chief only, if these lie in slices on all workers."""
    for callback in _listed(given):
        kinds = [kind.__name__ for kind in type(callback).__mro__ if kind.__module__.startswith(("keras.", "replicant."))]
        if isinstance(callback, keras.callbacks.BackupAndRestore) or "OrbaxCheckpoint" in kinds:
            what, instead = type(callback).__name__, "replicant.keras.callbacks.BackupAndRestore or ModelCheckpoint"
        elif "TensorBoard" in kinds and getattr(callback, "histogram_freq", 0):
            what, instead = "TensorBoard with histogram_freq", "histogram_freq=0"
        else:
            continue
        raise ArgumentError(
            f"fit: {what} reads weights on the chief only, but under FullyShardedStrategy each of the workers has slices of them. "
            f"Use {instead}."
        )


def _listed(given: Any) -> Sequence[Any]:
    if given is None:
        return ()
    if isinstance(given, keras.callbacks.CallbackList):
        return given.callbacks
    return given if isinstance(given, Sequence) else [given]


def _without_writers(given: Any, in_slices: bool) -> Any:
    """Return the callbacks, with mute ones in place of those that write files.

    To save a model in slices takes all workers, so ModelCheckpoint works on all of them then (``saving/_files.py``).
    """
    made = [callback if in_slices and _saves(callback) else _muted(callback) for callback in _listed(given)]
    if isinstance(given, keras.callbacks.CallbackList):
        given.callbacks = made
        return given
    return None if given is None else made


def _saves(callback: Any) -> bool:
    return isinstance(callback, keras.callbacks.ModelCheckpoint)


def is_mute(callback: Any) -> bool:
    """Return whether `callback` replaces one that writes files, which only the chief has."""
    return getattr(type(callback), _MUTE, False)


def _muted(callback: Any) -> Any:
    kinds = [kind.__name__ for kind in type(callback).__mro__ if kind.__module__.startswith(("keras.", "replicant."))]
    if any(kind in _WRITERS for kind in kinds):
        return type(type(callback).__name__, (keras.callbacks.Callback,), {_MUTE: True})()
    if isinstance(callback, keras.callbacks.BackupAndRestore):  # it restores on all workers, but only the chief may write
        callback._save_model = lambda: None
        callback.delete_checkpoint = False
    return callback
