"""Reading the examples' image data: the right arrays, and an error that names file and remedy for everything else."""

import gzip
import os
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

import _datasets as datasets

ROOT = Path(__file__).resolve().parents[2]
TEST_DATA = Path(os.environ.get("REPLICANT_TEST_DATA", ROOT / "data"))

NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three training and two test images of 2 x 2."""
    arrays = (
        np.arange(12, dtype=np.uint8).reshape(3, 2, 2) * 5,
        np.array([0, 1, 2], np.uint8),
        np.full((2, 2, 2), 255, np.uint8),
        np.array([3, 9], np.uint8),
    )
    for name, array in zip(NAMES, arrays, strict=True):
        (tmp_path / name).write_bytes(gzip.compress(idx(array)))
    return tmp_path


def test_idx_files_become_scaled_images_and_integer_labels(folder):
    data = datasets.load("mnist", folder)
    expected = np.float32([[[0, 5], [10, 15]], [[20, 25], [30, 35]], [[40, 45], [50, 55]]])[..., None] / np.float32(255)
    np.testing.assert_array_equal(data.train_images, expected)
    np.testing.assert_array_equal(data.train_labels, [0, 1, 2])
    np.testing.assert_array_equal(data.test_images, np.ones((2, 2, 2, 1)))
    np.testing.assert_array_equal(data.test_labels, [3, 9])
    assert [array.dtype.name for array in data] == ["float32", "int32", "float32", "int32"]


def test_digits_are_split_and_doubled():
    data = datasets.load("digits")
    assert [array.shape for array in data] == [(1437, 16, 16, 1), (1437,), (360, 16, 16, 1), (360,)]
    assert [array.dtype.name for array in data] == ["float32", "int32", "float32", "int32"]
    assert (data.train_images.min(), data.train_images.max()) == (0.0, 1.0)
    first = data.test_images[0, :, :, 0]
    np.testing.assert_array_equal(first, np.kron(first[::2, ::2], np.ones((2, 2))))
    assert np.bincount(data.test_labels).min() >= 25


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(datasets.DataError, match=rf"{name} is missing: put the file there, or leave out --data-dir"):
        datasets.load("mnist", folder)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(datasets.DataError, match=r"--data-dir .*/absent is not a folder: give the one with train-"):
        datasets.load("mnist", tmp_path / "absent")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda packed: b"<html>not found</html>", r"cannot be read \(Not a gzipped file.*\): fetch t10k-images"),
        (lambda packed: packed[: len(packed) // 2], r"cannot be read \(.*\): fetch t10k-images"),
        (lambda packed: packed[:20] + b"\xff" * 8 + packed[28:], r"cannot be read \(.*\): fetch t10k-images"),
        (lambda packed: b"", r"is not an IDX file of rank 3 \(it starts with \): fetch"),
        (
            lambda packed: gzip.compress(b"\0\0\x08\x01\0\0\0\0"),
            r"is not an IDX file of rank 3 \(it starts with 00 00 08 01",
        ),
        (
            lambda packed: gzip.compress(gzip.decompress(packed)[:-3]),
            r"is damaged: its header says \(2, 2, 2\), which is 8 bytes, but 5 follow: fetch t10k-images",
        ),
    ],
    ids=["not gzip", "cut", "changed", "empty", "labels for images", "short"],
)
def test_a_damaged_file_is_named(folder, damage, message):
    path = folder / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(datasets.DataError, match=rf"{path} {message}"):
        datasets.load("mnist", folder)


def test_images_without_their_labels_are_refused(folder):
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros(4, np.uint8))))
    with pytest.raises(datasets.DataError, match=r"has 3 images, but .* has 4 labels: they do not belong together"):
        datasets.load("mnist", folder)


def test_a_failed_download_says_what_to_do_instead(monkeypatch):
    import keras

    def fail():
        raise Exception("URL fetch failure on https://example.invalid")  # noqa: TRY002 - what Keras raises

    monkeypatch.setattr(keras.datasets.mnist, "load_data", fail)
    with pytest.raises(datasets.DataError, match=r"could not download mnist \(URL fetch.*\): give .* --data digits"):
        datasets.load("mnist")


def test_digits_without_scikit_learn_say_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(datasets.DataError, match=r"come with scikit-learn: pip install scikit-learn, or use --data mnist"):
        datasets.load("digits")


@pytest.mark.parametrize(
    ("name", "first_labels", "mean"), [("mnist", [5, 0, 4, 1, 9], 0.1307), ("fashion", [9, 0, 0, 3, 0], 0.2860)]
)
def test_the_published_files_are_read(name, first_labels, mean):
    folder = TEST_DATA / name
    if not folder.is_dir():
        pytest.skip(f"no {folder}: name a folder that holds mnist/ and fashion/ with REPLICANT_TEST_DATA")
    data = datasets.load("mnist", folder)
    assert [array.shape for array in data] == [(60000, 28, 28, 1), (60000,), (10000, 28, 28, 1), (10000,)]
    assert data.train_labels[:5].tolist() == first_labels
    assert data.train_images.mean(dtype=np.float64) == pytest.approx(mean, abs=5e-5)
    assert np.bincount(data.test_labels).sum() == 10000
