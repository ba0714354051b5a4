"""One worker of a job that is preempted. It counts its steps until then."""

import json
import os
from pathlib import Path

import replicant

strategy = replicant.MultiWorkerMirroredStrategy()

import numpy as np  # noqa: E402

with strategy.scope():
    steps = replicant.Variable(0.0)
ones = strategy.experimental_distribute_values_from_function(lambda context: np.float32(1))


def step(x):
    steps.assign_add(replicant.get_replica_context().all_reduce("MEAN", x))


manager = replicant.CheckpointManager(replicant.Checkpoint(steps=steps), os.environ["FOLDER"], max_to_keep=1)
with replicant.PreemptionCheckpointHandler(manager) as handler:
    print(f"from {float(steps.value())}", flush=True)
    for number in range(100_000):
        handler.run(strategy.run, step, args=(ones,))
        if number == 3:
            print("three steps", flush=True)
        Path(os.environ["ANSWER"]).write_text(json.dumps(handler.total_run_calls))
