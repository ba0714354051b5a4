"""``model.save`` and ``model.save_weights`` of a model whose variables lie in slices on several workers.

All workers call them with the same path, as they save a checkpoint. They read the variables together, and the chief writes.
"""

import contextvars
from collections.abc import Callable
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
    if strategy is None or strategy.placement.world is None or strategy.placement.slices_from is None:
        original(model, *args, **kwargs)
        return
    if _writes.get():  # Keras's methods call its functions
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


def _variables(model: Any) -> list[Any]:
    model.jax_state_sync()  # in a callback of fit, Keras keeps their values elsewhere
    own = getattr(model, "optimizer", None)
    found = list(model.variables)
    for optimizer in [] if own is None else [own]:
        found += optimizer.variables
    for optimizer in other_optimizers(model).values():
        found += optimizer.variables
    return list({id(variable): variable for variable in found}.values())
