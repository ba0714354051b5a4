"""Reads a folder of TFDS twice, in batches, and prints the processor time of the second pass: reads_tfds.py READER FOLDER SIZE."""

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any


def by_replicant(folder: str, size: int) -> Callable[[], Iterable[Any]]:
    """With `tfds_folder`."""
    from replicant.data import tfds_folder

    dataset = tfds_folder(folder, "train").batch(size)
    return lambda: dataset


def by_tfds(folder: str, size: int) -> Callable[[], Iterable[Any]]:
    """With TensorFlow. TFDS would keep small datasets in memory."""
    tfds: Any = importlib.import_module("tensorflow_datasets")

    builder = tfds.builder_from_directory(folder)
    dataset = builder.as_dataset(split="train", read_config=tfds.ReadConfig(try_autocache=False)).batch(size)
    return lambda: tfds.as_numpy(dataset)


def main() -> None:
    """Print the number of examples and the seconds as JSON."""
    reader, folder, size = sys.argv[1:]
    read = {"replicant": by_replicant, "tfds": by_tfds}[reader](folder, int(size))
    taken = {}
    for _ in range(2):
        begin = time.process_time()
        count = sum(len(batch["label"]) for batch in read())
        taken = {"examples": count, "seconds": time.process_time() - begin}
    print(json.dumps(taken))


if __name__ == "__main__":
    main()
