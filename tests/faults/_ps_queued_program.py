"""Kills workers that hold many closures at once, and prints the results as one line of JSON.

Arguments: the number of closures to schedule before each kill, and the number of kills.
"""

import functools
import json
import math
import os
import signal
import sys
import time

import numpy as np

import replicant
from replicant.coordinator import ClusterCoordinator
from replicant.coordinator.scheduling import _dispatch
from replicant.coordinator.scheduling._queue import ClosureQueue

SECONDS = 300
_dispatch.ClosureQueue = functools.partial(ClosureQueue, deep_seconds=math.inf)  # type: ignore[misc, assignment]  # on slow machines, too


def main(num_closures: int, num_kills: int) -> None:
    strategy = replicant.ParameterServerStrategy()
    coordinator = ClusterCoordinator(strategy)
    with strategy.scope():
        total = replicant.Variable(np.zeros((), "int32"), name="total")

    @replicant.function
    def add(x):
        total.assign_add(x)
        return 2 * x

    results, held = [], []
    queue = coordinator._dispatcher._queue
    for turn in range(num_kills + 1):
        results += [coordinator.schedule(add, args=(np.int32(len(results) + i),)) for i in range(num_closures)]
        if turn < num_kills:
            held.append(kill_one_that_holds_many(strategy.cluster, queue))
        coordinator.join(SECONDS)
    count = len(results)
    answer = {
        "total": int(total.numpy()) - count * (count - 1) // 2,
        "results": [x.fetch() for x in results] == [2 * i for i in range(count)],
        "held": min(held),
        "replaced": coordinator.stats()["replaced_workers"],
    }
    strategy.close()
    print(json.dumps(answer))


def kill_one_that_holds_many(cluster, queue) -> int:
    """Kill a worker that holds many closures, and return how many it held just before."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        for worker in cluster.workers:
            held = queue.held_by(worker.client)
            if worker.ready and held > 4:
                os.kill(worker.running.pid, signal.SIGKILL)
                return held
        time.sleep(0.0005)
    raise TimeoutError("No worker was given many functions.")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
