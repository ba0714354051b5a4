"""Adds up 0 ... 47 on all workers, and waits in the middle for a file that the test makes: ``_waiting_training.py FOLDER``."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import replicant
from replicant.data import Dataset

FOLDER = Path(sys.argv[1])
SECONDS = 300.0


def wait_for(name: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not (FOLDER / name).exists():
        assert time.monotonic() < deadline, f"{name} did not come"
        time.sleep(0.02)


def train() -> None:
    strategy = replicant.MultiWorkerMirroredStrategy()
    with strategy.scope():
        total = replicant.Variable(0.0, aggregation="SUM")

    @replicant.function
    def step(x: Any) -> None:
        strategy.run(lambda x: total.assign_add(x.astype("float32").sum()), args=(x,))

    for count, batch in enumerate(strategy.experimental_distribute_dataset(Dataset.range(48).batch(8))):
        step(batch)
        if count == 2:
            assert float(total.numpy()) == 276.0  # all workers have exchanged values, so all sockets listen
            (FOLDER / f"waits-{os.getpid()}").touch()
            wait_for("go")
    (FOLDER / f"total-{os.getpid()}").write_text(str(float(total.numpy())))


if __name__ == "__main__":
    replicant.run_elastic(train) if os.environ.get("REPLICANT_ELASTIC") else train()
