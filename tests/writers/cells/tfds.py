"""Folders that TensorFlow Datasets prepares: each feature, both formats of files, splits."""

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _cells import Cell, rows

FORM, WRITER = "TFDS", "tensorflow-datasets"
_NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64", "bool")


def _tfds() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow_datasets as tfds

    return tfds


def _pixels(i: int, channels: int = 3, dtype: str = "uint8") -> np.ndarray:
    return np.random.default_rng(i).integers(0, np.iinfo(dtype).max, (4 + i, 5, channels), dtype)


# For each feature: what makes it, and the value of an example.
_FEATURES: dict[str, tuple[Callable[[Any], Any], Callable[[int], Any]]] = {
    **{
        f"Scalar of {name}": ((lambda f, name=name: f.Scalar(np.dtype(name).type)), (lambda i, name=name: np.dtype(name).type(i)))
        for name in _NUMBERS
    },
    "Tensor of float32": (lambda f: f.Tensor(shape=(2, 3), dtype=np.float32), lambda i: np.full((2, 3), i / 7, np.float32)),
    "Tensor of uint8": (lambda f: f.Tensor(shape=(2, 3), dtype=np.uint8), lambda i: np.full((2, 3), i, np.uint8)),
    "Tensor of any length": (lambda f: f.Tensor(shape=(None,), dtype=np.int64), lambda i: np.arange(i + 1)),
    "Tensor of any height": (lambda f: f.Tensor(shape=(None, 2), dtype=np.int32), lambda i: np.full((i + 1, 2), i, np.int32)),
    "Tensor of bytes": (lambda f: f.Tensor(shape=(2, 3), dtype=np.float64, encoding="bytes"), lambda i: np.full((2, 3), i / 7)),
    "Tensor, zlib": (lambda f: f.Tensor(shape=(2, 3), dtype=np.int64, encoding="zlib"), lambda i: np.full((2, 3), i)),
    "Text": (lambda f: f.Text(), lambda i: "ä" * i),
    "ClassLabel": (lambda f: f.ClassLabel(names=["a", "b", "c"]), lambda i: "abc"[i % 3]),
    "BBoxFeature": (lambda f: f.BBoxFeature(), lambda i: _tfds().features.BBox(0.1, 0.2, 0.3, 0.4 + i / 10)),
    "Image, PNG": (lambda f: f.Image(encoding_format="png"), _pixels),
    "Image, PNG of one channel": (lambda f: f.Image(shape=(None, None, 1), encoding_format="png"), lambda i: _pixels(i, 1)),
    "Image, PNG of four channels": (lambda f: f.Image(shape=(None, None, 4), encoding_format="png"), lambda i: _pixels(i, 4)),
    "Image, PNG of uint16": (
        lambda f: f.Image(shape=(None, None, 1), dtype=np.uint16, encoding_format="png"),
        lambda i: _pixels(i, 1, "uint16"),
    ),
    "LabeledImage": (lambda f: f.LabeledImage(labels=3, shape=(None, None, 1), encoding_format="png"), lambda i: _pixels(i, 1) % 3),
    "Video": (lambda f: f.Video(shape=(None, 4, 5, 3)), lambda i: [_pixels(0)] * (i + 1)),
    "Audio": (lambda f: f.Audio(shape=(None,)), lambda i: np.arange(i + 2)),
    "Sequence of Scalar": (lambda f: f.Sequence(f.Scalar(np.int64)), lambda i: list(range(i))),
    "Sequence of one length": (lambda f: f.Sequence(f.Scalar(np.int32), length=2), lambda i: [i, 1]),
    "Sequence of Text": (lambda f: f.Sequence(f.Text()), lambda i: ["ä"] * i),
    "Sequence of a dict": (lambda f: f.Sequence({"a": f.Scalar(np.int64), "b": f.Text()}), lambda i: [{"a": i, "b": "x"}] * i),
    "Sequence of Sequence": (lambda f: f.Sequence(f.Sequence(f.Scalar(np.int64))), lambda i: [list(range(k)) for k in range(i)]),
    "Sequence of Image": (lambda f: f.Sequence(f.Image(shape=(4, 5, 3), encoding_format="png")), lambda i: [_pixels(0)] * (i + 1)),
    "FeaturesDict": (lambda f: {"a": f.Scalar(np.int64), "b": {"c": f.Text()}}, lambda i: {"a": i, "b": {"c": "x"}}),
    "Translation": (lambda f: f.Translation(["de", "en"]), lambda i: {"de": "ä", "en": str(i)}),
    "TranslationVariableLanguages": (
        lambda f: f.TranslationVariableLanguages(["de", "en"]),
        lambda i: {"de": ["ä", "b"], "en": str(i)},
    ),
}


