"""Writes figures/tfdata.json: what TensorFlow gives for the expressions in cases/tfdata.txt.

Run it with a Python that has TensorFlow 2.21 and pandas: ``python tests/conformance/_record_tfdata.py``. With names of subjects,
only these are recorded anew.
"""

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.update(CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="3")

import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parent))

import _tfdata_cases

FIGURES = Path(__file__).parent / "figures" / "tfdata.json"
D = tf.data.Dataset


def failing(x, *bad):
    for each in bad:
        with tf.control_dependencies([tf.debugging.assert_none_equal(x, tf.constant(each, x.dtype))]):
            x = tf.identity(x)
    return x


def records(path):
    def file(*contents, form=""):
        name = str(Path(tempfile.mkdtemp(dir=path)) / "records")
        with tf.io.TFRecordWriter(name, form) as writer:
            for content in contents:
                writer.write(content.encode())
        return name

    return file


def plain(value):
    if isinstance(value, D):
        return {"dataset": [plain(element) for element in value]}
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    value = value.numpy() if isinstance(value, tf.Tensor) else value
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [plain(each) for each in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def types(spec):
    if isinstance(spec, tf.data.DatasetSpec):
        return {"dataset": types(spec.element_spec)}
    if isinstance(spec, dict):
        return {key: types(each) for key, each in spec.items()}
    if isinstance(spec, tuple):
        return [types(each) for each in spec]
    return [spec.dtype.name, None if spec.shape.rank is None else list(spec.shape)]


def recorded(call: str, names: dict[str, Any]) -> dict[str, Any]:
    """Evaluate one expression."""
    try:
        got = eval(call, dict(names))
        if isinstance(got, D):
            facts = {"cardinality": int(got.cardinality()), "spec": types(got.element_spec)}
            return {"call": call, **facts, "elements": [plain(element) for element in got.take(_tfdata_cases.MOST)]}
        dtype = {"dtype": got.dtype.name} if isinstance(got, tf.Tensor) else {}
        return {"call": call, "value": plain(got), **dtype}
    except Exception as error:  # noqa: BLE001 - whatever TensorFlow raises is a figure
        message = re.sub(r"^\{\{.*?\}\} ", "", (str(error).splitlines() or [""])[0])  # the name of an operation
        return {"call": call, "error": type(error).__name__, "message": message[:100]}


def main(subjects: list[str]) -> None:
    figures = json.loads(FIGURES.read_text()) if subjects else {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        words = _tfdata_cases.Words(D, plain, Path(folder)).all()
        names = {
            **words,
            "failing": failing,
            "fill": lambda n: tf.fill([tf.cast(n, tf.int32)], n),
            "cast": tf.cast,
            "where": tf.where,
            "total": tf.reduce_sum,
            "size": tf.size,
            "Spec": tf.TensorSpec,
            "records": records(folder),
            "Csv": tf.data.experimental.CsvDataset,
            "make_csv": tf.data.experimental.make_csv_dataset,
            "Fixed": tf.data.FixedLengthRecordDataset,
            "Lines": tf.data.TextLineDataset,
            "Records": tf.data.TFRecordDataset,
        }
        for subject, calls in _tfdata_cases.all_cases().items():
            if not subjects or subject in subjects:
                print(subject, len(calls), flush=True)
                figures[subject] = [recorded(call, names) for call in calls]
        os.chdir(Path(__file__).parent)
    parts = [f"{json.dumps(subject)}: [\n" + ",\n".join(map(json.dumps, rows)) + "\n]" for subject, rows in figures.items()]
    FIGURES.write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
