"""The file dataset_info.json: the name of a dataset, its splits, and which features are inputs and labels."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....errors import DatasetError
from ....storage._urls import checked_name, is_url
from .._small_files import NotJsonError, is_below, joined, json_file
from ._features import METHOD, Tree
from ._features_json import read_features
from ._splits import Split, slices_of

_FILE = "dataset_info.json"
_MOST_BYTES = 1 << 28
_MOST_LENGTH = 1 << 62
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)", re.ASCII)
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_VARIABLE = re.compile(r"\{([^{}]*)\}")
_DIGITS = 5


class Splits(dict[str, Split]):
    """The splits by name. An expression such as ``"train[:10%]"`` gives the part of a split, which has other files and lengths."""

    def __missing__(self, name: str) -> Split:
        slices = slices_of("tfds_info", name, self)
        return Split(name, tuple(each.file for each in slices), tuple(each.stop - each.start for each in slices))


@dataclasses.dataclass(frozen=True)
class TFDSInfo:
    """What a folder of TFDS says of itself.

    Args:
        folder: The path or URL of the folder.
        name: The name of the dataset.
        version: Its version.
        splits: The splits by name, each with ``num_examples`` and ``num_shards``.
        features: The features by name, in nested dicts, each with ``shape`` and ``dtype``, and those of classes with
            ``num_classes``, ``names``, ``int2str`` and ``str2int``.
        supervised_keys: The features that ``as_supervised`` gives, in its structure, or None.
        file_format: The format of the files.
        in_order: Whether the examples lie in the order in which they were made, and are read in it (``disable_shuffling``).
    """

    folder: str
    name: str
    version: str
    splits: Splits
    features: dict[str, Tree]
    supervised_keys: Any
    file_format: str
    in_order: bool


def read_info(path: Any) -> TFDSInfo:
    """Return what a folder says of itself.

    Raises:
        ArgumentTypeError: If the path is none.
        DatasetError: If there is no such folder, or it is damaged.
    """
    folder = _version_folder(checked_name(METHOD, path))
    file = joined(folder, _FILE)
    found = _loaded(file)
    name, form = found.get("name"), found.get("fileFormat") or "tfrecord"
    if not isinstance(name, str) or not is_below(name) or not isinstance(form, str) or not is_below(form):
        raise _wrong(file, f"it has {name!r} as the name of the dataset, and {form!r} as the format of its files")
    listed = found.get("splits") or []
    if not isinstance(listed, list):
        raise _wrong(file, "it has no list of splits")
    splits = Splits()
    for each in listed:
        split = _split(file, folder, name, form, each)
        if split.name in splits:
            raise _wrong(file, f"it has the split {split.name!r} twice")
        splits[split.name] = split
    version, in_order = str(found.get("version", "")), found.get("disableShuffling", False) is True
    return TFDSInfo(folder, name, version, splits, read_features(folder), _supervised(file, found), form, in_order)


def _version_folder(path: str) -> str:
    """The folder itself, or its newest version."""
    if is_url(path):
        return path
    path = str(Path(path).expanduser())
    if (Path(path) / _FILE).exists():
        return path
    versions: dict[tuple[int, ...], str] = {}
    others: list[str] = []
    try:
        for each in sorted(Path(path).iterdir()):
            if (found := _VERSION.fullmatch(each.name)) and (each / _FILE).exists():
                versions[tuple(map(int, found.groups()))] = str(each)
            elif each.is_dir():
                others.append(each.name)
    except OSError as error:
        raise DatasetError(f"{METHOD}: cannot open the folder {path!r}: {error.strerror}. {_REMEDY}") from error
    if versions:
        return versions[max(versions)]
    inside = f" Its folders are {others[:20]}: if they are configurations of the dataset, name one of them." if others else ""
    raise DatasetError(f"{METHOD}: {path!r} has no {_FILE}, and no folder of a version that has one.{inside} {_REMEDY}")


_REMEDY = (
    "Pass the folder that TFDS has written, such as '~/tensorflow_datasets/mnist/3.0.1'. Datasets are not downloaded: prepare "
    "them once with tensorflow_datasets, on any machine."
)


def _loaded(file: str) -> dict[str, Any]:
    try:
        found = json_file(METHOD, file, _MOST_BYTES, _REMEDY)
    except NotJsonError as error:
        raise _wrong(file, str(error)) from error
    if not isinstance(found, dict):
        raise _wrong(file, "it is not an object")
    return found


def _wrong(file: str, what: str) -> DatasetError:
    return DatasetError(f"{METHOD}: {file!r} does not describe a dataset: {what}. Copy or write the folder again.")


def _split(file: str, folder: str, dataset: str, form: str, found: Any) -> Split:
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise _wrong(file, "it has a split without a name")
    name, lengths = found["name"], found.get("shardLengths") or []
    if not isinstance(lengths, list) or (not lengths and found.get("numShards")):
        raise _wrong(file, f"the split {name!r} has no list of the lengths of its files ('shardLengths')")
    numbers = tuple(_count(file, name, each) for each in lengths)
    template = found.get("filepathTemplate") or _TEMPLATE
    parts = {"DATASET": dataset, "SPLIT": name, "FILEFORMAT": form}
    files = [joined(folder, _file_name(file, template, parts, number, len(numbers))) for number in range(len(numbers))]
    if len({*files}) < len(files):
        raise _wrong(file, f"{template!r}, the names of the files of the split {name!r}, gives the same name for several of them")
    return Split(name, tuple(sorted(files)), numbers)  # TFDS sorts them, too


def _count(file: str, split: str, value: Any) -> int:
    """A number of examples, which the JSON of protocol buffers writes as a string."""
    try:
        number = int(value) if isinstance(value, str | int) and not isinstance(value, bool) else -1
    except ValueError:
        number = -1
    if not 0 <= number < _MOST_LENGTH:
        raise _wrong(file, f"the split {split!r} has a file of {value!r} examples")
    return number


def _file_name(file: str, template: Any, parts: Mapping[str, str], number: int, count: int) -> str:
    """The name of a file of a split."""
    digits = max(_DIGITS, len(str(count)))
    shard = {"SHARD_INDEX": f"{number:0{digits}}", "NUM_SHARDS": f"{count:0{digits}}"}
    values = {**parts, **shard, "SHARD_X_OF_Y": f"{shard['SHARD_INDEX']}-of-{shard['NUM_SHARDS']}"}
    if not isinstance(template, str) or any(each not in values for each in _VARIABLE.findall(template)):
        raise _wrong(file, f"{template!r} has other variables than {sorted(values)}")
    name = _VARIABLE.sub(lambda found: values[found[1]], template)
    if not is_below(name):
        raise _wrong(file, f"a file is {name!r}, which is not below the folder")
    return name


def _supervised(file: str, found: dict[str, Any]) -> Any:
    """The names of the features that are inputs and labels, in the structure in which they are returned."""
    keys = found.get("supervisedKeys")
    if not keys:
        return None
    if isinstance(keys, dict) and keys.get("input") and keys.get("output"):
        keys = {"tuple": {"items": [{"featureKey": keys["input"]}, {"featureKey": keys["output"]}]}}
    return _nest(file, keys)


def _nest(file: str, node: Any) -> Any:
    if isinstance(node, dict):
        key, items = node.get("featureKey"), node.get("tuple")
        if isinstance(key, str):
            return key
        if isinstance(items, dict) and isinstance(items.get("items"), list):
            return tuple(_nest(file, each) for each in items["items"])
        named = node.get("dict")
        if isinstance(named, dict) and isinstance(named.get("dict"), dict):
            return {name: _nest(file, each) for name, each in named["dict"].items()}
    raise _wrong(file, f"'supervisedKeys' has {node!r}, which is not a feature, tuple or dict")
