"""What a loop over several workers reads: datasets that all of them walk in the same order."""

import contextvars
from typing import Any

from ..input._dataset import Dataset
from ..input._options import AutoShardPolicy
from ..input.distributed._same_order import AlikeDataset
from ..strategies._strategy import Strategy

# The strategy over several workers whose model is in its loop.
active: contextvars.ContextVar[Strategy | None] = contextvars.ContextVar("replicant_workers", default=None)


def shared(dataset: Any) -> Any:
    """What a loop over several workers reads instead of a dataset: each worker in the same order, or its own part of it."""
    strategy = active.get()
    if strategy is None or not isinstance(dataset, Dataset):
        return dataset
    world = strategy.placement.world
    assert world is not None, "only then is a strategy noted"
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy not in (AutoShardPolicy.AUTO, AutoShardPolicy.DATA):
        return strategy.experimental_distribute_dataset(dataset)
    return AlikeDataset(dataset, world.values("dataset"))
