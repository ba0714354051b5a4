"""The file features.json: from JSON to features. Older versions of TFDS wrote it in another way, which is read, too."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ....errors import DatasetError
from ...graph._structure import STRING
from .._small_files import NotJsonError, joined, json_file
from ._features import BFLOAT16, METHOD, ClassLabel, Feature, Picture, Shape, Steps, Tree, leaves_of, names_file_of

_MOST_BYTES = 1 << 26
_NUMBERS = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float16", "float32", "float64")
_DTYPES = {**{name: np.dtype(name) for name in _NUMBERS}, "string": STRING, "bfloat16": BFLOAT16}
_COMPLEX = {name: np.dtype(name) for name in ("complex64", "complex128")}  # stored as bytes only
_PACKAGE = "tensorflow_datasets."
_MOST_SIZE = 1 << 31


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a feature is: in which folder, under which names, and in sequences of which lengths."""

    folder: str
    parts: tuple[str, ...] = ()
    lengths: Shape = ()

    @property
    def path(self) -> str:
        return "/".join(self.parts)

    @property
    def file(self) -> str:
        return joined(self.folder, "features.json")

    def inside(self, name: str) -> "_Place":
        return dataclasses.replace(self, parts=(*self.parts, name))

    def repeated(self, length: int | None) -> "_Place":
        return dataclasses.replace(self, lengths=(*self.lengths, length))

    def wrong(self, what: str, remedy: str = "Copy the folder again.") -> DatasetError:
        feature = f"the feature {self.path!r}" if self.parts else "it"
        return DatasetError(f"{METHOD}: in {self.file!r}, {feature} {what}. {remedy}")


def read_features(folder: str) -> dict[str, Tree]:
    """Return the features of a folder's examples.

    Raises:
        DatasetError: If features.json is missing or damaged, or has a feature that is not known.
    """
    place = _Place(folder)
    try:
        found = json_file(
            METHOD, place.file, _MOST_BYTES, "TFDS writes it since version 4.2: write the folder again with a newer one."
        )
    except NotJsonError as error:
        raise DatasetError(f"{METHOD}: {place.file!r} does not describe features: {error}. Copy the folder again.") from error
    features = _feature(place, found)
    if not isinstance(features, dict):
        raise place.wrong("is not a dict of features", "Write the folder again, with a FeaturesDict.")
    seen: set[str] = set()
    for each in leaves_of(features):
        for name in each.stored:
            if name in seen:
                raise place.wrong(f"has two features that are both stored as {name!r}", "Rename one, and write the folder again.")
            seen.add(name)
    return features


def _feature(place: _Place, found: Any) -> Tree:
    """The feature that a value of JSON describes."""
    if not isinstance(found, dict):
        raise place.wrong("is not an object")
    name = found.get("pythonClassName", found.get("type"))
    kind = name.rpartition(".")[2] if isinstance(name, str) and name.startswith(_PACKAGE) else None
    if kind not in _KINDS:
        known = ", ".join(sorted(_KINDS))
        raise place.wrong(f"is of the class {name!r}, which is not known", f"Those that are read are {known} of TFDS.")
    content, read = _KINDS[kind]
    return read(place, _content(place, found, content))


def _content(place: _Place, found: dict[str, Any], name: str) -> dict[str, Any]:
    """What describes a feature of a kind."""
    content = found.get(name, found.get("content", {}))
    if not isinstance(content, dict):
        raise place.wrong(f"has no object as its {name!r}")
    if name == "featuresDict" and "type" in found and "proto_cls" not in found:
        return {"features": content}
    return content


def _dict(place: _Place, content: dict[str, Any]) -> Tree:
    features = content.get("features", {})
    if not isinstance(features, dict) or not features:
        raise place.wrong("has no features")
    return {name: _feature(place.inside(name), each) for name, each in features.items()}


def _tensor(place: _Place, content: dict[str, Any]) -> Tree:
    encoding = content.get("encoding") or "none"
    encoding = encoding.lower() if isinstance(encoding, str) else encoding
    if encoding not in ("none", "bytes", "zlib"):
        raise place.wrong(f"is encoded as {encoding!r}; those that are read are 'none', 'bytes' and 'zlib'")
    dtype = _dtype(place, content, encoding)
    made = Feature(
        place.path,
        _shape(place, content),
        dtype,
        "" if encoding == "none" else encoding,
        place.lengths,
        bool(content.get("optional")),
    )
    return _checked(place, made)


def _checked(place: _Place, feature: Feature) -> Feature:
    """A feature whose shape can be told from its values."""
    free = (feature.item if feature.is_ragged else feature.shape).count(None)
    if feature.encoding == "" and free > (0 if feature.is_ragged else 1):
        raise place.wrong(
            f"has the shape {feature.shape}, of which nothing in an example says how its values fill it",
            "TFDS does not read it either: write it with encoding='zlib'.",
        )
    if feature.encoding and feature.dtype == STRING and feature.encoding in ("bytes", "zlib"):
        raise place.wrong(f"has strings that are encoded as {feature.encoding!r}, which TFDS does not know either")
    return feature


def _audio(place: _Place, content: dict[str, Any]) -> Tree:
    made = _tensor(place, content)
    return dataclasses.replace(made, encoding="audio") if content.get("lazyDecode", content.get("lazy_decode")) else made


