"""``model.save``, ``model.save_weights`` and ``model.export`` under a strategy of several workers.

If the model's variables lie in slices, all workers call them with the same path, as they save a checkpoint. They read the variables
together, and the chief writes. Otherwise each worker that calls them writes. Several may name the same file: each writes one
of its own, which then takes the place of the file.
"""

import contextvars
import functools
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...checkpoint.workers._chief import write_once
from ...errors import ContextError
from ...kernels import disabled
from ...replicas._context import active_replica_context
from ...replicas._own_mesh import in_a_trace, without_mesh
from ...variables._slices import in_pieces, reading_once
from ..state._owner import strategy_of
from ..state._refs import ref_of_keras
from ..steps._stateful_step import other_optimizers

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
        write_once(write, what=f"the model {model.name!r}")


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


def export(original: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
    """Write what a model computes after training, in a format of other libraries, without Replicant's CPU kernels.

    Raises:
        ContextError: If it is called while a step is traced.
    """
    if active_replica_context() is not None or in_a_trace():
        raise ContextError(
            f"export of the model {model.name!r} was called while a step is traced (in `run`, in a `function` or in jax.jit), when "
            "weights have no values. Call it outside, after the step."
        )
    model.jax_state_sync()  # in a callback of fit, Keras keeps their values elsewhere
    strategy = strategy_of(model)
    with disabled(), without_mesh(strategy is not None):
        write = original
        if strategy is not None and strategy.placement.world is not None:
            write = functools.update_wrapper(functools.partial(_export_apart, original), original)
        save(write, model, filepath, *args, **kwargs)


def _export_apart(original: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
    """Export into a folder of this worker's own, and then put each file in its place, because others may do the same."""
    if not isinstance(filepath, str | Path) or "://" in str(filepath):
        original(model, filepath, *args, **kwargs)
        return
    if len(args) < 2:  # it would print the name of the other folder
        kwargs.setdefault("verbose", False)
    path = Path(filepath)
    own = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        own.mkdir(parents=True)
        original(model, type(filepath)(own / path.name), *args, **kwargs)  # Keras looks at the end of the name
        for file in sorted(each for each in own.rglob("*") if not each.is_dir()):
            place = path.parent / file.relative_to(own)
            place.parent.mkdir(parents=True, exist_ok=True)
            file.replace(place)
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _variables(model: Any) -> list[Any]:
    model.jax_state_sync()  # in a callback of fit, Keras keeps their values elsewhere
    own = getattr(model, "optimizer", None)
    found = list(model.variables)
    for optimizer in [] if own is None else [own]:
        found += optimizer.variables
    for optimizer in other_optimizers(model).values():
        found += optimizer.variables
    return list({id(variable): variable for variable in found}.values())
