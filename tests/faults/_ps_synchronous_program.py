"""Makes synchronous updates while workers and servers are killed. Arguments: seed, number of closures, number of kills."""

import json
import os
import random
import signal
import sys
import threading
import time

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax.numpy as jnp
import keras
import numpy as np

import replicant
from replicant.coordinator import ClusterCoordinator, FixedShardsPartitioner, embedding_lookup


def main(seed: int, num_functions: int, num_kills: int) -> dict:
    """Return the differences between the variables and the values that they must have."""
    rng = random.Random(seed)
    strategy = replicant.ParameterServerStrategy(variable_partitioner=FixedShardsPartitioner(2))
    coordinator = ClusterCoordinator(strategy, synchronous=True)
    with strategy.scope():
        vector, table = keras.Variable(np.zeros(6, "f4")), keras.Variable(np.zeros((50, 2), "f4"))
        optimizer, calls = keras.optimizers.SGD(1.0), replicant.Variable(0)
        optimizer.build([vector, table])

    @replicant.function
    def train(x):
        with replicant.GradientTape() as tape:
            loss = (vector.value * x).sum() + embedding_lookup(table, jnp.array([3, 40, 3])).sum() * x
        optimizer.apply(tape.gradient(loss, [vector, table]), [vector, table])
        calls.assign_add(1)

    def step(x):
        time.sleep(0.01)
        train(x)

    def kill():
        for _ in range(num_kills):
            time.sleep(0.3 + 1.5 * rng.random())
            member = rng.choice([*strategy.cluster.workers, *strategy.cluster.servers])
            os.kill(member.running.pid, signal.SIGKILL)

    killer, total = threading.Thread(target=kill), 0.0
    killer.start()
    while total == 0.0 or killer.is_alive():
        for i in range(num_functions):
            coordinator.schedule(step, args=(float(i % 7),))
            total += i % 7
        coordinator.join(timeout=300)
    killer.join()
    stats, rounds = coordinator.stats(), int(optimizer.iterations.value)
    answer = {
        "vector": float(np.abs(np.asarray(vector.value) + total).max()),
        "rows": float(np.abs(np.asarray(table.value)[[3, 40]] + total * np.array([[2], [1]])).max()),
        "calls": int(calls.numpy()) - 2 * rounds,
        "updates": stats["synchronous_updates"] - rounds,
        "dropped": stats["dropped_closures"],
    }
    strategy.close()
    return answer


if __name__ == "__main__":
    print(json.dumps(main(*map(int, sys.argv[1:]))))
