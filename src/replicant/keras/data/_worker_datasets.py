"""The datasets that a loop over several workers reads, in the same order on all of them."""

from typing import Any

from ...input._dataset import Dataset
from ...input._options import AutoShardPolicy
from ...input.distributed._same_order import AlikeDataset
from ..state._loop_run import current_loop


def shared(dataset: Any) -> Any:
    """Return what a loop over several workers reads instead of `dataset`: all of it in the same order, or the worker's part."""
    loop = current_loop()
    strategy = None if loop is None else loop.workers
    if strategy is None or not isinstance(dataset, Dataset):
        return dataset
    world = strategy.placement.world
    assert world is not None, "workers are those of a strategy over several"
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy not in (AutoShardPolicy.AUTO, AutoShardPolicy.DATA):
        return strategy.experimental_distribute_dataset(dataset)
    return AlikeDataset(dataset, world.values("dataset"))
