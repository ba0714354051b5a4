"""How long the workers wait for one another while they write a checkpoint together."""

import concurrent.futures
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from replicant.checkpoint.format._parts import Parts
from replicant.checkpoint.format._storage import read
from replicant.checkpoint.workers import _chief
from replicant.checkpoint.workers._collective_save import Together
from replicant.cluster import Membership
from replicant.cluster.exchange._world import Timeouts, World
from replicant.errors import WorkerLostError

from ._counting_store import CountingStore

VALUE = np.arange(2 << 10, dtype="float32")  # slices of 4 KiB
PATIENCE = 1.0  # seconds


def save(path: Path, wait: Callable[[threading.Event], object]) -> None:
    """Save two slices with two workers. The second one waits before it writes, and may know when the first one has ended."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("replica",))
    array = jax.device_put(VALUE, NamedSharding(mesh, PartitionSpec("replica")))
    store, has_ended = CountingStore(), threading.Event()
    worlds = [
        World(store.of(rank), Membership(rank, 2, "a:1"), ["host"] * 2, timeouts=Timeouts(exchange=PATIENCE)) for rank in (0, 1)
    ]
    parts = [Parts({"x": array}, fetch=False) for _ in worlds]
    for rank, each in enumerate(parts):
        each.pieces = {rank: each.pieces[rank]}
    (piece,) = parts[1].pieces[1]
    parts[1].pieces[1] = [piece._replace(read=lambda: (wait(has_ended), piece.read())[1])]

    def write(rank: int) -> None:
        try:
            Together(worlds[rank], path, path.with_name(".ckpt.partial")).write({}, {}, parts[rank])
        finally:
            has_ended.set()

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        chief, other = pool.submit(write, 0), pool.submit(write, 1)
        chief.result()
        other.result()


@pytest.mark.long
def test_a_slow_disk_is_awaited_as_long_as_its_bytes_may_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_chief, "LEAST_SPEED", 1 << 8)  # 16 s for a slice
    save(tmp_path / "ckpt", lambda _: time.sleep(2 * PATIENCE))
    np.testing.assert_array_equal(read(tmp_path / "ckpt")[1]["x"], VALUE)


@pytest.mark.long
def test_a_disk_that_does_not_answer_is_not_awaited_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_chief, "LEAST_SPEED", 1 << 14)  # 0.25 s for a slice
    told = (
        "Worker 0 waited 1.25 s in 'the checkpoint ckpt: its parts' for worker 1 (host), which did not come. No worker has more "
        "than 4096 bytes to write. So this one, which still lives, writes less than 16384 bytes per second, or its disk does not "
        "answer. To wait longer, set REPLICANT_EXCHANGE_TIMEOUT."
    )
    with pytest.raises(WorkerLostError, match=re.escape(told)):
        save(tmp_path / "ckpt", lambda has_ended: has_ended.wait(20))
