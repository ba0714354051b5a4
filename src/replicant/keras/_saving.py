"""``model.save`` and ``model.save_weights`` under a strategy of several workers.

If the model's variables lie in slices, all workers call them with the same path, as they save a checkpoint. They read the variables
together, and the chief writes. Otherwise each worker that calls them writes. Several may name the same file: each writes one
of its own, which then takes the place of the file.
"""

import contextvars
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..checkpoint._chief import write_once
from ..variables._slices import in_pieces, reading_once
from ._fit import strategy_of
from ._refs import ref_of_keras
from ._stateful_step import other_optimizers

_writes: contextvars.ContextVar[bool] = contextvars.ContextVar("replicant_writes", default=False)  # whether the chief writes now


def save(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> None:
    """Save a model, or only its weights. All workers must call it if their strategy cuts variables."""
    strategy = strategy_of(model)
    world = None if strategy is None else strategy.placement.world
    if strategy is None or world is None or _writes.get():  # Keras's methods call its functions
        original(model, *args, **kwargs)
        return
    if strategy.placement.slices_from is None:
        original(model, *args, **kwargs)
        return
    refs = [ref for variable in _variables(model) if in_pieces((ref := ref_of_keras(variable)).get_raw()[0])]
    reads = [(ref.name, ref.get_raw()[0], ref.read_eagerly) for ref in refs]

    def write() -> None:
        token = _writes.set(True)
        try:
            original(model, *args, **kwargs)
        finally:
            _writes.reset(token)

    with reading_once(f"{original.__name__} of the model {model.name!r}", reads):
        write_once(write)


def save_file(original: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
    """Save a model, or only its weights, by a function that writes one file or a folder."""
    strategy = strategy_of(model)
    world = None if strategy is None else strategy.placement.world
    in_parts = any(args) or kwargs.get("max_shard_size") is not None or not kwargs.get("zipped", True)
    if world is None or in_parts or not isinstance(filepath, str | Path) or "://" in str(filepath):
        original(model, filepath, *args, **kwargs)
        return
    path = Path(filepath)
    own = path.with_name(f".worker-{world.process_id}-{path.name}")  # Keras looks at the end of the name
    try:
        original(model, type(filepath)(own), *args, **kwargs)
        own.replace(path)
    finally:
        own.unlink(missing_ok=True)


def _variables(model: Any) -> list[Any]:
    model.jax_state_sync()  # in a callback of fit, Keras keeps their values elsewhere
    own = getattr(model, "optimizer", None)
    found = list(model.variables)
    for optimizer in [] if own is None else [own]:
        found += optimizer.variables
    for optimizer in other_optimizers(model).values():
        found += optimizer.variables
    return list({id(variable): variable for variable in found}.values())
