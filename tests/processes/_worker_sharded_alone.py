"""One worker of a job in which only the chief does what MODE says, while variables lie in slices on all workers."""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import replicant

strategy = replicant.FullyShardedStrategy(min_size=8)

import keras  # noqa: E402
import numpy as np  # noqa: E402

MODE, THEN = os.environ["MODE"].split(",")
FOLDER = os.environ["FOLDER"]
with strategy.scope():
    kernel = replicant.Variable(np.zeros((4, 4), "float32"), name="kernel")
    large = replicant.Variable(np.zeros((2048, 2048), "float32"), name="large")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(16)])
    model.compile("sgd", "mse")


def step():
    kernel.assign_add(np.ones((4, 4), "float32"))
    large.assign_add(large.value() * 0 + 1)


def fit(callbacks=()):
    model.fit(np.ones((8, 4)), np.ones((8, 16)), batch_size=4, verbose=0, callbacks=list(callbacks))


class ChiefReads(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if strategy.is_chief:
            self.model.get_weights()


strategy.run(step)
fit()
began = time.monotonic()
try:
    if MODE == "callback":
        fit([ChiefReads()])
    elif MODE == "differ":
        large.assign(np.full((2048, 2048), strategy.topology.worker_index, "float32"))
    elif MODE == "keras backup":
        fit([keras.callbacks.BackupAndRestore(f"{FOLDER}/backup")])
    elif strategy.is_chief:
        match MODE:
            case "numpy":
                kernel.numpy()
            case "ops":
                keras.ops.sum(model.layers[0].kernel)
            case "get_weights":
                model.get_weights()
            case "save":
                model.save(f"{FOLDER}/model.keras")
            case "checkpoint":
                replicant.Checkpoint(kernel=kernel).save(f"{FOLDER}/ckpt")
            case "assign":
                kernel.assign(np.ones((4, 4), "float32"))
            case "large":
                large.assign(np.ones((2048, 2048), "float32"))
    if THEN == "steps":
        for _ in range(3):
            strategy.run(step)
    elif THEN == "late":
        time.sleep(0 if strategy.is_chief else 600)
    if THEN != "end":
        print(kernel.numpy()[0, 0], flush=True)
except Exception as error:
    print(f"after {time.monotonic() - began:.1f} s {type(error).__name__}: {error}", flush=True)
    raise
