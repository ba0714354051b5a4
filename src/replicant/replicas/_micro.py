"""The micro-batch whose part of a replica's loss is being traced, if the replica's batch is computed in several."""

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@dataclasses.dataclass(frozen=True)
class MicroBatch:
    """One of the micro-batches of a batch.

    Args:
        rows: The number of its rows.
        total: The number of rows of the batch.
        number: The number of micro-batches of the batch.
        replica: The number of the replica in ``fit``, where there is no replica context; None if there is only one.
    """

    rows: int
    total: int
    number: int
    replica: Any = None


class _Active(threading.local):
    micro_batch: MicroBatch | None = None


_active = _Active()


def active_micro_batch() -> MicroBatch | None:
    """Return the micro-batch that is being traced; None outside of micro-batches."""
    return _active.micro_batch


@contextmanager
def in_micro_batch(micro_batch: MicroBatch | None) -> Iterator[None]:
    """Trace a part of a batch in the ``with`` block."""
    before, _active.micro_batch = _active.micro_batch, micro_batch
    try:
        yield
    finally:
        _active.micro_batch = before
