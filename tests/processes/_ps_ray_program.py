"""Trains with servers and workers in Ray, kills some of them, and prints the results as one line of JSON.

Ray is started once for all strategies. Argument: a folder for a checkpoint.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np

import replicant
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.cluster.resolvers._ray import join_ray, leave_ray
from replicant.coordinator import ClusterCoordinator, FixedShardsPartitioner, RayTransport, embedding_lookup
from replicant.data import Dataset

SECONDS = 240


def resolver(servers: int, workers: int) -> SimpleClusterResolver:
    return SimpleClusterResolver(ClusterSpec({"ps": ["node1:0"] * servers, "worker": ["node2:0"] * workers}))


def wait_for(condition: Any, what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def loops(answers: dict[str, Any], folder: str) -> None:
    """Run custom loops on two servers and two workers."""
    transport = RayTransport(snapshot_seconds=3600)  # only changes by the coordinator cause snapshots
    strategy = replicant.ParameterServerStrategy(resolver(2, 2), FixedShardsPartitioner(2), transport=transport)
    coordinator = ClusterCoordinator(strategy)
    with strategy.scope():
        first = replicant.Variable(0.0, name="first")  # on server 0
        second = replicant.Variable(0.0, name="second")  # on server 1
        vector = replicant.Variable(np.zeros(5000, "int32"), name="vector")
        table = replicant.Variable(np.arange(80_000, dtype="float32").reshape(10_000, 8), name="table")

    @replicant.function
    def add(x):
        first.assign_add(x)
        second.assign_add(x)
        vector.assign_add(jnp.full(5000, x, "int32"))
        return 2 * x

    def add_slowly(x):
        time.sleep(0.02)
        return add(x)

    doubled = [coordinator.schedule(add, args=(np.float32(i),)) for i in range(20)]
    again = [coordinator.schedule(lambda x: x + 1, args=(value,)) for value in doubled]
    coordinator.join()
    answers["remote values"] = [float(x) for x in coordinator.fetch(again)] == [2.0 * i + 1 for i in range(20)]
    answers["sums"] = [float(first.numpy()), float(second.numpy()), sorted(set(vector.numpy().tolist()))]
    answers["shards"] = [part.shape for part in vector.variables]

    def elements(iterator):
        return next(iterator)

    iterator = iter(coordinator.create_per_worker_dataset(lambda: Dataset.range(1000)))
    got = coordinator.fetch([coordinator.schedule(elements, args=(iterator,)) for _ in range(10)])
    answers["dataset"] = max(map(int, got)) < 10

    @replicant.function
    def rows(ids):
        found = embedding_lookup(table, ids)
        table.scatter_add(ids, jnp.ones((2, 8), "float32"))
        return found

    ids = np.array([3, 9999])
    seen = [coordinator.schedule(rows, args=(ids,)).fetch()[:, 0].tolist() for _ in range(3)]
    answers["rows"] = seen
    answers["rows here"] = table.numpy()[[3, 4, 9999], 1].tolist()

    checkpoint = replicant.Checkpoint(vector=vector, table=table)
    path = checkpoint.save(Path(folder) / "checkpoint")
    vector.assign(jnp.zeros(5000, "int32"))
    checkpoint.restore(path)
    answers["checkpoint"] = sorted(set(vector.numpy().tolist()))

    # A worker is killed.
    first.assign(0.0)
    results = [coordinator.schedule(add_slowly, args=(np.float32(1),)) for _ in range(100)]
    results[10].fetch()
    victim = strategy.cluster.workers[0]
    os.kill(victim.running.pid, signal.SIGKILL)
    coordinator.join(SECONDS)
    answers["worker killed"] = [float(first.numpy()), coordinator.stats()["replaced_workers"]]

    # A server is killed.
    kept = transport.snapshots
    first.assign(1000.0)
    second.assign(1000.0)
    ledgers = [memory.ledger for memory in strategy.cluster.memories]
    wait_for(lambda: [k.updates for k in kept] == [ledger.updates for ledger in ledgers], "no snapshot")
    for _ in range(7):
        coordinator.schedule(add, args=(np.float32(1),))
    coordinator.join(SECONDS)
    before = [float(first.numpy()), float(second.numpy())]
    os.kill(strategy.cluster.servers[0].running.pid, signal.SIGKILL)
    coordinator.schedule(add, args=(np.float32(1),))
    coordinator.join(SECONDS)
    stats = coordinator.stats()
    answers["server killed"] = [before, [float(first.numpy()), float(second.numpy())]]
    answers["lost"] = [stats["lost_updates_by_server"], stats["replaced_servers"]]
    answers["pids"] = [member.running.pid for member in (*strategy.cluster.servers, *strategy.cluster.workers)]
    strategy.close()


def fitted(transport: Any) -> list[np.ndarray]:
    strategy = replicant.ParameterServerStrategy(
        resolver(1, 1)
        if transport == "ray"
        else SimpleClusterResolver(ClusterSpec({"ps": ["127.0.0.1:0"], "worker": ["127.0.0.1:0"]})),
        transport=transport,
    )
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(2)])
        model.compile(
            keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
        )
    x = np.random.default_rng(0).normal(size=(96, 8)).astype("float32")
    history = model.fit(x, (x.sum(axis=1) > 0).astype("int32"), batch_size=16, epochs=2, shuffle=False, verbose=0)
    weights = [np.asarray(w) for w in model.get_weights()]
    strategy.close()
    return [*weights, np.array(history.history["loss"])]


def descendants() -> list[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def main() -> None:
    answers: dict[str, Any] = {}
    environment = dict(os.environ)
    ray = join_ray()
    answers["environment"] = dict(os.environ) == environment
    loops(answers, sys.argv[1])
    answers["still there"] = ray.is_initialized()
    ours, theirs = fitted("ray"), fitted("threads")
    answers["fit"] = max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))
    answers["pids"] += descendants()
    leave_ray()
    answers["ended"] = not ray.is_initialized()
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
