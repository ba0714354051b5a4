"""The program that tests run with `replicant launch --engine ray`: ``_ray_training.py WHAT FOLDER``."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

RANK, GENERATION = int(os.environ["JAX_PROCESS_ID"]), int(os.environ["REPLICANT_GENERATION"])


def fails(folder: Path) -> None:
    """End rank 1 with an exit code of its own. The launcher ends the other rank."""
    print(f"rank {RANK} of {os.environ['JAX_NUM_PROCESSES']} runs")
    if RANK == 1:
        sys.exit(7)
    time.sleep(600)


def waits(folder: Path) -> None:
    """Wait until the test kills the launcher."""
    (folder / f"pid-{RANK}").write_text(str(os.getpid()))
    time.sleep(600)


class Progress:
    """The number of steps, as an object whose state is saved."""

    done = 0

    def state(self) -> Any:
        return self.done

    def restore(self, state: Any) -> None:
        self.done = state


def trains(folder: Path) -> None:
    """Add up 0 ... 47. Rank 1 is killed once, after a backup."""
    import replicant
    from replicant.data import Dataset

    strategy = replicant.MultiWorkerMirroredStrategy()
    with strategy.scope():
        total = replicant.Variable(0.0, aggregation="SUM")

    @replicant.function
    def step(x: Any) -> None:
        strategy.run(lambda x: total.assign_add(x.astype("float32").sum()), args=(x,))

    batches = strategy.experimental_distribute_dataset(Dataset.range(48).batch(8))
    progress, iterator = Progress(), iter(batches)
    checkpoint = replicant.Checkpoint(total=total, progress=progress, iterator=iterator)
    with replicant.CheckpointManager(checkpoint, folder / "backups", 2) as manager:
        manager.restore_or_initialize()
        print(f"begins at step {progress.done}", flush=True)
        for batch in iterator:
            step(batch)
            progress.done += 1
            if progress.done == 3:
                manager.save()
            if (RANK, GENERATION, progress.done) == (1, 0, 4):
                os.kill(os.getpid(), signal.SIGKILL)
    print(f"total {float(total.numpy())} with {strategy.num_replicas_in_sync} replicas", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