def cells() -> Iterator[Cell]:
    for what in _FEATURES:
        for form in ("tfrecord", "array_record"):
            yield Cell(FORM, WRITER, f"{what}, {form}", functools.partial(_feature, what, form))
    for split in ("train", "train[:30%]", "train[3:7]", "train[-20%:]", "train+test", "all", "train[1shard:]"):
        yield Cell(FORM, WRITER, f"split {split}", functools.partial(_split, split))
    yield Cell(FORM, WRITER, "Dataset of steps", _steps)
    yield Cell(FORM, WRITER, "disable_shuffling", functools.partial(_split, "train", disable_shuffling=True))
    yield Cell(FORM, WRITER, "format riegeli", _riegeli, "those that are read are")


def _prepared(folder: Path, features: Any, examples: dict[str, list[Any]], form: str = "tfrecord", **settings: Any) -> Any:
    """Prepare a folder, and return its builder."""
    tfds = _tfds()
    return tfds.dataset_builders.store_as_tfds_dataset(
        name="made",
        version="1.0.0",
        features=tfds.features.FeaturesDict(features),
        split_datasets={split: list(enumerate(its)) for split, its in examples.items()},
        data_dir=str(folder),
        file_format=form,
        **settings,
    )


def _feature(what: str, form: str, folder: Path) -> Any:
    from replicant.data import tfds_folder

    make, value = _FEATURES[what]
    tfds = _tfds()
    builder = _prepared(folder, {"x": make(tfds.features)}, {"train": [{"x": value(i)} for i in range(5)]}, form)
    if form == "array_record":
        return lambda: rows(tfds_folder(builder.data_dir, "train")), list(builder.as_data_source(split="train"))
    return lambda: rows(tfds_folder(builder.data_dir, "train")), _elements(builder.as_dataset(split="train"))


def _elements(dataset: Any) -> list[Any]:
    return [_plain(each) for each in _tfds().as_numpy(dataset)]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value.to_list() if hasattr(value, "to_list") else value


def _split(split: str, folder: Path, **settings: Any) -> Any:
    from replicant.data import tfds_folder

    tfds = _tfds()
    examples = {"train": [{"n": i} for i in range(23)], "test": [{"n": i} for i in range(100, 105)]}
    config = tfds.download.DownloadConfig(num_shards=3)
    builder = _prepared(folder, {"n": tfds.features.Scalar(np.int64)}, examples, download_config=config, **settings)
    return lambda: rows(tfds_folder(builder.data_dir, split)), _elements(builder.as_dataset(split=split))


def _steps(folder: Path) -> Any:
    from replicant.data import tfds_folder

    tfds = _tfds()
    features = {"steps": tfds.features.Dataset({"action": tfds.features.Scalar(np.int64)}), "id": tfds.features.Text()}
    examples = [{"steps": [{"action": k} for k in range(i + 1)], "id": str(i)} for i in range(3)]
    builder = _prepared(folder, features, {"train": examples})
    theirs = [{"steps": list(each["steps"]), "id": each["id"]} for each in tfds.as_numpy(builder.as_dataset(split="train"))]
    return lambda: [
        {"steps": list(each["steps"]), "id": each["id"]} for each in rows(tfds_folder(builder.data_dir, "train"))
    ], theirs


def _riegeli(folder: Path) -> Any:
    """A folder whose files are said to be Riegeli's: TFDS writes such only with a package that PyPI lacks."""
    from replicant.data import tfds_folder

    builder = _prepared(folder, {"n": _tfds().features.Scalar(np.int64)}, {"train": [{"n": 1}]})
    info = Path(builder.data_dir) / "dataset_info.json"
    info.write_text(info.read_text().replace('"tfrecord"', '"riegeli"'))
    return lambda: rows(tfds_folder(builder.data_dir, "train")), None
