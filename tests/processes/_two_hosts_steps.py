"""One of two workers on two hosts that train for ever. It writes the number of its steps to the file PROGRESS."""

import os
import time
from pathlib import Path

import replicant
from replicant.data import Dataset

strategy = replicant.MultiWorkerMirroredStrategy()

import jax.numpy as jnp  # noqa: E402

progress = Path(os.environ["PROGRESS"])
with strategy.scope():
    total = replicant.Variable(jnp.zeros(3), name="total")


@replicant.function
def step(batch):
    def replica(x):
        rank = replicant.get_replica_context().replica_id_in_sync_group
        total.assign_add(replicant.get_replica_context().all_reduce("SUM", x.sum() * (1 + rank) * jnp.ones(3)))

    strategy.run(replica, args=(batch,))


progress.write_text("0")
count = 0
while True:
    dataset = Dataset.range(64).shuffle(64, seed=1).batch(8)
    for batch in strategy.experimental_distribute_dataset(dataset):
        step(batch)
        count += 1
        time.sleep(0.02)
    progress.write_text(str(count))
