"""What an example consists of: features, and where their values are in a serialized ``tf.train.Example``."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ....errors import ArgumentError, ArgumentTypeError, DatasetError
from ...graph._structure import STRING, DatasetSpec, TensorSpec, map_leaves
from .._small_files import is_missing, joined, whole_file
from ..records._example import BYTES, FLOAT, INT64

METHOD = "tfds_folder"
_MOST_NAMES = 1 << 26  # bytes of a file of class names
BFLOAT16 = np.dtype(jnp.bfloat16)

Shape = tuple[int | None, ...]
# Nested dicts of features.
Tree = Any


@dataclasses.dataclass(frozen=True)
class Feature:
    """One tensor of an example.

    Args:
        path: Where it is in the nested features, such as ``"objects/bbox"``.
        item: The shape of one item: of the tensor itself, or of each in a sequence. None is a size that can differ.
        item_dtype: The dtype of the items; strings have dtype object.
        encoding: How each item is stored: "" for a list of numbers or strings; "bytes", "zlib", "picture" or "audio" for one
            byte string.
        lengths: The lengths of the sequences that the items are in, the outermost first. None is a length that can differ.
        optional: Whether examples may lack it, which have the least value of its dtype instead.
    """

    path: str
    item: Shape
    item_dtype: np.dtype
    encoding: str = ""
    lengths: Shape = ()
    optional: bool = False

    @property
    def shape(self) -> Shape:
        """The shape of the feature in an example."""
        return (*self.lengths, *self.item)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the feature in an example."""
        return self.item_dtype

    @property
    def spec(self) -> TensorSpec:
        """The spec of the feature in an example."""
        return TensorSpec(self.shape, self.dtype)

    @property
    def is_ragged(self) -> bool:
        """Whether it is sequences in sequences, which are stored, and returned, as lists of different lengths."""
        return len(self.lengths) > 1

    @property
    def has_own_shape(self) -> bool:
        """Whether each item is stored with its shape, because more than one of its sizes can differ."""
        return self.encoding in ("bytes", "zlib") and self.item.count(None) > 1

    @property
    def kind(self) -> int:
        """The kind of list in which the values are stored."""
        if self.encoding or self.dtype == STRING:
            return BYTES
        return FLOAT if self.dtype.kind == "f" or self.dtype == BFLOAT16 else INT64

    @functools.cached_property
    def stored(self) -> dict[str, int]:
        """The names in an Example under which its values are, and the kind of list of each."""
        values = {f"{self.path}/value": self.kind, f"{self.path}/shape": INT64} if self.has_own_shape else {self.path: self.kind}
        if not self.is_ragged:
            return values
        flat = {f"{name}/ragged_flat_values": kind for name, kind in values.items()}
        return {**flat, **{each: INT64 for name in values for each in row_lengths(name, self)}}

    @property
    def default(self) -> Any:
        """The value of an optional feature that an example lacks, in the type in which values are stored."""
        if self.dtype == STRING:
            return b""
        if self.dtype == np.bool_:
            return 0
        info = np.iinfo(self.dtype) if self.kind == INT64 else jnp.finfo(self.dtype)
        return info.min

    def of_step(self) -> "Feature":
        """Return the same feature in one item of the outermost sequence."""
        return dataclasses.replace(self, lengths=self.lengths[1:])

    def without_decoding(self) -> Tree:
        """Return the feature as it is stored: byte strings instead of what they encode."""
        if not self.encoding:
            return self
        values = Feature(self.path, (), STRING, lengths=self.lengths)
        if not self.has_own_shape:
            return values
        shape = Feature(f"{self.path}/shape", (len(self.item),), np.dtype(np.int32), lengths=self.lengths)
        return {"shape": shape, "value": dataclasses.replace(values, path=f"{self.path}/value")}


def row_lengths(name: str, feature: Feature) -> list[str]:
    """Return the names of what says how long the lists in lists are, those of the outermost first."""
    return [f"{name}/ragged_row_lengths_{level}" for level in range(len(feature.lengths) - 1)]


@dataclasses.dataclass(frozen=True)
class Picture(Feature):
    """A picture, or a sequence of pictures. Its floats are stored as the four bytes of each.

    ``fast_dct`` says that JPEG pictures are decoded by the fast transform.
    """

    encoding: str = "picture"
    fast_dct: bool = False


