"""Adds many numbers on workers while workers and servers are killed at random moments, and prints the results as one line of JSON.

Arguments: the seed, the number of closures to schedule, the roles to disturb ("worker,server"), the number of disturbances, and
their kinds ("kill,freeze,pause").
"""

import json
import random
import signal
import sys
import threading
import time
from typing import Any

import jax.numpy as jnp
import numpy as np

import replicant
from replicant.coordinator import ClusterCoordinator, FixedShardsPartitioner
from replicant.coordinator.processes import _cluster

SECONDS = 500
HEARTBEAT_SECONDS = 10.0  # for tests in which some freeze
MOST_LOSSES = 3  # of one closure, which would rightly fail after five
WAYS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP, "pause": signal.SIGSTOP}


class Disturber(threading.Thread):
    """Kills workers and servers, or stops them for good ("freeze") or for a moment ("pause")."""

    def __init__(self, coordinator: ClusterCoordinator, seed: int, roles: list[str], ways: list[str], num_times: int):
        super().__init__(name="disturber", daemon=True)
        self.dispatcher, self.cluster = coordinator._dispatcher, coordinator.strategy.cluster
        self.chance, self.roles, self.ways, self.num_times = random.Random(seed), roles, ways, num_times
        self.done: list[str] = []
        self.lost: list[Any] = []
        self.over = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while len(self.done) < self.num_times and not self.over.wait(self.chance.uniform(0.05, 0.5)):
                self.disturb()
        except Exception as error:  # noqa: BLE001 - reported at the end, because this is a thread
            self.error = error

    def disturb(self) -> None:
        role, way = self.chance.choice(self.roles), self.chance.choice(self.ways)
        victim = self.chance.choice(self.cluster.workers if role == "worker" else self.cluster.servers)
        with self.dispatcher._changed:
            losses = self.dispatcher._queue.most_losses
        if not victim.ready or victim in self.lost or (way != "pause" and losses >= MOST_LOSSES):
            return
        process = victim.running._process
        process.send_signal(WAYS[way])
        self.done.append(f"{way} {role}")
        if way == "pause":
            time.sleep(self.chance.uniform(0.1, 2))
            process.send_signal(signal.SIGCONT)
        else:
            self.lost.append(victim)


def main(seed: int, num_closures: int, roles: list[str], num_times: int, ways: list[str]) -> None:
    if "freeze" in ways:
        _cluster.HEARTBEAT_SECONDS = HEARTBEAT_SECONDS
    strategy = replicant.ParameterServerStrategy(variable_partitioner=FixedShardsPartitioner(2))
    coordinator = ClusterCoordinator(strategy)
    with strategy.scope():
        total = replicant.Variable(np.zeros((), "int32"), name="total")
        vector = replicant.Variable(np.zeros(5000, "int32"), name="vector")
        table = replicant.Variable(np.zeros((1000, 8), "int32"), name="table")

    @replicant.function
    def add(x, rows):
        total.assign_add(x)
        vector.assign_add(jnp.full(5000, x))
        table.scatter_add(rows, jnp.broadcast_to(x, (rows.shape[0], 8)))
        return 2 * x

    rng = np.random.default_rng(seed)
    disturber = Disturber(coordinator, seed, roles, ways, num_times)
    disturber.start()
    deadline = time.monotonic() + SECONDS
    expected = np.zeros((1000, 8), "int64")
    results, scheduled = [], 0
    while (scheduled < num_closures or disturber.is_alive()) and time.monotonic() < deadline:
        rows = rng.integers(0, 1000, 20)
        np.add.at(expected, rows, scheduled + 1)
        results.append(coordinator.schedule(add, args=(np.int32(scheduled + 1), rows)))
        scheduled += 1
        time.sleep(0.001)
    disturber.over.set()
    disturber.join()
    coordinator.join(SECONDS)
    while sum(strategy.cluster.num_replaced.values()) < len(disturber.lost) and time.monotonic() < deadline:
        for member in disturber.lost:  # a frozen member that was not noticed may have been continued by a pause
            member.running._process.send_signal(signal.SIGSTOP)
        time.sleep(0.01)
    want = scheduled * (scheduled + 1) // 2
    stats = coordinator.stats()
    answer = {
        "scheduled": scheduled,
        "done": disturber.done,
        "error": repr(disturber.error),
        "total": int(total.numpy()) - want,
        "vector": int(np.abs(vector.numpy() - want).max()),
        "table": int(np.abs(table.numpy() - expected).max()),
        "results": [x.fetch() for x in results] == [2 * (i + 1) for i in range(scheduled)],
        "duplicates": stats["duplicate_pushes"],
        "replaced": stats["replaced_workers"] + stats["replaced_servers"] - len(disturber.lost),
    }
    strategy.close()
    print(json.dumps(answer))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(","), int(sys.argv[4]), sys.argv[5].split(","))
