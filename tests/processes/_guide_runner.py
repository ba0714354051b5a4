"""Runs a translated guide on two virtual devices with little data: ``python _guide_runner.py PROGRAM [DATA_FOLDER]``.

Instead of what the guides download, they get small parts of the real files, or pictures of stripes if there are no such files.
"""

import gzip
import io
import json
import os
import runpy
import sys
import tempfile
from pathlib import Path

import replicant

if "set_virtual_devices" not in Path(sys.argv[1]).read_text():
    replicant.set_virtual_devices(2)

import keras
import numpy as np
from PIL import Image

from replicant.data import TFRecordWriter, encode_example

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


def feature(name, **content):
    return {"pythonClassName": f"tensorflow_datasets.core.features.{name}", **content}


def prepare(folder):
    """Write MNIST as tensorflow_datasets writes it."""
    folder.mkdir(parents=True)
    splits = [{"name": name, "shardLengths": [str(size)]} for name, size in (("train", NUM_TRAIN), ("test", NUM_TEST))]
    keys = {"tuple": {"items": [{"featureKey": "image"}, {"featureKey": "label"}]}}
    info = {"name": "mnist", "version": "3.0.1", "splits": splits, "supervisedKeys": keys}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    picture = feature("Image", image={"shape": {"dimensions": ["28", "28", "1"]}, "dtype": "uint8", "encodingFormat": "png"})
    features = {"image": picture, "label": feature("ClassLabel", classLabel={"numClasses": "10"})}
    (folder / "features.json").write_text(json.dumps(feature("FeaturesDict", featuresDict={"features": features})))
    for split, (pictures, labels) in zip(("train", "test"), images("mnist", FOLDER), strict=True):
        with TFRecordWriter(folder / f"mnist-{split}.tfrecord-00000-of-00001") as writer:
            for pixels, label in zip(pictures, labels, strict=True):
                file = io.BytesIO()
                Image.fromarray(pixels).save(file, "PNG")
                writer.write(encode_example({"image": file.getvalue(), "label": int(label)}))


FOLDER = Path(sys.argv[2]) if len(sys.argv) > 2 else None
keras.datasets.mnist.load_data = lambda: images("mnist", FOLDER)
keras.datasets.fashion_mnist.load_data = lambda: images("fashion", FOLDER)
with tempfile.TemporaryDirectory() as home:
    os.environ["HOME"] = home
    if "tensorflow_datasets" in Path(sys.argv[1]).read_text():
        prepare(Path(home) / "tensorflow_datasets" / "mnist" / "3.0.1")
    names = runpy.run_path(sys.argv[1], run_name="__main__")
print("GUIDE DONE", sorted(name for name in names if not name.startswith("_"))[:3])
