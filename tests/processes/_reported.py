"""A worker that trains 60 steps with a checkpoint every 10. Rank 1 is slow, and kills itself once, in step 37.

Arguments: the folder of the backups, and "elastic" if the job is.
"""

import os
import signal
import sys
import time
from pathlib import Path

import keras
import numpy as np

import replicant

FOLDER = Path(sys.argv[1])


class Strike(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.count = 0

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        time.sleep(0.15 if os.environ["JAX_PROCESS_ID"] == "1" else 0.03)
        if self.count == 37 and os.environ["JAX_PROCESS_ID"] == "1" and not (FOLDER / "struck").exists():
            (FOLDER / "struck").touch()
            os.kill(os.getpid(), signal.SIGKILL)


def train():
    strategy = replicant.MultiWorkerMirroredStrategy()
    if strategy.num_replicas_in_sync == 1:
        time.sleep(6.0)  # alone, rank 0 would have trained all steps before the other one is there again
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(160, 6)).astype("float32")
    backup = replicant.keras.callbacks.BackupAndRestore(FOLDER / "backup", save_freq=10)
    model.fit(x, x[:, :1], epochs=3, batch_size=8, verbose=0, callbacks=[Strike(), backup])


if sys.argv[2:] == ["elastic"]:
    replicant.run_elastic(train)
else:
    train()