def _text(place: _Place, content: dict[str, Any]) -> Tree:
    if "use_encoder" in content:
        raise place.wrong("is text that an encoder of TFDS has made into numbers", "Write the folder again, with plain text.")
    return Feature(place.path, (), STRING, lengths=place.lengths)


def _class_label(place: _Place, content: dict[str, Any]) -> Tree:
    classes = content.get("numClasses", content.get("num_classes"))
    number = None if classes is None else _whole(place, "numClasses", classes)
    dtype = np.dtype(np.int64)
    names_file = names_file_of(place.parts)
    return ClassLabel(place.path, (), dtype, "", place.lengths, num_classes=number, folder=place.folder, names_file=names_file)


def _bounding_box(place: _Place, content: dict[str, Any]) -> Tree:
    del content
    return Feature(place.path, (4,), np.dtype(np.float32), lengths=place.lengths)


def _picture(place: _Place, content: dict[str, Any], shape: Shape | None = None) -> Tree:
    shape = _shape(place, content) if shape is None else shape
    shape = shape or (None, None, 3)
    dtype = _dtype(place, content, "picture")
    if len(shape) != 3 or shape[2] not in (None, 1, 3, 4):
        raise place.wrong(f"has pictures of the shape {shape}; those that are read are (height, width, channels), with 1, 3 or 4")
    if dtype not in (np.uint8, np.uint16, np.float32) or (dtype == np.float32 and shape[2] != 1):
        raise place.wrong(f"has pictures of {dtype} and shape {shape}; TFDS knows uint8, uint16, and float32 with one channel")
    return Picture(place.path, shape, dtype, lengths=place.lengths)


def _labeled_picture(place: _Place, content: dict[str, Any]) -> Tree:
    return _picture(place, content, _shape(place, content) or (None, None, 1))


def _video(place: _Place, content: dict[str, Any]) -> Tree:
    length, *frame = _shape(place, content) or (None, None, None, 3)
    return _picture(place.repeated(length), content, tuple(frame))


def _sequence(place: _Place, content: dict[str, Any]) -> Tree:
    return _feature(place.repeated(_length(place, content)), content.get("feature"))


def _dataset(place: _Place, content: dict[str, Any]) -> Tree:
    if place.lengths:
        raise place.wrong("is a dataset in a sequence or another dataset", "TFDS does not read it either.")
    features = _feature(place, content.get("feature"))
    if any(isinstance(each, Steps) for each in leaves_of(features)):
        raise place.wrong("is a dataset of datasets", "TFDS does not read it either.")
    return Steps(place.path, _length(place, content), features)


def _translation(place: _Place, content: dict[str, Any]) -> Tree:
    languages = content.get("languages")
    if not isinstance(languages, list) or not languages or not all(isinstance(each, str) for each in languages):
        raise place.wrong("is a translation without languages")
    return {language: _text(place.inside(language), {}) for language in languages}


def _translations(place: _Place, content: dict[str, Any]) -> Tree:
    del content
    place = place.repeated(None)
    return {name: _text(place.inside(name), {}) for name in ("language", "translation")}


def _length(place: _Place, content: dict[str, Any]) -> int | None:
    length = content.get("length", 0)
    return None if length is None else _size(place, length)


def _shape(place: _Place, content: dict[str, Any]) -> Shape:
    shape = content.get("shape", [])
    sizes = shape.get("dimensions", []) if isinstance(shape, dict) else shape
    if not isinstance(sizes, list):
        raise place.wrong(f"has the shape {shape!r}, which is not a list of sizes")
    return tuple(None if size is None else _size(place, size) for size in sizes)


def _size(place: _Place, value: Any) -> int | None:
    number = _whole(place, "a size", value, least=-1)
    return None if number == -1 else number


def _whole(place: _Place, what: str, value: Any, least: int = 0) -> int:
    """A whole number, which the JSON of protocol buffers writes as a string."""
    try:
        number = int(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
    except ValueError:
        number = None
    if number is None or not least <= number < _MOST_SIZE:
        raise place.wrong(f"has {value!r} as {what}, which must be a whole number from {least} to {_MOST_SIZE - 1}")
    return number


def _dtype(place: _Place, content: dict[str, Any], encoding: str) -> np.dtype:
    name = content.get("dtype") or ("uint8" if encoding == "picture" else None)
    known = {**_DTYPES, **_COMPLEX} if encoding in ("bytes", "zlib") else _DTYPES
    if not isinstance(name, str) or name not in known:
        raise place.wrong(f"has the dtype {name!r}; those that are read are {', '.join(known)}")
    return known[name]


# What describes a feature of a class of TFDS, and what reads it.
_KINDS: dict[str, tuple[str, Callable[[_Place, dict[str, Any]], Tree]]] = {
    "Audio": ("audio", _audio),
    "BBoxFeature": ("boundingBox", _bounding_box),
    "ClassLabel": ("classLabel", _class_label),
    "Dataset": ("sequence", _dataset),
    "FeaturesDict": ("featuresDict", _dict),
    "Image": ("image", _picture),
    "LabeledImage": ("image", _labeled_picture),
    "Scalar": ("tensor", _tensor),
    "Sequence": ("sequence", _sequence),
    "Tensor": ("tensor", _tensor),
    "Text": ("text", _text),
    "Translation": ("translation", _translation),
    "TranslationVariableLanguages": ("translation", _translations),
    "Video": ("video", _video),
}
