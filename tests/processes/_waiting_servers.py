"""Trains with parameter servers, and waits in between for a file of the test: ``_waiting_servers.py FOLDER TRANSPORT``."""

import os
import sys
from pathlib import Path

import numpy as np
from _waiting_training import wait_for

import replicant
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.coordinator import ClusterCoordinator

FOLDER, TRANSPORT = Path(sys.argv[1]), sys.argv[2]


def main() -> None:
    cluster = ClusterSpec({"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2", "127.0.0.1:3"]})
    strategy = replicant.ParameterServerStrategy(SimpleClusterResolver(cluster), transport=TRANSPORT)
    coordinator = ClusterCoordinator(strategy)
    with strategy.scope():
        total = replicant.Variable(0.0)

    @replicant.function
    def add(x):
        total.assign_add(x)

    for part in (range(24), range(24, 48)):
        for number in part:
            coordinator.schedule(add, args=(np.float32(number),))
        coordinator.join()
        if number < 24:
            assert float(total.numpy()) == 276.0
            (FOLDER / f"waits-{os.getpid()}").touch()
            wait_for("go")
    (FOLDER / f"total-{os.getpid()}").write_text(str(float(total.numpy())))


if __name__ == "__main__":
    main()
