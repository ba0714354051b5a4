"""Runs a translated guide on two virtual devices with little data: ``python _guide_runner.py PROGRAM [DATA_FOLDER]``.

Instead of what the guides download, they get small parts of the real files, or pictures of stripes if there are no such files.
"""

import gzip
import runpy
import sys
import types
from pathlib import Path

import replicant

if "set_virtual_devices" not in Path(sys.argv[1]).read_text():
    replicant.set_virtual_devices(2)

import keras
import numpy as np

from replicant.data import Dataset

NUM_TRAIN, NUM_TEST = 2048, 512


def images(kind, folder):
    if folder is None:
        rng = np.random.default_rng(0)
        labels = rng.integers(0, 10, NUM_TRAIN + NUM_TEST).astype("uint8")
        pictures = rng.integers(0, 100, (len(labels), 28, 28)).astype("uint8")
        for i, label in enumerate(labels):
            pictures[i, 2 * label : 2 * label + 3] = 255
        return (pictures[:NUM_TRAIN], labels[:NUM_TRAIN]), (pictures[NUM_TRAIN:], labels[NUM_TRAIN:])
    parts = []
    for prefix, number in (("train", NUM_TRAIN), ("t10k", NUM_TEST)):
        pictures = gzip.decompress((folder / kind / f"{prefix}-images-idx3-ubyte.gz").read_bytes())
        labels = gzip.decompress((folder / kind / f"{prefix}-labels-idx1-ubyte.gz").read_bytes())
        parts.append(
            (
                np.frombuffer(pictures, np.uint8, offset=16).reshape(-1, 28, 28)[:number],
                np.frombuffer(labels, np.uint8, offset=8)[:number],
            )
        )
    return tuple(parts)


def load(name, with_info, as_supervised):
    """Return what tensorflow_datasets.load returns, with datasets of Replicant."""
    assert (name, with_info, as_supervised) == ("mnist", True, True)
    (train_x, train_y), (test_x, test_y) = images("mnist", FOLDER)
    datasets = {
        "train": Dataset.from_tensor_slices((train_x[..., None], train_y.astype("int64"))),
        "test": Dataset.from_tensor_slices((test_x[..., None], test_y.astype("int64"))),
    }
    sizes = {key: types.SimpleNamespace(num_examples=n) for key, n in (("train", NUM_TRAIN), ("test", NUM_TEST))}
    return datasets, types.SimpleNamespace(splits=sizes)


FOLDER = Path(sys.argv[2]) if len(sys.argv) > 2 else None
keras.datasets.mnist.load_data = lambda: images("mnist", FOLDER)
keras.datasets.fashion_mnist.load_data = lambda: images("fashion", FOLDER)
stand_in = types.ModuleType("tensorflow_datasets")
stand_in.load = load
sys.modules["tensorflow_datasets"] = stand_in

names = runpy.run_path(sys.argv[1], run_name="__main__")
print("GUIDE DONE", sorted(name for name in names if not name.startswith("_"))[:3])
