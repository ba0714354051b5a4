"""The cases of tf.data, and the words in which they are written.

`cases/tfdata.txt` has one expression per line, under the name of what it is about. `_record_tfdata.py` evaluates them with
TensorFlow and writes `figures/tfdata.json`. `test_tfdata.py` evaluates the same expressions with Replicant. This module imports
neither.
"""

import gzip
import hashlib
import itertools
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

MOST = 40  # elements that are recorded
FILE = Path(__file__).parent / "cases" / "tfdata.txt"


def all_cases() -> dict[str, list[str]]:
    """Return the expressions by what they are about."""
    found: dict[str, list[str]] = {}
    subject = ""
    for line in filter(None, FILE.read_text().splitlines()):
        if line.startswith("["):
            subject = line.strip("[]")
        else:
            found.setdefault(subject, []).append(line)
    return found


def whole(value):
    return np.array(value, np.int64)[()]


def frame(*args, **options):
    import pandas as pd

    return pd.DataFrame(*args, **options)


def packed(data, form):
    return {"": bytes, "GZIP": gzip.compress, "ZLIB": zlib.compress}[form](data)


class Words:
    """The words that are the same in both libraries, given a class of datasets, what is plain, and a folder to write to."""

    def __init__(self, dataset: Any, plain: Any, path: Path) -> None:
        self.dataset, self.plain, self.path = dataset, plain, path

    def all(self) -> dict[str, Any]:
        """Return the words that cases may use."""
        words = ("text", "folder", "saved", "resaved", "snap", "srt", "twice", "share", "same")
        own = {name: getattr(self, name) for name in words}
        return {**own, "D": self.dataset, "np": np, "i64": whole, "frame": frame, "raw": self.text}

    def text(self, content, form=""):
        """Return the name of a file with this content. The same content has the same name, so that positions stay valid."""
        file = self.path / f"{hashlib.sha1((form + content).encode()).hexdigest()}.csv"
        if not file.exists():
            file.write_bytes(packed(content.encode(), form))
        return str(file)

    def folder(self):
        """Return a new folder. Its name is always the same, because positions contain it."""
        path = Path(tempfile.mkdtemp(dir=self.path)) / "folder"
        path.mkdir()
        return str(path)

    def saved(self, dataset, load=None, **options):
        path = self.folder()
        dataset.save(path, **options)
        compression = {name: value for name, value in options.items() if name == "compression"}
        return self.dataset.load(path, **{**compression, **(load or {})})

    def resaved(self, *datasets):
        path = self.folder()
        for dataset in datasets:
            dataset.save(path)
        return self.dataset.load(path)

    def snap(self, dataset, **options):
        return dataset.snapshot(self.folder(), **options)

    def first(self, dataset):
        return [self.plain(element) for element in itertools.islice(dataset, MOST)]

    def srt(self, dataset):
        return sorted(self.plain(element) for element in dataset)

    def twice(self, dataset):
        return [self.plain(element) for element in dataset] == [self.plain(element) for element in dataset]

    def share(self, dataset):
        return round(float(np.mean([float(self.plain(x)) for x in dataset.take(4000)])), 1)

    def same(self, one, other):
        return bool(one.fingerprint() == other.fingerprint())
