"""Warns of optimizers of KerasRS's embedding tables that nobody uses, outside of TPUs."""

import warnings
from typing import Any

_ON_THE_DEVICE = "default_device"  # where KerasRS places tables that have no SparseCore


def warn_of_unused_optimizers(model: Any) -> None:
    """Warn if a table names another optimizer than the model's, which trains it all the same."""
    own = getattr(model, "optimizer", None)
    if own is None:
        return
    kind = type(own).__name__
    for layer in model._flatten_layers():
        if type(layer).__name__ == "DistributedEmbedding" and type(layer).__module__.startswith("keras_rs."):
            ignored = _ignored(layer, kind)
            if ignored:
                named = ", ".join(f"{table!r} ({optimizer})" for table, optimizer in sorted(ignored.items()))
                warnings.warn(
                    f"fit of {model.name!r}: KerasRS uses the optimizers of tables only on TPUs with SparseCores. Here, the "
                    f"model's {kind} trains all tables of {layer.name!r}, also {named}. Compile the model with the optimizer of "
                    "its tables, or name the model's in TableConfig.",
                    stacklevel=6,
                )


def _ignored(layer: Any, own: str) -> dict[str, str]:
    """The tables that name another optimizer, which KerasRS ignores."""
    placed = getattr(layer, "_placement_to_path_to_feature_config", {}).get(_ON_THE_DEVICE, {})
    named = {config.table.name: _name(config.table.optimizer) for config in placed.values()}
    return {table: optimizer for table, optimizer in named.items() if optimizer.lower() != own.lower()}


def _name(optimizer: Any) -> str:
    return optimizer if isinstance(optimizer, str) else type(optimizer).__name__
