"""Compares local SGD of two workers with the synchronous strategy: accuracy, and the bytes that the workers exchange.

Each contestant trains an MLP (784-256-256-10) with ``fit`` on MNIST or Fashion-MNIST: a global batch of 128, SGD with momentum, and
some epochs. Synchronous workers send their gradients at each step; with local SGD, they send the changes of the weights once per
round. The bytes are counted: one worker's arrays, without what TCP and the coordination service add.
Run: ``python benchmarks/local_sgd.py --data FOLDER [--epochs 3] [--seeds 1]``, where FOLDER holds the IDX files.
"""

import argparse
import gzip
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

BATCH, WIDTHS = 128, (784, 256, 256, 10)
DILOCO = {"outer_learning_rate": 0.7, "outer_momentum": 0.9}
WAYS: dict[str, Any] = {
    "synchronous": None,
    "k=1": [1, {}],
    "k=5": [5, {}],
    "k=20": [20, {}],
    "k=100": [100, {}],
    "k=5, outer momentum": [5, DILOCO],
    "k=20, outer momentum": [20, DILOCO],
    "k=100, outer momentum": [100, DILOCO],
}
SECONDS = 600.0


def images(folder: Path, part: str) -> tuple[Any, Any]:
    """Read the images, from 0 to 1, and labels of one part of a data set."""
    import numpy as np

    pictures = gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes())
    x = np.frombuffer(pictures, np.uint8, offset=16).reshape(-1, WIDTHS[0]).astype(np.float32) / 255
    return x, np.frombuffer(labels, np.uint8, offset=8).astype(np.int32)


def contestant(name: str, folder: Path, epochs: int, seed: int) -> dict[str, float]:
    """Train, and return the accuracy on the test images and the megabytes that this worker has sent."""
    import replicant

    way = WAYS[name]
    strategy: Any = (
        replicant.MultiWorkerMirroredStrategy() if way is None else replicant.LocalSGDStrategy(local_steps=way[0], **way[1])
    )
    import keras
    import numpy as np

    (x, y), (test_x, test_y) = images(folder, "train"), images(folder, "t10k")
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        layers = [keras.layers.Dense(width, "relu") for width in WIDTHS[1:-1]]
        model: Any = keras.Sequential([keras.Input(WIDTHS[:1]), *layers, keras.layers.Dense(WIDTHS[-1])])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
    model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0)
    accuracy = model.evaluate(test_x, test_y, batch_size=500, verbose=0, return_dict=True)["accuracy"]
    num_bytes = sum(np.asarray(w).nbytes for w in model.trainable_weights)
    steps = math.ceil(len(x) / BATCH)
    sums = epochs * (steps if way is None else math.ceil(steps / way[0]))
    return {"accuracy": accuracy, "exchanges": sums, "megabytes": sums * num_bytes / 1e6}


def main() -> None:
    """Measure, and print a row for each way."""
    parser = argparse.ArgumentParser(description="Compare local SGD with synchronous workers.")
    parser.add_argument("--data", type=Path, required=True, help="a folder with the IDX files")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        print(json.dumps(contestant(options.contestant, options.data, options.epochs, options.seed)), flush=True)
        return
    environ = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()} | {"KERAS_BACKEND": "jax"}
    for name in WAYS:
        found = []
        for seed in range(options.seeds):
            command = [sys.executable, "-m", "replicant", "launch", "--workers", "2", __file__, "--contestant", name]
            command += ["--data", str(options.data), "--epochs", str(options.epochs), "--seed", str(seed)]
            done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False)
            lines = [line for line in done.stdout.splitlines() if line.startswith("[0] {")]
            if done.returncode or not lines:
                raise SystemExit(done.stdout[-1000:] + done.stderr[-2000:])
            found.append(json.loads(lines[0][4:]))
        accuracy = statistics.mean(each["accuracy"] for each in found)
        each = found[0]
        print(f"{name:<24} {100 * accuracy:6.2f} %  {each['exchanges']:6.0f} exchanges  {each['megabytes']:8.1f} MB", flush=True)


if __name__ == "__main__":
    main()