@dataclasses.dataclass(frozen=True)
class ClassLabel(Feature):
    """A class, as a number from 0 on; -1 stands for none.

    Args:
        num_classes: The number of classes, or None if the folder does not say it.
        folder: The path or URL of the folder.
        names_file: The name of the file in it which may list the names.
    """

    num_classes: int | None = None
    folder: str = ""
    names_file: str = ""

    @functools.cached_property
    def names(self) -> list[str]:
        """The names of the classes; their numbers, if there are no names.

        Raises:
            DatasetError: If the file of the names cannot be read, or has another number of names.
        """
        path = joined(self.folder, self.names_file)
        try:
            data = whole_file("tfds_info", path, _MOST_NAMES, "Copy the folder again.")
        except DatasetError as error:
            if not is_missing(error):
                raise
            return [str(number) for number in range(self.num_classes or 0)]
        try:
            names = [name for line in data.decode().split("\n") if (name := line.strip())]
        except UnicodeDecodeError as error:
            raise DatasetError(f"tfds_info: {path!r} is not UTF-8: {error.reason} at byte {error.start}. Copy it again.") from error
        if self.num_classes is not None and len(names) != self.num_classes:
            raise DatasetError(
                f"tfds_info: {path!r} has {len(names)} names, but features.json says that {self.path!r} has {self.num_classes} "
                "classes. Copy the folder again."
            )
        return names

    def int2str(self, number: int) -> str:
        """Return the name of a class.

        Raises:
            ArgumentError: If there is no class with this number.
        """
        if not 0 <= number < len(self.names):
            raise ArgumentError(f"int2str: {self.path!r} has the classes 0 to {len(self.names) - 1}. Received: {number!r}.")
        return self.names[number]

    def str2int(self, name: str) -> int:
        """Return the number of a class.

        Raises:
            ArgumentError: If there is no class with this name.
        """
        if name not in self.names:
            raise ArgumentError(f"str2int: {self.path!r} has no class {name!r}. Its classes are {self.names}.")
        return self.names.index(name)


@dataclasses.dataclass(frozen=True)
class Steps:
    """A feature that is a dataset itself, as the steps of an episode are."""

    path: str
    length: int | None
    features: Tree  # of one step; in the file, each of them is a sequence

    @property
    def spec(self) -> DatasetSpec:
        """The spec of the feature in an example."""
        return DatasetSpec(spec_of(self.features))

    @property
    def stored(self) -> dict[str, int]:
        """The names in an Example under which its values are, and the kind of list of each."""
        return {name: kind for each in leaves_of(self.features) for name, kind in in_steps(each, self.length).stored.items()}


def in_steps(feature: Feature, length: int | None) -> Feature:
    """Return the feature of one step as it is stored for all steps."""
    return dataclasses.replace(feature, lengths=(length, *feature.lengths))


def leaves_of(tree: Tree) -> list[Any]:
    """Return the features of nested dicts and tuples, in the order of an element's leaves."""
    found: list[Any] = []
    map_leaves(found.append, tree)
    return found


def spec_of(tree: Tree) -> Any:
    """Return the specs of features in their structure."""
    return map_leaves(lambda each: each.spec, tree)


def undecoded(features: Tree, decoders: Any, skip: type, path: str = "") -> Tree:
    """Return the features, those for which there is a `SkipDecoding` as they are stored.

    Raises:
        ArgumentTypeError: If a decoder is something else.
        ArgumentError: If there is no such feature.
    """
    if isinstance(decoders, skip):
        return map_leaves(lambda each: _skipped(each, path), features)
    if not isinstance(decoders, dict):
        raise ArgumentTypeError(
            f"{METHOD}: decoders must be a dict of SkipDecoding() by feature, such as {{'image': SkipDecoding()}}. Received"
            f"{f' for {path!r}' if path else ''}: {decoders!r}. Decode in another way in `map`, from the bytes that are stored."
        )
    inner = features.features if isinstance(features, Steps) else features
    if unknown := [name for name in decoders if not isinstance(inner, dict) or name not in inner]:
        known = sorted(inner) if isinstance(inner, dict) else "not nested"
        raise ArgumentError(
            f"{METHOD}: decoders has {unknown[0]!r}, but the features{f' of {path!r}' if path else ''} are {known}."
        )
    changed = {name: undecoded(inner[name], each, skip, f"{path}/{name}".lstrip("/")) for name, each in decoders.items()}
    changed = {**inner, **changed}
    return dataclasses.replace(features, features=changed) if isinstance(features, Steps) else changed


def _skipped(feature: Any, path: str) -> Tree:
    if isinstance(feature, Steps):
        raise ArgumentError(
            f"{METHOD}: {path!r} is a dataset. Name the features of its steps: decoders={{{path!r}: {{name: SkipDecoding()}}}}."
        )
    return feature.without_decoding()


def with_fast_dct(features: Tree) -> Tree:
    """Return the features, with JPEG pictures that are decoded by the fast transform."""

    def changed(feature: Any) -> Any:
        if isinstance(feature, Steps):
            return dataclasses.replace(feature, features=with_fast_dct(feature.features))
        return dataclasses.replace(feature, fast_dct=True) if isinstance(feature, Picture) else feature

    return map_leaves(changed, features)


def check_decodable(features: Tree) -> None:
    """Check that all features can be decoded.

    Raises:
        DatasetError: If one cannot.
    """
    for each in leaves_of(features):
        if isinstance(each, Steps):
            check_decodable(each.features)
        elif each.encoding == "audio":
            raise DatasetError(
                f"{METHOD}: the feature {each.path!r} is stored as files of sound (lazy_decode), which are not decoded. Pass "
                f"decoders={{{each.path!r}: SkipDecoding()}}, which gives their bytes, and decode these in `map`."
            )


def names_file_of(parts: Sequence[str]) -> str:
    """Return the name of the file with the class names of a feature, whose path has these parts."""
    return "-".join(part.replace("/", ".") for part in parts) + ".labels.txt"
