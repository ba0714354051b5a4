"""Two steps of training, in each process that a launcher starts. FOLDER is where the answers go.

With DIES, the process of that rank kills itself after the first step.
"""

import json
import os
import signal
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

import replicant
from replicant.data import Dataset


class Dies(keras.callbacks.Callback):
    """Ends this process like a crash if it is the one."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if os.environ.get("DIES") == str(self.rank):
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    strategy = replicant.MultiWorkerMirroredStrategy()
    rank, count = strategy.topology.worker_index, strategy.topology.num_workers
    inputs = np.linspace(-1, 1, 16 * 3, dtype="float32").reshape(16, 3)
    with strategy.scope():
        model: Any = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
        model.set_weights([np.arange(6, dtype="float32").reshape(3, 2) / 6, np.zeros(2, "float32")])
    data = Dataset.from_tensor_slices((inputs, inputs[:, :2] ** 2)).batch(8)
    history = model.fit(data, epochs=1, verbose=0, callbacks=[Dies(rank)])
    detection = replicant.cluster.detect()
    answer = {
        "rank": rank,
        "count": count,
        "source": detection.source,
        "loss": history.history["loss"],
        "weights": [weights.tolist() for weights in model.get_weights()],
    }
    (Path(os.environ["FOLDER"]) / f"answer-{rank}-of-{count}.json").write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
