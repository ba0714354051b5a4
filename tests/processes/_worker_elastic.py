"""One worker of a job that counts how often it sees each line of files that the workers share. It saves every second step."""

import json
import os
import time
from pathlib import Path

import replicant

if (num_devices := int(os.environ["DEVICES"])) > 1:
    replicant.set_virtual_devices(num_devices)
strategy = replicant.MultiWorkerMirroredStrategy()

import jax.numpy as jnp  # noqa: E402

from replicant.data import AutoShardPolicy, Dataset, Options, TextLineDataset  # noqa: E402

folder, num_rows, until = Path(os.environ["FOLDER"]), int(os.environ["NUM_ROWS"]), int(os.environ["UNTIL"])
files = Dataset.list_files(str(folder / "*.txt"), shuffle=True)
lines = files.interleave(TextLineDataset, cycle_length=2, block_length=1).map(int).shuffle(4)
options = Options()
options.experimental_distribute.auto_shard_policy = AutoShardPolicy.FILE
dataset = strategy.experimental_distribute_dataset(lines.repeat(3).batch(6).with_options(options))

with strategy.scope():
    seen = replicant.Variable(jnp.zeros(num_rows, jnp.int32))


def count(numbers):
    mine = jnp.sum(numbers[:, None] == jnp.arange(num_rows)[None], axis=0, dtype=jnp.int32)
    seen.assign_add(replicant.get_replica_context().all_reduce("SUM", mine))


iterator = iter(dataset)
manager = replicant.CheckpointManager(replicant.Checkpoint(seen=seen, data=iterator), folder / "checkpoints", max_to_keep=1)
manager.restore_or_initialize()
for num_steps, batch in enumerate(iterator, 1):
    strategy.run(count, args=(batch,))
    if num_steps % 2 == 0:
        manager.save()
        print(f"saved {num_steps}", flush=True)
    if num_steps == until:
        print("waits for its end", flush=True)
        time.sleep(600)
Path(os.environ["ANSWER"]).write_text(json.dumps(seen.numpy().tolist()))
