"""Train one model on several processes, on one host or many: every process runs this program.

    replicant launch --workers 2 examples/many_workers.py
    torchrun --nproc-per-node 2 examples/many_workers.py
    mpirun -n 2 python examples/many_workers.py

The strategy finds the other processes in the variables that the launcher sets. The global batch grows with their number. If you
halve --batch-size-per-replica for twice as many processes, the results stay the same except for their last bits. If you start the
program alone, it trains on the devices of its own process.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras reads it once, when it is imported

import keras

import replicant
from _datasets import DataError, load
from _options import parse
from replicant.data import Dataset

SEED = 1


def main(argv: list[str] | None = None) -> int:
    """Run the program and return its exit status."""
    options = parse("One model, many processes.", argv, epochs=2, replicas=1, batch_size=64)
    replicant.set_virtual_devices(options.replicas)  # in each process
    strategy = replicant.MultiWorkerMirroredStrategy()  # it meets the others, before anything else starts JAX
    keras.utils.set_random_seed(SEED)
    try:
        data = load(options.data, options.data_dir)
    except DataError as error:
        print(f"many_workers.py: {error}", file=sys.stderr)
        return 2

    with strategy.scope():
        layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
        model: Any = keras.Sequential([keras.Input(data.train_images[0].shape), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])
    train = Dataset.from_tensor_slices((data.train_images, data.train_labels))
    global_batch_size = options.batch_size_per_replica * strategy.num_replicas_in_sync
    train = train.shuffle(len(data.train_labels), seed=SEED).batch(global_batch_size)
    model.fit(train, epochs=options.epochs, verbose=2 if strategy.is_chief else 0)
    found = model.evaluate(data.test_images, data.test_labels, verbose=0, return_dict=True)
    topology = strategy.topology
    print(f"Worker {topology.worker_index} of {topology.num_workers}: test loss {found['loss']:.4f}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
