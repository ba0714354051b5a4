"""Local SGD: each worker trains by itself for some steps, and then the workers average what these have changed.

    replicant launch --workers 2 examples/local_sgd.py --local-steps 20
    replicant launch --workers 2 examples/local_sgd.py --outer-learning-rate 0.7 --outer-momentum 0.9

This is for links that are too slow for an exchange at each step. The numbers are not those of one device, because the weights of
the workers drift apart within a round, so look at the accuracy. The second line's options are DiLoCo's (Douillard et al. 2023).
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras reads it once, when it is imported

import jax
import keras
import numpy as np

import replicant


class LocalSGD:
    """Trains a model in rounds. Make model and optimizer in ``local.scope()``."""

    def __init__(self, local_steps: int, learning_rate: float = 1.0, momentum: float = 0.0):
        self.workers = replicant.MultiWorkerMirroredStrategy()  # for the exchanges; it meets the others
        self.local = replicant.MirroredStrategy(jax.local_devices())  # for the steps of this worker
        self._local_steps, self._learning_rate, self._momentum = local_steps, learning_rate, momentum
        self._speed: list[Any] = []  # the outer momentum

    def train(self, model: Any, batches: Iterable[tuple[Any, Any]]) -> int:
        """Train on this worker's batches until those of all workers have ended. Return the number of rounds."""
        weights = floats_of(model)
        for weight, value in zip(weights, self._sums([value_of(w) for w in weights], of_chief=True), strict=True):
            weight.assign(value)  # all begin with the chief's
        mine, num_rounds = iter(batches), 0
        while self._round(model, itertools.islice(mine, self._local_steps)):
            num_rounds += 1
        return num_rounds

    def _round(self, model: Any, batches: Iterable[tuple[Any, Any]]) -> bool:
        """Take a round. Return whether any worker had a batch. Those without one take part, with no weight."""
        weights, trained = floats_of(model), len(model.trainable_weights)
        anchor, num_rows = [value_of(w) for w in weights], 0  # what the weights are now, whoever has assigned them
        for x, y in batches:
            model.train_on_batch(x, y)
            num_rows += len(x)
        changes = [(value_of(w) - before) * np.float32(num_rows) for w, before in zip(weights, anchor, strict=True)]
        *changes, total = self._sums([*changes, np.float32(num_rows)])
        if not total:
            return False
        steps = [change / total for change in changes]
        if self._momentum:  # Nesterov's
            speed = self._speed or [0.0] * trained
            self._speed = [self._momentum * v + step for v, step in zip(speed, steps, strict=False)]
            steps[:trained] = [step + self._momentum * v for step, v in zip(steps, self._speed, strict=False)]
        rates = [self._learning_rate] * trained + [1.0] * (len(weights) - trained)  # moving statistics become the mean
        for weight, before, rate, step in zip(weights, anchor, rates, steps, strict=True):
            weight.assign(before + rate * step)
        return True

    def _sums(self, values: list[Any], *, of_chief: bool = False) -> list[Any]:
        """Return the sums over all replicas of the values that they have from their workers, or those of the first one."""

        def give(context: replicant.data.ValueContext) -> list[Any]:
            return [x * np.float32(context.replica_id_in_sync_group == 0) for x in values] if of_chief else values

        given = self.workers.experimental_distribute_values_from_function(give)
        return [np.asarray(total) for total in self.workers.reduce("SUM", given, axis=None)]


def floats_of(model: Any) -> list[Any]:
    """Return the weights that are averaged. Integers and random states stay each worker's own, as the optimizer's state does."""
    return [w for w in (*model.trainable_weights, *model.non_trainable_weights) if "float" in str(w.dtype)]


def value_of(weight: Any) -> np.ndarray:
    """Return a copy of a weight's value."""
    return np.array(keras.ops.convert_to_numpy(weight.value))


def main() -> None:
    """Train a small model, and print on each worker what it has become."""
    parser = argparse.ArgumentParser(description="Local SGD over the workers of a launcher.")
    parser.add_argument("--local-steps", type=int, default=4)
    parser.add_argument("--outer-learning-rate", type=float, default=1.0)
    parser.add_argument("--outer-momentum", type=float, default=0.0)
    options = parser.parse_args()
    training = LocalSGD(options.local_steps, options.outer_learning_rate, options.outer_momentum)
    random = np.random.default_rng(0)
    x = random.normal(size=(256, 4)).astype("float32")
    y = x @ np.array([[1.0], [-2.0], [3.0], [0.5]], "float32")
    keras.utils.set_random_seed(1)
    with training.local.scope():
        model: Any = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse")
    topology = training.workers.topology
    data = replicant.data.Dataset.from_tensor_slices((x, y)).shard(topology.num_workers, topology.worker_index).batch(8)
    num_rounds = sum(training.train(model, data) for _ in range(3))
    loss = model.evaluate(x, y, verbose=0)
    print(f"Worker {topology.worker_index} of {topology.num_workers}: {num_rounds} rounds, loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
