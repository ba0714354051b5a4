"""Replicant's ParameterServerStrategy, which starts its servers and workers as processes."""

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
from _ps_cases import RATE, ROWS, SERVERS, WIDTH, batch, parse
from _serve import Round, serve

import replicant
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.coordinator import ClusterCoordinator, MinSizePartitioner
from replicant.data import Dataset


def make(args: argparse.Namespace) -> Callable[[], Round]:
    """Make the contender."""
    cluster = ClusterSpec({"ps": ["127.0.0.1:0"] * SERVERS, "worker": ["127.0.0.1:0"] * args.workers})
    strategy = replicant.ParameterServerStrategy(SimpleClusterResolver(cluster), MinSizePartitioner(1 << 20, SERVERS))
    coordinator = ClusterCoordinator(strategy)
    with strategy.scope():
        model, optimizer = _model(args.case), keras.optimizers.SGD(RATE)
        optimizer.build(model.trainable_variables)

    @replicant.function
    def train(x, y):
        with replicant.GradientTape() as tape:
            loss = keras.ops.mean((model(x, training=True) - y) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    x, y = batch(args.case)
    data = iter(coordinator.create_per_worker_dataset(lambda: Dataset.from_tensors((x, y)).repeat()))
    naps = coordinator.create_per_worker_resource(lambda: args.slow if _is_first() else 0.0)

    def step(data, nap):
        if nap:
            time.sleep(nap)
        train(*next(data))

    def train_round() -> Round:
        for _ in range(args.steps):
            coordinator.schedule(step, args=(data, naps))
        coordinator.join()
        return Round(0.0)

    return train_round


def _is_first() -> bool:
    from replicant.coordinator.servers._site import current_site

    return current_site().client.number == 1


def _model(case):
    _, hidden, last = case.sizes
    if not case.embeddings:
        layers = [keras.layers.Dense(hidden, "relu"), keras.layers.Dense(last, "relu")]
        return keras.Sequential([keras.Input((case.sizes[0],)), *layers])
    ids: Any = keras.Input((2,), dtype="int32")
    rows = [keras.layers.Embedding(ROWS, WIDTH)(ids[..., i]) for i in range(2)]
    x = keras.layers.Dense(hidden, "relu")(keras.layers.Concatenate()(rows))
    return keras.Model(ids, keras.layers.Dense(last)(x))


if __name__ == "__main__":
    serve(parse(), make)
