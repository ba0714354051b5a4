"""A ``fit`` by local SGD, of which a worker is killed once: ``FOLDER RANK STEP SAVE_FREQ``, where STEP 0 kills nobody."""

import json
import os
import signal
import sys
from pathlib import Path

import replicant

# isort: split
import keras
import numpy as np

FOLDER, RANK, STEP = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
SAVE_FREQ = int(sys.argv[4]) if sys.argv[4].isdigit() else sys.argv[4]
rng = np.random.default_rng(0)
X = rng.normal(size=(120, 6)).astype(np.float32)
Y = X[:, :1] - X[:, 1:2]


taken: list[int] = []  # not in the callback, because a backup restores what callbacks have


class Killed(keras.callbacks.Callback):
    def __init__(self, worker):
        super().__init__()
        self.worker = worker
        taken.clear()

    def on_train_batch_end(self, batch, logs=None):
        taken.append(batch)
        if self.worker == RANK and len(taken) == STEP and not (FOLDER / "killed").exists():
            (FOLDER / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)


def train():
    strategy = replicant.LocalSGDStrategy(local_steps=4, outer_learning_rate=0.7, outer_momentum=0.5)
    with strategy.scope():
        keras.utils.set_random_seed(3)
        layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dropout(0.1), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        model.compile(keras.optimizers.Adam(0.01), "mse")
    worker = strategy.topology.worker_index
    backup = replicant.keras.callbacks.BackupAndRestore(FOLDER / "backup", save_freq=SAVE_FREQ)
    data = replicant.data.Dataset.from_tensor_slices((X, Y)).shuffle(120, seed=1).batch(12)
    model.fit(data, epochs=3, verbose=0, callbacks=[backup, Killed(worker)])
    answer = {"workers": strategy.topology.num_workers, "taken": len(taken), "weights": [w.tolist() for w in model.get_weights()]}
    (FOLDER / f"answer-{worker}.json").write_text(json.dumps(answer))


replicant.run_elastic(train)
