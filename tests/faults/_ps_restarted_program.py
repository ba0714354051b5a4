"""Adds numbers on workers, with a checkpoint after every ten, and continues from the last checkpoint when it is started again.

Arguments: a folder for checkpoints, and the number of numbers. The program prints "training", then "saved" after each checkpoint,
and the results as one line of JSON.
"""

import json
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np

import replicant
from replicant.coordinator import ClusterCoordinator, FixedShardsPartitioner

CHUNK = 10


class Progress:
    """The count of numbers that have been added, as an object whose state is saved."""

    def __init__(self) -> None:
        self.count, self.starts = 0, 0

    def state(self) -> Any:
        return [self.count, self.starts]

    def restore(self, state: Any) -> None:
        self.count, self.starts = state


def main(folder: str, count: int) -> None:
    strategy = replicant.ParameterServerStrategy(variable_partitioner=FixedShardsPartitioner(2))
    coordinator = ClusterCoordinator(strategy)
    with strategy.scope():
        total = replicant.Variable(np.zeros((), "int32"), name="total")
        vector = replicant.Variable(np.zeros(1000, "int32"), name="vector")

    @replicant.function
    def add(x):
        total.assign_add(x)
        vector.assign_add(jnp.full(1000, x))

    progress = Progress()
    checkpoint = replicant.Checkpoint(total=total, vector=vector, progress=progress)
    with replicant.CheckpointManager(checkpoint, folder, 2) as manager:
        manager.restore_or_initialize()
        progress.starts += 1
        print("training", flush=True)
        while progress.count < count:
            for x in range(progress.count, progress.count + CHUNK):
                coordinator.schedule(add, args=(np.int32(x),))
            coordinator.join()
            progress.count += CHUNK
            manager.save()
            print("saved", flush=True)
    answer = {"total": int(total.numpy()), "vector": sorted({int(x) for x in vector.numpy()}), "resumed": progress.starts > 1}
    strategy.close()
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
