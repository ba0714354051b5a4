"""What a cluster has done so far."""

import dataclasses
import time
from typing import Any

from ._ledger import STALENESS_BINS


@dataclasses.dataclass
class _WorkerCost:
    closures: int = 0
    seconds: float = 0.0
    pulled_bytes: int = 0
    pushed_bytes: int = 0


class Stats:
    """Counts by worker."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._workers: dict[int, _WorkerCost] = {}

    def note(self, worker: int, seconds: float, pulled: int, pushed: int) -> None:
        """A worker ended a closure."""
        cost = self._workers.setdefault(worker, _WorkerCost())
        cost.closures += 1
        cost.seconds += seconds
        cost.pulled_bytes += pulled
        cost.pushed_bytes += pushed

    def summary(self, cluster: Any) -> dict[str, Any]:
        """Everything, as plain numbers."""
        elapsed = max(time.monotonic() - self._since, 1e-9)
        total = sum(cost.closures for cost in self._workers.values())
        ledgers = [memory.ledger for memory in cluster.memories]
        histogram = [int(sum(ledger.staleness[i] for ledger in ledgers)) for i in range(STALENESS_BINS)]
        last = max((i for i, n in enumerate(histogram) if n), default=-1)
        moved = sum(c.pulled_bytes + c.pushed_bytes for c in self._workers.values())
        return {
            "closures": total,
            "closures_per_second": total / elapsed,
            "closures_by_worker": {w: c.closures for w, c in sorted(self._workers.items())},
            "busy_seconds_by_worker": {w: c.seconds for w, c in sorted(self._workers.items())},
            "bytes_per_closure": moved / total if total else 0.0,
            "updates_by_server": [ledger.updates for ledger in ledgers],
            "duplicate_pushes": sum(ledger.duplicates for ledger in ledgers),
            "staleness": histogram[: last + 1],
            "replaced_workers": cluster.num_replaced["worker"],
            "replaced_servers": cluster.num_replaced["server"],
        }
