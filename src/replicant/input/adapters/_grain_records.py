"""Which records Grain reads, and how it draws for them: it loses some, and does other things of which it does not tell."""

import warnings
from typing import Any


def shards_of(loader: Any) -> int:
    """Return into how many shards a DataLoader cuts its records, of which it reads one; 1 for other objects."""
    return int(getattr(getattr(loader, "_shard_options", None), "shard_count", 1))


def warn_of_records(loader: Any) -> None:
    """Warn of records that the sampler of a DataLoader loses, and of batches that depend on its number of processes."""
    count, lost = shards_of(loader), _lost(loader)
    if lost:
        warnings.warn(
            f"This Grain DataLoader never reads {lost} of the records of its shard (shard {_options(loader).shard_index} of "
            f"{count}): of a number that is not a multiple of {count}, Grain's IndexSampler gives some shards one record more than "
            "are read in an epoch. Leave shard_options out, so that Replicant shares every batch among the workers.",
            stacklevel=4,
        )
    batches = _batches(loader)
    if batches is not None and batches[0] != batches[1]:
        there, alone, workers = *batches, _workers(loader)
        warnings.warn(
            f"This Grain DataLoader makes {there} batches with worker_count={workers}, and {alone} without processes: each process "
            "makes batches of its own, so their rows and number depend on how many there are. Batch with Replicant instead, or use "
            "worker_count=0.",
            stacklevel=4,
        )


def warn_of_equal_draws(dataset: Any) -> None:
    """Warn of a ``random_map`` behind a slice such as ``[rank::world]``, which draws for positions in the slice."""
    drawn, node = False, dataset
    while node is not None:
        names = {base.__name__ for base in type(node).__mro__}
        drawn = drawn or bool(names & {"RandomMapMapDataset", "RandomMapIterDataset"})
        step = getattr(node, "_step", 1) if "SliceMapDataset" in names else 1
        if drawn and step > 1:
            warnings.warn(
                f"This Grain dataset draws random numbers in random_map behind a slice with the step {step}. Grain draws for the "
                f"position in the slice, so the n-th records of all {step} slices get the same numbers if their seed is the same. "
                "Put random_map before the slice, or give each slice a seed of its own.",
                stacklevel=4,
            )
            return
        node = next(iter(getattr(node, "_parents", ())), None)


def _options(loader: Any) -> Any:
    return loader._shard_options  # noqa: SLF001 - Grain has no public name for it


def _records(loader: Any) -> tuple[int, int] | None:
    """The records of an epoch of a shard, and how many are read in all epochs; None if that is not known."""
    sampler: Any = getattr(loader, "_sampler", None)
    epochs = getattr(sampler, "_num_epochs", None)
    keys = getattr(sampler, "_record_keys", None)
    if type(sampler).__name__ != "IndexSampler" or epochs is None or keys is None:
        return None
    return len(keys), len(sampler) // shards_of(loader)  # as the DataLoader counts


def _lost(loader: Any) -> int:
    found = _records(loader)
    if found is None:
        return 0
    per_epoch, read = found
    return max(0, per_epoch - read)


def _workers(loader: Any) -> int:
    return int(getattr(getattr(loader, "_multiprocessing_options", None), "num_workers", 0))


def _batches(loader: Any) -> tuple[int, int] | None:
    """The number of batches that the processes make together, and that without processes; None if that is not known."""
    workers, found = _workers(loader), _records(loader)
    operations = getattr(loader, "_operations", ())
    if workers < 2 or found is None or [type(each).__name__ for each in operations if not _one_to_one(each)] != ["Batch"]:
        return None
    size, drops = next((op.batch_size, op.drop_remainder) for op in operations if type(op).__name__ == "Batch")
    shares = [len(range(worker, found[1], workers)) for worker in range(workers)]
    return sum(_count(share, size, drops=drops) for share in shares), _count(found[1], size, drops=drops)


def _one_to_one(operation: Any) -> bool:
    names = {base.__name__ for base in type(operation).__mro__}
    return not names & {"Batch", "Filter", "FilterTransform", "FlatMap", "FlatMapTransform"}


def _count(records: int, size: int, *, drops: bool) -> int:
    return records // size if drops else -(-records // size)
