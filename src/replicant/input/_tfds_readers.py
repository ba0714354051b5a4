"""Folders that tensorflow_datasets has written: `tfds_folder` and `tfds_info`."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError, DatasetError
from ._dataset import Dataset
from .files._file_names import FileNames
from .files._files import ReadFiles
from .files._limits import MAX_RECORD_BYTES, checked_limit
from .files.tfds._features import METHOD, check_decodable, undecoded, with_fast_dct
from .files.tfds._format import Examples
from .files.tfds._info import TFDSInfo, read_info
from .files.tfds._splits import slices_of
from .graph._graph import NOT_COMPARED, Node, nodes
from .graph._structure import STRING, TensorSpec, flatten, map_leaves
from .sources._sources import tensors
from .transforms.mixtures._interleave import WHOLE, Interleave

_CYCLE, _BLOCK = 16, 16  # files at a time, and examples of each in turn, as in tfds.ReadConfig
_FORMATS = ("tfrecord", "array_record")


class SkipDecoding:
    """As a decoder of `tfds_folder`: the feature stays as it is stored. A picture is the bytes of its file.

    >>> SkipDecoding()
    SkipDecoding()
    """

    def __repr__(self) -> str:
        return "SkipDecoding()"


def tfds_folder(
    path: str | os.PathLike[str],
    split: Any = None,
    *,
    decoders: Any = None,
    as_supervised: bool = False,
    shuffle_files: bool = False,
    shuffle_seed: int | None = None,
    read_order: str = "tfds",
    dct_method: str = "INTEGER_ACCURATE",
    max_record_bytes: int = MAX_RECORD_BYTES,
) -> Any:
    """Return the examples in a folder that tensorflow_datasets (TFDS) has written, as dicts of their features.

    Neither TensorFlow nor TFDS is needed. Elements are those of ``tfds.as_numpy``: numbers and arrays have the dtypes of their
    features, texts are bytes, pictures are ``[height, width, channels]``, and sequences are arrays. Sequences in sequences are
    lists of lists, as ``tf.RaggedTensor.to_list`` gives them. A ``tfds.features.Dataset`` is a `Dataset` of its steps. Positions
    are exact: a place in each file that is open.

    Args:
        path: The path or URL of the folder of a version, which has dataset_info.json; or the path of the folder above it, whose
            newest version is read.
        split: The split, as TFDS writes them: "train", "train[:10%]", "train[5:20]", "train[1shard:]", "train+test", "all". A
            list or a dict of splits gives a list or a dict of datasets, and None a dict of all splits.
        decoders: A dict of ``SkipDecoding()`` by feature: these features stay as they are stored.
        as_supervised: Whether elements are tuples of inputs and labels, as the folder names them.
        shuffle_files: Whether files are read in another order in each pass.
        shuffle_seed: The seed of these orders.
        read_order: "tfds" for the order of TFDS: 16 files at a time, 16 examples of each in turn, or one file after the other if
            they are ArrayRecord files, or the dataset was written with ``disable_shuffling``. "files" is always the latter.
        dct_method: How JPEG pictures are decoded: "INTEGER_ACCURATE" is more exact. "INTEGER_FAST" gives the pixels that TFDS
            gives, which differ from those by a few levels, and needs simplejpeg (``pip install 'replicant-jax[jpeg]'``). With
            that installed, either takes half the time.
        max_record_bytes: The most bytes that an example may take in its file.

    Raises:
        ArgumentError: If there is no such split, or it has no examples, or another argument is not allowed.
        ArgumentTypeError: If an argument has another type.
        ConfigurationError: During iteration, if Pillow, simplejpeg or array_record is needed and not installed (``pip install
            'replicant-jax[images]'``, ``'replicant-jax[jpeg]'`` or ``'replicant-jax[array-record]'``).
        DatasetError: If there is no such folder, or it is damaged, or a feature or the format of its files is not known. During
            iteration, if a file is missing or damaged, or has another number of examples than the folder says.
        ElementError: During iteration, if an example does not have what its features say; the message names the file and the
            number of the example. `Dataset.ignore_errors` leaves it out.

    >>> import json, pathlib, tempfile
    >>> from replicant.data import TFRecordWriter, encode_example
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> split = {"name": "train", "shardLengths": ["3"]}
    >>> _ = (folder / "dataset_info.json").write_text(json.dumps({"name": "few", "version": "1.0.0", "splits": [split]}))
    >>> def feature(name, **content):
    ...     return {"pythonClassName": f"tensorflow_datasets.core.features.{name}", **content}
    >>> features = {"x": feature("Tensor", tensor={"dtype": "int64", "shape": {}}), "name": feature("Text", text={})}
    >>> features = feature("FeaturesDict", featuresDict={"features": features})
    >>> _ = (folder / "features.json").write_text(json.dumps(features))
    >>> with TFRecordWriter(folder / "few-train.tfrecord-00000-of-00001") as writer:
    ...     for i in range(3):
    ...         writer.write(encode_example({"x": i, "name": f"number {i}"}))
    >>> list(tfds_folder(folder, "train[1:]"))
    [{'name': b'number 1', 'x': np.int64(1)}, {'name': b'number 2', 'x': np.int64(2)}]
    """
    info = read_info(path)
    features = _features(info, decoders, as_supervised, dct_method)
    form = _format(info, features, checked_limit(METHOD, max_record_bytes))
    order = _order(info, read_order, shuffle_files, shuffle_seed)
    return _for_each(list(info.splits) if split is None else split, lambda name: _read(info, form, order, name), split is None)


def tfds_info(path: str | os.PathLike[str]) -> TFDSInfo:
    """Return what a folder of tensorflow_datasets says of itself, as ``tfds.load(..., with_info=True)`` does.

    Args:
        path: The folder, as for `tfds_folder`.

    Returns:
        An object with ``name``, ``version``, ``splits``, ``features`` and ``supervised_keys``:
        ``info.splits["train[:10%]"].num_examples``, ``info.features["label"].names``.

    Raises:
        DatasetError: If there is no such folder, or it is damaged, or a feature is not known.

    >>> import json, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> split = {"name": "train", "shardLengths": ["300", "300"]}
    >>> _ = (folder / "dataset_info.json").write_text(json.dumps({"name": "few", "version": "1.0.0", "splits": [split]}))
    >>> label = {"pythonClassName": "tensorflow_datasets.core.features.ClassLabel", "classLabel": {"numClasses": "2"}}
    >>> features = {"pythonClassName": "tensorflow_datasets.core.features.FeaturesDict"}
    >>> _ = (folder / "features.json").write_text(json.dumps({**features, "featuresDict": {"features": {"label": label}}}))
    >>> _ = (folder / "label.labels.txt").write_text("cat" + chr(10) + "dog" + chr(10))
    >>> info = tfds_info(folder)
    >>> info.splits["train[:10%]"].num_examples, info.features["label"].names
    (60, ['cat', 'dog'])
    """
    return read_info(path)


def _features(info: TFDSInfo, decoders: Any, as_supervised: bool, dct_method: str) -> Any:
    """The features that are read, in the structure of an element."""
    if dct_method not in ("INTEGER_ACCURATE", "INTEGER_FAST"):
        raise ArgumentError(f'{METHOD}: dct_method must be "INTEGER_ACCURATE" or "INTEGER_FAST". Received: {dct_method!r}.')
    features = info.features if decoders is None else undecoded(info.features, decoders, SkipDecoding)
    features = _supervised(info, features) if as_supervised else features
    check_decodable(features)
    return with_fast_dct(features) if dct_method == "INTEGER_FAST" else features


def _format(info: TFDSInfo, features: Any, most: int) -> Examples:
    """How the files of a folder are read."""
    if info.file_format not in _FORMATS:
        other = "Read them by `ParquetDataset`." if info.file_format == "parquet" else "Write the folder again in one of these."
        raise DatasetError(
            f"{METHOD}: the files of {info.folder!r} have the format {info.file_format!r}, and those that are read are "
            f"{' and '.join(_FORMATS)}. {other}"
        )
    lengths = {file: length for its in info.splits.values() for file, length in zip(its.files, its.lengths, strict=True)}
    return Examples(f"{info.name}/{info.version}", features, lengths, info.file_format, most, Dataset)


def _supervised(info: TFDSInfo, features: dict[str, Any]) -> Any:
    """The features that are inputs and labels, in their structure."""
    if info.supervised_keys is None:
        raise ArgumentError(f"{METHOD}: as_supervised=True, but {info.name!r} does not name inputs and labels ('supervisedKeys').")
    if missing := [key for key in flatten(info.supervised_keys)[0] if key not in features]:
        raise DatasetError(
            f"{METHOD}: {info.folder!r} names {missing[0]!r} as an input or label ('supervisedKeys'), and its features are "
            f"{sorted(features)}. Copy the folder again."
        )
    return map_leaves(lambda key: features[key], info.supervised_keys)


@dataclasses.dataclass(frozen=True)
class _Order:
    """In which order files are read: how many at a time, how many examples of each in turn, and whether files are shuffled."""

    cycle_length: int
    block_length: int
    shuffled: bool
    seed: int | None


def _order(info: TFDSInfo, read_order: str, shuffle_files: bool, seed: int | None) -> _Order:
    if read_order not in ("tfds", "files"):
        raise ArgumentError(f'{METHOD}: read_order must be "tfds" or "files". Received: {read_order!r}.')
    if seed is not None and not shuffle_files:
        raise ArgumentError(f"{METHOD}: shuffle_seed={seed!r} has no effect without shuffle_files=True. Leave it out, or shuffle.")
    if info.in_order and shuffle_files:
        raise ArgumentError(
            f"{METHOD}: shuffle_files=True, but the examples of {info.name!r} lie in an order that is to be kept "
            "('disableShuffling'). Leave it out, or shuffle the dataset."
        )
    in_turn = read_order == "tfds" and not info.in_order and info.file_format != "array_record"
    return _Order(_CYCLE if in_turn else 1, _BLOCK if in_turn else WHOLE, bool(shuffle_files), seed)


def _for_each(split: Any, read: Callable[[str], Dataset], by_name: bool) -> Any:
    """The dataset of a split, or those of lists and dicts of splits."""
    if by_name:
        return {name: read(name) for name in split}
    if isinstance(split, dict):
        return {name: _for_each(each, read, False) for name, each in split.items()}
    if isinstance(split, list | tuple):
        return type(split)(_for_each(each, read, False) for each in split)
    if not isinstance(split, str):
        raise ArgumentTypeError(
            f"{METHOD}: split must be text such as 'train[:10%]', or a list or dict of such. Received: {split!r}."
        )
    return read(str(split))


@dataclasses.dataclass(frozen=True, eq=False)
class _Slices(FileNames):
    """The names of files, and which examples of each to read. Sharding by files shards this node."""

    spec: Any = dataclasses.field(
        default=(TensorSpec((), STRING), TensorSpec((), np.int64), TensorSpec((), np.int64)), metadata=NOT_COMPARED
    )

    @property
    def num_examples(self) -> int:
        """The number of examples."""
        _, starts, stops = self.tables
        return int((stops - starts).sum())


@dataclasses.dataclass(frozen=True, eq=False)
class _InTurn(Interleave):
    """The examples of several files in turn, of which it is known how many there are."""

    @property
    def cardinality(self) -> int:
        return sum(each.num_examples for each in nodes(self.input) if isinstance(each, _Slices))


def _read(info: TFDSInfo, form: Examples, order: _Order, split: str) -> Dataset:
    """The examples of a split."""
    slices = slices_of(METHOD, split, info.splits)
    files = np.array([each.file for each in slices], object)
    bounds = (np.array([getattr(each, end) for each in slices], np.int64) for end in ("start", "stop"))
    names = _Slices(size=len(slices), tables=(files, *bounds), name=f"{form.title} {split}")
    node: Node = names if not order.shuffled else Dataset(names).shuffle(len(slices), order.seed).node

    def tfds_folder(file: str, start: np.int64, stop: np.int64) -> Dataset:  # the name in the pipeline's description
        return Dataset(ReadFiles(inputs=(tensors(file),), form=form.part(int(start), int(stop))))

    tfds_folder.__qualname__ = METHOD
    return Dataset(_InTurn(inputs=(node,), fn=tfds_folder, cycle_length=order.cycle_length, block_length=order.block_length))
