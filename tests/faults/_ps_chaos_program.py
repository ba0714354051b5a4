"""Adds many numbers on workers while workers and servers are killed at random moments; prints what came out as one line of JSON.

Arguments: seed, how many functions to schedule, roles to kill ("worker,server"), how many kills.
"""

import json
import os
import random
import signal
import sys
import threading
import time

import jax.numpy as jnp
import numpy as np

import replicant
from replicant.coordinator import ClusterCoordinator, FixedShardsPartitioner


def main(seed: int, num_closures: int, roles: list[str], num_kills: int) -> None:
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

    chance = random.Random(seed)
    rng = np.random.default_rng(seed)
    stop = threading.Event()
    killed: list[str] = []

    def kill() -> None:
        while not stop.is_set() and len(killed) < num_kills:
            time.sleep(chance.uniform(0.05, 0.5))
            role = chance.choice(roles)
            victim = chance.choice(strategy.cluster.workers if role == "worker" else strategy.cluster.servers)
            if victim.ready and not stop.is_set():
                os.kill(victim.running.pid, signal.SIGKILL)
                killed.append(role)
                time.sleep(0.1)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    expected = np.zeros((1000, 8), "int64")
    results, scheduled = [], 0
    while scheduled < num_closures or len(killed) < num_kills:
        rows = rng.integers(0, 1000, 20)
        np.add.at(expected, rows, scheduled + 1)
        results.append(coordinator.schedule(add, args=(np.int32(scheduled + 1), rows)))
        scheduled += 1
        time.sleep(0.001)
    stop.set()
    killer.join()
    coordinator.join()
    want = scheduled * (scheduled + 1) // 2
    stats = coordinator.stats()
    answer = {
        "scheduled": scheduled,
        "killed": killed,
        "total": int(total.numpy()) - want,
        "vector": int(np.abs(vector.numpy() - want).max()),
        "table": int(np.abs(table.numpy() - expected).max()),
        "results": [x.fetch() for x in results] == [2 * (i + 1) for i in range(scheduled)],
        "duplicates": stats["duplicate_pushes"],
        "replaced": stats["replaced_workers"] + stats["replaced_servers"],
    }
    strategy.close()
    print(json.dumps(answer))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(","), int(sys.argv[4]))
