"""Trains a model on the pictures in a folder, in one process or in several. Picture i has the colour i everywhere."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import replicant
from replicant.data import AutoShardPolicy, Dataset, Options
from replicant.keras.utils import image_dataset_from_directory, text_dataset_from_directory

NUM_FILES, BATCH, EPOCHS = 11, 4, 2  # the last batch of an epoch is ragged: 4, 4 and 3


def write(folder: Path) -> None:
    """Write pictures and texts of two classes, in turn."""
    for i in range(NUM_FILES):
        path = folder / ("cat" if i % 2 else "dog") / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 3), (i, i, i)).save(path)
        path.with_suffix(".txt").write_text(f"{i}")


def pictures(folder: Path, policy: str, **how: Any) -> Dataset:
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy[policy]
    dataset = image_dataset_from_directory(folder, batch_size=BATCH, image_size=(2, 2), verbose=False, **how)
    return dataset.with_options(options)


def numbers(strategy: replicant.Strategy, dataset: Dataset) -> list[tuple[int, int]]:
    """The number and the label of each file that this worker's replicas get in one epoch."""
    seen = []
    for images, labels in strategy.experimental_distribute_dataset(dataset):
        for part, its in zip(*map(strategy.experimental_local_results, (images, labels)), strict=True):
            seen += [(int(image.max()), int(label)) for image, label in zip(np.asarray(part), np.asarray(its), strict=True)]
    return seen


def train(strategy: replicant.Strategy, folder: Path) -> dict[str, Any]:
    """The losses, the weights, what `evaluate` and `predict` give, and what was read under each policy."""
    import keras

    keras.utils.set_random_seed(3)
    with strategy.scope():
        layers = [keras.Input((2, 2, 3)), keras.layers.Rescaling(0.1), keras.layers.Flatten(), keras.layers.Dense(2)]
        model = keras.Sequential(layers)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    history = model.fit(pictures(folder, "AUTO", seed=5), epochs=EPOCHS, verbose=0)
    ordered = pictures(folder, "AUTO", shuffle=False)
    texts = text_dataset_from_directory(folder, labels=None, batch_size=BATCH, shuffle=False, verbose=False)
    lengths = texts.map(lambda batch: np.array([int(text) for text in batch]))
    return {
        "losses": history.history["loss"],
        "weights": [weight.tolist() for weight in model.get_weights()],
        "evaluated": model.evaluate(ordered, verbose=0),
        "predicted": model.predict(ordered, verbose=0).tolist(),
        "seen": {
            "AUTO with a seed": numbers(strategy, pictures(folder, "AUTO", seed=5)),
            "AUTO without a seed": numbers(strategy, pictures(folder, "AUTO")),
            "FILE": numbers(strategy, pictures(folder, "FILE", seed=5)),
        },
        "texts": [
            int(number)
            for batch in strategy.experimental_distribute_dataset(lengths)
            for part in strategy.experimental_local_results(batch)
            for number in np.asarray(part)
        ],
    }
