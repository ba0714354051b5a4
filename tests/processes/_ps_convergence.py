"""Trains asynchronously and synchronously, on equally many examples, and prints the accuracies of both.

The argument is JSON: {"workers": [2, 4], "max_staleness": 3}, with what to train: "wide": {"rows": ..., "steps": ...}, or
"cnn": {"name": ..., "epochs": ..., "batch": ...}, or both.
"""

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import keras

import replicant
import wide_embeddings as wide
from _datasets import load
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.coordinator import ClusterCoordinator, MinSizePartitioner


def cnn() -> keras.Model:
    """Make the small CNN of the guides."""
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.001), loss, metrics=["accuracy"])
    return model


def fitted(model: keras.Model, data, epochs: int, batch: int) -> float:
    """Train a model, and return its test accuracy in percent."""
    model.fit(data.train_images, data.train_labels, batch_size=batch, epochs=epochs, verbose=0)
    return 100 * model.evaluate(data.test_images, data.test_labels, verbose=0, return_dict=True)["accuracy"]


def main(task: dict) -> dict:
    """Train everything that the task asks for."""
    answers: dict = {"wide": {}, "cnn": {}}
    data = load(task["cnn"]["name"], task["cnn"].get("folder") and Path(task["cnn"]["folder"])) if "cnn" in task else None
    options = argparse.Namespace(width=32, batch=512, max_staleness=None, **task["wide"]) if "wide" in task else None
    for workers in task["workers"]:
        cluster = ClusterSpec({"ps": ["127.0.0.1:0"] * 2, "worker": ["127.0.0.1:0"] * workers})
        strategy = replicant.ParameterServerStrategy(SimpleClusterResolver(cluster), MinSizePartitioner(1 << 18, 2))
        coordinator = ClusterCoordinator(strategy, max_staleness=task["max_staleness"])
        if options is not None:
            answers["wide"][str(workers)] = wide.train_on(strategy, options, "asynchronous").test_accuracy
        if data is not None:
            keras.utils.set_random_seed(1)
            with strategy.scope():
                model = cnn()
            answers["cnn"][str(workers)] = fitted(model, data, task["cnn"]["epochs"], task["cnn"]["batch"])
        answers.setdefault("staleness", []).append(coordinator.stats()["staleness"])
        strategy.close()
    if options is not None:
        answers["wide"]["synchronous"] = wide.synchronous(options).test_accuracy
    if data is not None:
        keras.utils.set_random_seed(1)
        answers["cnn"]["synchronous"] = fitted(cnn(), data, task["cnn"]["epochs"], task["cnn"]["batch"])
    return answers


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
