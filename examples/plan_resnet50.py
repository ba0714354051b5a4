"""Train ResNet-50 on images of 224 x 224 with Keras ``fit``: a program to plan before renting devices.

    replicant plan examples/plan_resnet50.py --topology v5e:16x16
    replicant plan examples/plan_resnet50.py --topology gpu:8xh100 --args='--batch-size-per-replica 256'
    python examples/plan_resnet50.py --batch-size-per-replica 4 --steps 2

The images are synthetic. Your own program would read them from files.
"""

from __future__ import annotations

import argparse
import os
import sys

os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras reads it once, when it is imported

import keras
import numpy as np

import replicant
from _options import positive_int
from replicant.data import Dataset


def main(argv: list[str] | None = None) -> int:
    """Run the program and return its exit status."""
    options = parse(argv)
    keras.mixed_precision.set_global_policy(options.policy)
    strategy = replicant.MirroredStrategy()
    with strategy.scope():
        model = keras.applications.ResNet50(weights=None)  # type: ignore[arg-type]  # Keras's own default is a string
        model.compile(
            optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
            loss=keras.losses.SparseCategoricalCrossentropy(),
            metrics=["accuracy"],
        )
    batch_size = options.batch_size_per_replica * strategy.num_replicas_in_sync
    images = Dataset.range(batch_size * options.steps).map(an_image)
    model.fit(images.batch(batch_size), epochs=1)
    return 0


def an_image(number: int) -> tuple[np.ndarray, np.int32]:
    """Make an image in one of 1,000 colors, and its label."""
    label = int(number) % 1000
    return np.full((224, 224, 3), label / 1000, np.float32), np.int32(label)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description="ResNet-50 on images of 224 x 224.")
    parser.add_argument(
        "--batch-size-per-replica", type=positive_int, default=64, help="examples per replica (default: %(default)s)"
    )
    parser.add_argument("--steps", type=positive_int, default=10, help="number of steps (default: %(default)s)")
    parser.add_argument("--policy", default="mixed_bfloat16", help="dtype policy of Keras (default: %(default)s)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
