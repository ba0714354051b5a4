"""TFRecord files and their examples, of TensorFlow, of the package tfrecord and of tensorboard."""

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _cells import Cell, rows

FORM = "TFRecord"


def cells() -> Iterator[Cell]:
    for compression in ("", "GZIP", "ZLIB"):
        what = f"TFRecordWriter{', ' + compression if compression else ''}"
        yield Cell(FORM, "tensorflow", what, functools.partial(_records, compression))
    yield Cell(
        FORM,
        "tensorflow",
        "TFRecordWriter, GZIP, unsaid",
        functools.partial(_records, "GZIP", said=""),
        'pass compression_type="GZIP"',
    )
    yield Cell(FORM, "tensorflow", "records of no bytes", _empty_records)
    yield Cell(FORM, "tensorflow", "tf.train.Example, fixed lengths", _fixed)
    yield Cell(FORM, "tensorflow", "tf.train.Example, any lengths", _any_length)
    yield Cell(FORM, "tensorflow", "tf.train.Example, defaults", _defaults)
    yield Cell(FORM, "tensorflow", "tf.train.Example, a batch at once", _together)
    yield Cell(FORM, "tensorflow", "tf.train.Example, numbers that are not packed", _not_packed)
    yield Cell(
        FORM,
        "tensorflow",
        "tf.train.Example, a feature of another type",
        _other_type,
        "is a list of floats, but the feature says int64",
    )
    yield Cell(FORM, "tensorflow", "tf.io.serialize_tensor in an example", _serialized)
    yield Cell(FORM, "tfrecord", "TFRecordWriter", _tfrecord)
    yield Cell("Saved datasets", "tensorflow", "tf.data.Dataset.save", functools.partial(_saved, None))
    yield Cell("Saved datasets", "tensorflow", "tf.data.Dataset.save, GZIP", functools.partial(_saved, "GZIP"))


def _tf() -> Any:
    import tensorflow as tf

    return tf


def _records(compression: str, folder: Path, said: str | None = None) -> Any:
    tf = _tf()
    from replicant.data import TFRecordDataset

    path = str(folder / "file.tfrecord")
    with tf.io.TFRecordWriter(path, compression) as writer:
        for i in range(50):
            writer.write(bytes([i]) * (i * 37 % 1000))
    theirs = list(tf.data.TFRecordDataset(path, compression).as_numpy_iterator())
    return lambda: rows(TFRecordDataset(path, compression if said is None else said)), theirs


def _empty_records(folder: Path) -> Any:
    tf = _tf()
    from replicant.data import TFRecordDataset

    path = str(folder / "file.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for _ in range(3):
            writer.write(b"")
    return lambda: rows(TFRecordDataset(path)), list(tf.data.TFRecordDataset(path).as_numpy_iterator())


def _feature(value: Any) -> Any:
    tf = _tf()
    values = np.ravel(value)
    if values.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    if values.dtype.kind in "iub":
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values.tolist()))


def _example(**values: Any) -> bytes:
    tf = _tf()
    return tf.train.Example(
        features=tf.train.Features(feature={name: _feature(value) for name, value in values.items()})
    ).SerializeToString()


def _written(folder: Path, examples: list[bytes]) -> str:
    path = str(folder / "file.tfrecord")
    with _tf().io.TFRecordWriter(path) as writer:
        for example in examples:
            writer.write(example)
    return path


def _compared(path: str, features: dict[str, tuple[Any, ...]]) -> Any:
    """The examples of a file as both parse them. A feature is its shape or None, its dtype, and its default if there is one."""
    tf = _tf()
    import replicant.data as ours

    def described(module: Any, dtypes: Any) -> dict[str, Any]:
        return {
            name: module.VarLenFeature(dtypes[dtype]) if shape is None else module.FixedLenFeature(shape, dtypes[dtype], *default)
            for name, (shape, dtype, *default) in features.items()
        }

    own = described(ours, {"int64": np.int64, "float32": np.float32, "string": bytes})
    theirs = described(tf.io, {"int64": tf.int64, "float32": tf.float32, "string": tf.string})

    def read() -> list[Any]:
        return rows(ours.TFRecordDataset(path).map(lambda record: ours.parse_single_example(record, own)))

    parsed = tf.data.TFRecordDataset(path).map(lambda record: tf.io.parse_single_example(record, theirs))
    return read, [{name: _dense(value) for name, value in each.items()} for each in parsed]


def _dense(value: Any) -> Any:
    return value.values.numpy() if hasattr(value, "values") else value.numpy()


