"""Image data for the examples: scikit-learn's digits, and MNIST or Fashion-MNIST from the usual IDX files."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

NAMES = ("digits", "mnist", "fashion_mnist")

UNSIGNED_BYTE = 0x08  # the element type, which is the third byte of an IDX file


class DataError(Exception):
    """The data cannot be read. The message names the file and the remedy."""


class ImageData(NamedTuple):
    """Images as float32 ``[n, height, width, 1]`` from 0 to 1, and labels as int32 ``[n]``."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load(name: str, data_dir: Path | None = None) -> ImageData:
    """Read one of ``NAMES``. Without a ``data_dir``, Keras downloads MNIST and Fashion-MNIST."""
    if name == "digits":
        return _digits()
    arrays = _keras_download(name) if data_dir is None else _read_folder(data_dir)
    train_images, train_labels, test_images, test_labels = arrays
    return ImageData(_scaled(train_images, 255), _labels(train_labels), _scaled(test_images, 255), _labels(test_labels))


def read_idx(path: Path, rank: int) -> np.ndarray:
    """Read a gzipped IDX file of unsigned bytes: two zero bytes, the type, the rank, the sizes, and the elements.

    Raises:
        DataError: If the file is missing, damaged or of another kind.
    """
    remedy = f"fetch {path.name} again, or leave out --data-dir to have Keras download the data"
    try:
        content = gzip.decompress(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path} is missing: put the file there, or leave out --data-dir") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}): {remedy}") from error
    header = 4 + 4 * rank
    if len(content) < header or content[:4] != bytes((0, 0, UNSIGNED_BYTE, rank)):
        raise DataError(f"{path} is not an IDX file of rank {rank} (it starts with {content[:4].hex(' ')}): {remedy}")
    sizes = struct.unpack(f">{rank}I", content[4:header])
    if len(content) - header != math.prod(sizes):
        raise DataError(
            f"{path} is damaged: its header says {sizes}, which is {math.prod(sizes)} bytes, "
            f"but {len(content) - header} follow: {remedy}"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(sizes)


def _read_folder(folder: Path) -> tuple[np.ndarray, ...]:
    if not folder.is_dir():
        raise DataError(f"--data-dir {folder} is not a folder: give the one with train-images-idx3-ubyte.gz")
    arrays = []
    for part in ("train", "t10k"):
        images_path, labels_path = folder / f"{part}-images-idx3-ubyte.gz", folder / f"{part}-labels-idx1-ubyte.gz"
        images, labels = read_idx(images_path, rank=3), read_idx(labels_path, rank=1)
        if len(images) != len(labels):
            raise DataError(
                f"{images_path} has {len(images)} images, but {labels_path} has {len(labels)} labels: "
                "they do not belong together, so fetch both again"
            )
        arrays += [images, labels]
    return tuple(arrays)


def _keras_download(name: str) -> tuple[np.ndarray, ...]:
    import keras

    try:
        (train_images, train_labels), (test_images, test_labels) = getattr(keras.datasets, name).load_data()
    except Exception as error:  # Keras raises a bare Exception when a download fails
        raise DataError(
            f"Keras could not download {name} ({error}): give the folder of its four IDX files with --data-dir, "
            "or use --data digits, which needs no network"
        ) from error
    return train_images, train_labels, test_images, test_labels


def _digits() -> ImageData:
    """Take every fifth digit for testing, and enlarge the images from 8 x 8 to 16 x 16.

    Two 3 x 3 convolutions, each followed by 2 x 2 pooling, leave nothing of an image of 8 x 8. Doubling every pixel is the
    smallest whole scale that is large enough. Unlike a black border, it lets every filter see ink.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError("the digits come with scikit-learn: pip install scikit-learn, or use --data mnist") from error
    bunch: Any = load_digits()
    images, labels = _scaled(bunch.images.repeat(2, axis=1).repeat(2, axis=2), 16), _labels(bunch.target)
    is_test = np.arange(len(labels)) % 5 == 0
    return ImageData(images[~is_test], labels[~is_test], images[is_test], labels[is_test])


def _scaled(images: np.ndarray, brightest: int) -> np.ndarray:
    return (images / np.float32(brightest)).astype(np.float32)[..., None]


def _labels(labels: np.ndarray) -> np.ndarray:
    return labels.astype(np.int32)
