"""Reads folders of TFDS in batches: `tfds_folder`, and ``as_dataset`` with ``as_numpy`` of TFDS itself, in processes of their own.

One folder has small examples, and one JPEG pictures. Processes alternate between the two; each reads the folder once before the
pass that counts. Printed are examples per second of processor time, by the medians, and the median of the ratios of each pair.
The peer's Python needs tensorflow and tensorflow-datasets (``benchmarks/peers.txt``). Run: ``python benchmarks/tfds.py
--peers-python /tmp/peers/bin/python [--rounds 5]``.
"""

import argparse
import io
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from replicant.data import TFRecordWriter, encode_example

_CONTENDERS = Path(__file__).parent / "contenders"
_PACKAGE = "tensorflow_datasets.core.features."
_SECONDS = 600


def _feature(name: str, **content: Any) -> dict[str, Any]:
    return {"pythonClassName": f"{_PACKAGE}{name}", **content}


_LABEL = _feature("class_label_feature.ClassLabel", classLabel={"numClasses": "10"})
_NUMBERS = _feature("tensor_feature.Tensor", tensor={"dtype": "float32", "shape": {"dimensions": ["8"]}, "encoding": "none"})
_SIZES = {"dimensions": ["-1", "-1", "3"]}
_PICTURE = _feature("image_feature.Image", image={"dtype": "uint8", "shape": _SIZES, "encodingFormat": "jpeg"})
_TEXT = _feature("text_feature.Text", text={})


def _small(random: np.random.Generator) -> Iterator[dict[str, Any]]:
    for number in range(80_000):
        yield {"label": number % 10, "text": f"text {number}", "x": random.standard_normal(8, dtype=np.float32)}


def _pictures(random: np.random.Generator) -> Iterator[dict[str, Any]]:
    y, x = np.mgrid[:256, :256]
    for number in range(800):
        waves = [
            128 + 100 * np.sin((x + number) / 9),
            128 + 100 * np.cos((y + number) / 7),
            random.integers(0, 30, x.shape) + y / 2,
        ]
        file = io.BytesIO()
        Image.fromarray(np.stack(waves, axis=2).clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        yield {"label": number % 10, "picture": file.getvalue()}


# The examples and features of a folder, and the size of a batch.
FOLDERS = {
    "small": (_small, {"label": _LABEL, "text": _TEXT, "x": _NUMBERS}, 256),
    "pictures": (_pictures, {"label": _LABEL, "picture": _PICTURE}, 32),
}


def written(folder: Path, name: str, num_files: int = 16) -> Path:
    """Write a folder, with its examples in so many files."""
    make, features, _ = FOLDERS[name]
    folder.mkdir(parents=True)
    writers = [TFRecordWriter(folder / f"{name}-train.tfrecord-{i:05}-of-{num_files:05}") for i in range(num_files)]
    counts = [0] * num_files
    for number, example in enumerate(make(np.random.default_rng(0))):
        writers[number % num_files].write(encode_example(example))
        counts[number % num_files] += 1
    for writer in writers:
        writer.close()
    split = {"name": "train", "shardLengths": list(map(str, counts)), "numBytes": "1"}
    info = {"name": name, "version": "1.0.0", "releaseNotes": {"1.0.0": "made"}, "moduleName": "made", "splits": [split]}
    (folder / "dataset_info.json").write_text(json.dumps({**info, "fileFormat": "tfrecord"}))
    whole = _feature("features_dict.FeaturesDict", featuresDict={"features": features})
    (folder / "features.json").write_text(json.dumps(whole))
    return folder


def rate(python: str, reader: str, folder: Path, size: int) -> float:
    """Return the examples per second of processor time of a process."""
    command = [python, str(_CONTENDERS / "reads_tfds.py"), reader, str(folder), str(size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return found["examples"] / found["seconds"]


def main() -> None:
    """Print a line for each folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers-python", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        for name, (_, _, size) in FOLDERS.items():
            folder = written(Path(place) / name / "1.0.0", name)
            pairs = [
                (rate(options.peers_python, "tfds", folder, size), rate(sys.executable, "replicant", folder, size))
                for _ in range(options.rounds)
            ]
            theirs, ours = (statistics.median(rates) for rates in zip(*pairs, strict=True))
            ratio = statistics.median(our / their for their, our in pairs)
            print(f"{name}, batches of {size}: TFDS {theirs:,.0f}/s, tfds_folder {ours:,.0f}/s, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
