"""What a cluster has done so far."""

import dataclasses
import time
from typing import Any

from ..servers._ledger import STALENESS_BINS
from ._rounds import Rounds


@dataclasses.dataclass
class _WorkerCost:
    closures: int = 0
    seconds: float = 0.0
    pulled_bytes: int = 0
    pushed_bytes: int = 0


class Stats:
    """Counts what each worker did. `rounds` are those of a synchronous coordinator."""

    def __init__(self, rounds: Rounds | None = None) -> None:
        self._since = time.monotonic()
        self._rounds = rounds
        self._workers: dict[int, _WorkerCost] = {}
        self._num_mixed = 0

    def note(self, worker: int, seconds: float, pulled: int, pushed: int, is_mixed: bool = False) -> None:
        """Note that a worker ended a closure. With `is_mixed`, an earlier attempt has made some of its changes."""
        self._num_mixed += is_mixed
        cost = self._workers.setdefault(worker, _WorkerCost())
        cost.closures += 1
        cost.seconds += seconds
        cost.pulled_bytes += pulled
        cost.pushed_bytes += pushed

    def summary(self, cluster: Any) -> dict[str, Any]:
        """All counts, as plain numbers."""
        elapsed = max(time.monotonic() - self._since, 1e-9)
        total = sum(cost.closures for cost in self._workers.values())
        ledgers = [memory.ledger for memory in cluster.memories]
        histogram = [int(sum(ledger.staleness[i] for ledger in ledgers)) for i in range(STALENESS_BINS)]
        if self._rounds is not None:
            histogram[0] += self._rounds.accepted
        last = max((i for i, n in enumerate(histogram) if n), default=-1)
        costs = sorted(self._workers.items())
        pulled, pushed = (sum(getattr(cost, name) for _, cost in costs) for name in ("pulled_bytes", "pushed_bytes"))
        return {
            "closures": total,
            "closures_per_second": total / elapsed,
            "closures_by_worker": {w: c.closures for w, c in costs},
            "closures_per_second_by_worker": {w: c.closures / elapsed for w, c in costs},
            "busy_seconds_by_worker": {w: c.seconds for w, c in costs},
            "bytes_per_closure": (pulled + pushed) / total if total else 0.0,
            "pulled_bytes_per_closure": pulled / total if total else 0.0,
            "pushed_bytes_per_closure": pushed / total if total else 0.0,
            "synchronous_updates": 0 if self._rounds is None else self._rounds.updates,
            "dropped_closures": 0 if self._rounds is None else self._rounds.dropped,
            "mixed_closures": self._num_mixed,
            "updates_by_server": [ledger.updates for ledger in ledgers],
            "duplicate_pushes": sum(ledger.duplicates for ledger in ledgers),
            "staleness": histogram[: last + 1],
            "replaced_workers": cluster.num_replaced["worker"],
            "replaced_servers": cluster.num_replaced["server"],
            "lost_updates_by_server": [getattr(memory, "lost_updates", 0) for memory in cluster.memories],
        }
