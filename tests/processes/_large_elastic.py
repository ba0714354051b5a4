"""One worker of an elastic job that sums arrays of 4 MB. Worker 1 of the first group kills itself. FOLDER holds all files."""

import os
import signal
import time
from pathlib import Path

import replicant

FOLDER, STEPS, KILLED = Path(os.environ["FOLDER"]), 400, 25


def train():
    strategy = replicant.MultiWorkerMirroredStrategy()
    import jax.numpy as jnp
    import numpy as np

    from replicant.replicas import _peer_swap

    count, rank = strategy.num_replicas_in_sync, strategy.topology.worker_index
    with strategy.scope():
        total, done = replicant.Variable(np.zeros(1_000_000, np.float32)), replicant.Variable(0)
    manager = replicant.CheckpointManager(replicant.Checkpoint(total=total, done=done), FOLDER / "checkpoints", max_to_keep=2)
    manager.restore_or_initialize()

    def step(x):
        total.assign_add(replicant.get_replica_context().all_reduce("SUM", jnp.broadcast_to(x, (1_000_000,))))

    print(f"begins {count} {_peer_swap.is_open()}", flush=True)
    for number in range(int(done.numpy()), STEPS):
        share = strategy.experimental_distribute_values_from_function(lambda _, n=number: np.float32((n + 1) / count))
        strategy.run(step, args=(share,))
        done.assign(number + 1)
        if number % 20 == 19:
            manager.save()
        time.sleep(0.05)
        if number == KILLED and count == 2 and rank == 1 and not (FOLDER / "killed").exists():
            (FOLDER / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    print(f"ends {count} {total.numpy()[0]} {total.numpy()[-1]}", flush=True)


replicant.run_elastic(train)
