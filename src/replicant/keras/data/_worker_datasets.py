"""The datasets that a loop over several workers reads, in the same order on all of them."""

import contextvars
from typing import Any

from ...input._dataset import Dataset
from ...input._options import AutoShardPolicy
from ...input.distributed._same_order import AlikeDataset
from ...strategies._strategy import Strategy

# The strategy of the model whose loop is running, if it has several workers.
active: contextvars.ContextVar[Strategy | None] = contextvars.ContextVar("replicant_workers", default=None)


def shared(dataset: Any) -> Any:
    """Return what a loop over several workers reads instead of `dataset`: all of it in the same order, or the worker's part."""
    strategy = active.get()
    if strategy is None or not isinstance(dataset, Dataset):
        return dataset
    world = strategy.placement.world
    assert world is not None, "`active` is only set for a strategy over several workers"
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy not in (AutoShardPolicy.AUTO, AutoShardPolicy.DATA):
        return strategy.experimental_distribute_dataset(dataset)
    return AlikeDataset(dataset, world.values("dataset"))