def _fixed(folder: Path) -> Any:
    examples = [_example(x=np.arange(6).reshape(2, 3) * i, y=[i / 7], text=[b"\xff\0" * i], label=[-i]) for i in range(10)]
    return _compared(
        _written(folder, examples), {"x": ((2, 3), "int64"), "y": ((), "float32"), "text": ((), "string"), "label": ((), "int64")}
    )


def _any_length(folder: Path) -> Any:
    examples = [_example(x=np.arange(i), y=np.arange(i) / 7, texts=[b"a"] * max(i, 1)) for i in range(1, 6)]
    return _compared(_written(folder, examples), {"x": (None, "int64"), "y": (None, "float32"), "texts": (None, "string")})


def _defaults(folder: Path) -> Any:
    examples = [_example(x=[1]), _example(y=[0.5], text=[b"t"]), _example(x=[2], y=[1.5])]
    return _compared(
        _written(folder, examples), {"x": ((), "int64", 7), "y": ((), "float32", -1.0), "text": ((), "string", b"none")}
    )


def _together(folder: Path) -> Any:
    tf = _tf()
    import replicant.data as ours

    path = _written(folder, [_example(x=np.arange(3) * i, text=[b"t" * i]) for i in range(7)])
    own = {"x": ours.FixedLenFeature((3,), np.int64), "text": ours.FixedLenFeature((), bytes)}
    its = {"x": tf.io.FixedLenFeature((3,), tf.int64), "text": tf.io.FixedLenFeature((), tf.string)}
    theirs = tf.data.TFRecordDataset(path).batch(4).map(lambda records: tf.io.parse_example(records, its))
    made = ours.TFRecordDataset(path).batch(4).map(lambda records: ours.parse_example(records, own))
    return lambda: rows(made), list(theirs.as_numpy_iterator())


def _not_packed(folder: Path) -> Any:
    """Each number with its own tag, as old writers of protocol buffers write them."""
    entry = b"\x0a\x01x\x12\x08\x1a\x06\x08\x05\x08\x06\x08\x07"  # x: an Int64List of three values
    features = b"\x0a" + bytes([len(entry)]) + entry
    path = _written(folder, [b"\x0a" + bytes([len(features)]) + features])
    return _compared(path, {"x": ((3,), "int64")})


def _other_type(folder: Path) -> Any:
    import replicant.data as ours

    path = _written(folder, [_example(x=[0.5])])
    own = {"x": ours.FixedLenFeature((), np.int64)}
    return lambda: rows(ours.TFRecordDataset(path).map(lambda record: ours.parse_single_example(record, own))), None


def _serialized(folder: Path) -> Any:
    tf = _tf()
    path = _written(folder, [_example(x=[tf.io.serialize_tensor(tf.range(i)).numpy()]) for i in range(3)])
    return _compared(path, {"x": ((), "string")})


# Its protocol buffers have the names of TensorFlow's, so one process cannot hold both.
_TFRECORD = """
import json, sys
from tfrecord import TFRecordWriter, reader
import numpy as np
writer = TFRecordWriter(sys.argv[1])
for i in range(5):
    writer.write({"x": (i, "int"), "y": (np.arange(3) * i / 7, "float"), "text": (b"t" * i, "byte")})
writer.close()
found = reader.tfrecord_loader(sys.argv[1], None, {"x": "int", "y": "float", "text": "byte"})
print(json.dumps([{"x": np.ravel(each["x"]).tolist(), "y": each["y"].tolist(), "text": each["text"].decode()} for each in found]))
"""


def _tfrecord(folder: Path) -> Any:
    path = str(folder / "file.tfrecord")
    done = subprocess.run([sys.executable, "-c", _TFRECORD, path], capture_output=True, text=True, check=True)
    read, _ = _compared(path, {"x": ((1,), "int64"), "y": ((3,), "float32"), "text": ((), "string")})
    return read, [
        {"x": np.array(each["x"]), "y": np.float32(each["y"]), "text": each["text"].encode()} for each in json.loads(done.stdout)
    ]


def _saved(compression: str | None, folder: Path) -> Any:
    tf = _tf()
    from replicant.data import Dataset

    path = str(folder / "saved")
    made = tf.data.Dataset.range(10).map(
        lambda i: {"x": i, "y": tf.cast(i, tf.float32) / 7, "text": tf.strings.as_string(i), "list": tf.range(i)}
    )
    made.save(path, compression=compression)
    theirs = list(tf.data.Dataset.load(path, compression=compression).as_numpy_iterator())
    return lambda: rows(Dataset.load(path, compression=compression)), theirs
