"""Folders of TFDS that tests write, and what TFDS reads in those that it has written."""

import hashlib
import json
from pathlib import Path

import numpy as np

from replicant.data import Dataset, TFRecordWriter, encode_example

RECORDED = Path(__file__).resolve().parents[1] / "tensorflow_files" / "tfds"
PACKAGE = "tensorflow_datasets.core.features."


def feature(name, **content):
    """A feature as features.json has it."""
    return {"pythonClassName": f"{PACKAGE}{name}", **content}


def tensor(dtype="int64", shape=(), **settings):
    sizes = {"dimensions": [str(-1 if size is None else size) for size in shape]}
    return feature("Tensor", tensor={"dtype": dtype, "shape": sizes, "encoding": "none", **settings})


def sequence(inner, length=-1):
    return feature("Sequence", sequence={"feature": inner, "length": str(length)})


def features_dict(features):
    return feature("FeaturesDict", featuresDict={"features": features})


TEXT = feature("Text", text={})
PICTURE = feature("Image", image={"shape": {"dimensions": ["-1", "-1", "3"]}, "dtype": "uint8", "encodingFormat": "png"})


def describe(folder, lengths, features, **info):
    """Write what a folder says of itself. ``lengths`` are those of the files of each split."""
    folder.mkdir(parents=True, exist_ok=True)
    splits = [{"name": name, "shardLengths": [str(each) for each in its]} for name, its in lengths.items()]
    (folder / "dataset_info.json").write_text(json.dumps({"name": "made", "version": "1.0.0", "splits": splits, **info}))
    (folder / "features.json").write_text(json.dumps(features_dict(features)))
    return folder


def file_of(folder, number=0, count=1, split="train"):
    return folder / f"made-{split}.tfrecord-{number:05}-of-{count:05}"


def write(folder, shards, features, split="train", **info):
    """Write a folder of one split with these examples: dicts of values, or serialized Examples."""
    describe(folder, {split: map(len, shards)}, features, **info)
    for number, examples in enumerate(shards):
        with TFRecordWriter(file_of(folder, number, len(shards), split)) as writer:
            for each in examples:
                writer.write(each if isinstance(each, bytes) else encode_example(each))
    return folder


def numbers(folder, *sizes, **info):
    """Write a folder of so many examples in each file, which are numbered."""
    ends = np.cumsum([0, *sizes]).tolist()
    shards = [[{"n": i} for i in range(begin, begin + size)] for begin, size in zip(ends, sizes, strict=False)]
    return write(folder, shards, {"n": tensor()}, **info)


def ns(elements):
    return [int(element["n"]) for element in elements]


def differences(found, truth, path="", picture="sha256, INTEGER_ACCURATE"):
    """The places where a value is not what TFDS has read. ``picture`` is where the pixels of JPEG pictures are noted."""
    if isinstance(found, Dataset):
        found, truth = list(found), truth["dataset"]
    elif isinstance(found, tuple):
        truth = truth["tuple"]
    if isinstance(found, list | tuple) and isinstance(truth, list):
        if len(found) != len(truth):
            return [f"{path}: {len(found)} instead of {len(truth)}"]
        return [
            each for i, (a, b) in enumerate(zip(found, truth, strict=True)) for each in differences(a, b, f"{path}[{i}]", picture)
        ]
    if isinstance(found, dict):
        if found.keys() != truth.keys():
            return [f"{path}: {sorted(found)} instead of {sorted(truth)}"]
        return [each for name in found for each in differences(found[name], truth[name], f"{path}/{name}", picture)]
    return [] if is_same(found, truth, picture) else [f"{path}: {found!r} instead of {truth}"]


def is_same(found, truth, picture):
    if "ragged" in truth:
        return unpacked(found) == truth["ragged"]
    if "bytes" in truth:
        return found == bytes.fromhex(truth["bytes"])
    array = np.asarray(found)
    if truth["dtype"] == "string":
        return list(array.shape) == truth["shape"] and [each.hex() for each in array.ravel()] == truth["hex"]
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return (str(array.dtype), list(array.shape), digest) == (truth["dtype"], truth["shape"], truth.get(picture, truth["sha256"]))


def unpacked(value):
    if isinstance(value, list):
        return [unpacked(each) for each in value]
    return value.tolist() if isinstance(value, np.ndarray) else {"bytes": value.hex()} if isinstance(value, bytes) else value
