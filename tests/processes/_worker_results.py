"""One of two workers. It gives what the strategy returned to programs that consume it, and reads variables in slices."""

import gc
import json
import os
from pathlib import Path

import replicant

strategy = replicant.FullyShardedStrategy()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

consume = jax.jit(lambda x: x + 1.0, donate_argnums=0)
ROWS = 1 << 14  # large enough to be cut at once


@replicant.function
def step(x):
    return strategy.run(lambda x: x * (replicant.get_replica_context().replica_id_in_sync_group + 1.0), args=(x,))


def whole_arrays():
    """Return the number of arrays that have the whole variable on this worker."""
    gc.collect()
    shards = [shard.data.shape for x in jax.live_arrays() if not x.is_deleted() for shard in x.addressable_shards]
    return shards.count((ROWS, 256))


consumed = []
for _ in range(9):  # more than are in flight
    values = step(jnp.ones(4))
    total, parts = strategy.reduce("sum", values, axis=None), strategy.gather(values, axis=0)
    row = [int(consume(total)[0]), consume(parts).tolist()]
    consumed.append([*row, total.is_deleted(), parts.is_deleted()])

with strategy.scope():
    table = replicant.Variable(np.ones((ROWS, 256), np.float32))
before, summed = whole_arrays(), float(np.sum(table.read_value()))
Path(os.environ["ANSWER"]).write_text(json.dumps({"consumed": consumed, "sum": summed, "whole": [before, whole_arrays()]}))
