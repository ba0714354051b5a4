"""Arrays of tokens, rows of tokens, and their encodings. Pure: NumPy and no Keras."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError, ArgumentTypeError

MODES = ("int", "one_hot", "multi_hot", "count", "tf_idf")
_OLD_MODES = {"binary": "multi_hot", "tf-idf": "tf_idf"}
_WORD = re.compile(r"[^ \t\n\v\f\r]+")  # TensorFlow splits at ASCII whitespace only
_LOWER = {ord(letter): ord(letter) + 32 for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}  # and lowers ASCII letters only
_PUNCTUATION = {ord(mark): None for mark in "!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~'"}
_UNREADABLE = dict.fromkeys(range(0xDC80, 0xDD00), 0xFFFD)


def one_of(value: Any, allowed: Sequence[str], argument: str, owner: str) -> None:
    """Raise ArgumentError unless a value is one of the allowed strings."""
    if not (isinstance(value, str) and value in allowed):
        raise ArgumentError(f"{argument}={value!r} is unknown to {owner}. Use one of {', '.join(map(repr, allowed))}.")


def mode_of(value: Any, owner: str, allowed: Sequence[str] = MODES) -> str:
    """Return an output mode under its present name."""
    mode = _OLD_MODES.get(value, value) if isinstance(value, str) else value
    one_of(mode, allowed, "output_mode", owner)
    return mode


def dense_only(sparse: bool, owner: str) -> None:
    """Raise ArgumentError for sparse=True: JAX programs take dense arrays."""
    if sparse:
        raise ArgumentError(f"sparse=True: {owner} gives dense arrays, as all layers do on JAX. Leave `sparse` out.")


def salt_of(salt: Any, owner: str) -> tuple[int, int] | None:
    """Return a salt as two integers."""
    if salt is None:
        return None
    if isinstance(salt, int):
        return (salt, salt)
    if isinstance(salt, tuple | list) and len(salt) == 2:
        return (salt[0], salt[1])
    raise ArgumentError(f"salt={salt!r}: {owner} takes an integer or a pair of integers.")


def text(value: Any) -> str:
    """Return a string as TensorFlow holds it: UTF-8, where bytes that are not UTF-8 keep their values."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, str):
        return str(value)
    raise ArgumentTypeError(
        f"a layer for strings got a {type(value).__name__} ({value!r}). It runs on the host: give it strings or bytes, in an array "
        "or a list whose rows have one length, for example in dataset.map(layer), before the data reaches a strategy."
    )


def raw(value: str) -> bytes:
    """Return the bytes of a string that `text` returned."""
    return value.encode("utf-8", "surrogateescape")


def string_array(values: Any) -> NDArray[np.object_]:
    """Return strings, or nested lists or an array of them, as an array of str objects."""
    array = np.empty((), object)
    if isinstance(values, str | bytes):
        array[()] = text(values)
        return array
    array = np.asarray(values, dtype=object)
    flat = np.empty(array.size, object)
    flat[:] = [text(value) for value in array.reshape(-1)]
    return flat.reshape(array.shape)


def standardized(value: str, how: str | None) -> str:
    """Lower a string, strip its punctuation, or both."""
    if how in ("lower", "lower_and_strip_punctuation"):
        value = value.translate(_LOWER)
    if how in ("strip_punctuation", "lower_and_strip_punctuation"):
        value = value.translate(_PUNCTUATION)
    return value


def words_of(value: str) -> list[str]:
    """Split a string at whitespace."""
    return _WORD.findall(value)


def characters_of(value: str) -> list[str]:
    """Split a string into characters. A byte that is not UTF-8 becomes U+FFFD."""
    return list(value.translate(_UNREADABLE))


def ngrams_of(tokens: Sequence[str], widths: Iterable[int]) -> list[str]:
    """Return the n-grams of each width, one width after the other, joined by spaces."""
    return [" ".join(tokens[at : at + width]) for width in widths for at in range(len(tokens) - width + 1)]


@dataclasses.dataclass(frozen=True)
class Rows:
    """Lists of different lengths, arranged in an array of any shape: one list for each of its places.

    Args:
        shape: The shape of the array; () for a single list.
        rows: The lists, row by row.
    """

    shape: tuple[int, ...]
    rows: list[Any]

    @classmethod
    def of(cls, array: NDArray[Any]) -> "Rows":
        """Return the rows of an array along its last axis."""
        return cls(array.shape[:-1], list(array.reshape(math.prod(array.shape[:-1]), array.shape[-1])))

    def map(self, fn: Callable[[Any], Any]) -> "Rows":
        """Apply a function to each list."""
        return Rows(self.shape, [fn(row) for row in self.rows])

    @property
    def flat(self) -> list[Any]:
        """All items, one after the other."""
        return [item for row in self.rows for item in row]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The lengths of the lists."""
        return np.fromiter(map(len, self.rows), np.int64, len(self.rows))

    def with_items(self, flat: NDArray[Any]) -> "Rows":
        """Return the same rows with other items."""
        return Rows(self.shape, np.split(flat, np.cumsum(self.lengths)[:-1]) if self.rows else [])

    def padded(self, length: int | None = None) -> NDArray[np.int64]:
        """Return an array of integers: zeros follow short lists, and long ones are cut. None is the length of the longest list."""
        lengths = self.lengths
        length = int(lengths.max(initial=0)) if length is None else length
        result = np.zeros((len(self.rows), length), np.int64)
        for place, row in zip(result, self.rows, strict=True):
            place[: len(row)] = row[:length]
        return result.reshape((*self.shape, length))


def encoded(indices: NDArray[Any], mode: str, depth: int, dtype: Any) -> NDArray[Any]:
    """Encode an array of indices. An index outside of 0 to depth - 1 counts nowhere.

    In "one_hot", each element becomes a vector, in place of a last axis of size 1. In "multi_hot" and "count", the elements along
    axis 1 (of a vector: along axis 0) become one vector, as in Keras.
    """
    if mode == "int":
        return indices.astype(dtype)
    if indices.ndim == 0:
        indices = indices[None]
    if mode == "one_hot":
        if indices.ndim > 1 and indices.shape[-1] == 1:
            indices = indices[..., 0]
        return one_hot(indices, depth, dtype)
    axis = min(1, indices.ndim - 1)
    along = np.moveaxis(indices, axis, -1)
    return counted(Rows.of(along), mode, depth, dtype)


def one_hot(indices: NDArray[Any], depth: int, dtype: Any) -> NDArray[Any]:
    """Return a vector for each index."""
    result = np.zeros((indices.size, depth), dtype)
    flat = indices.reshape(-1)
    valid = np.flatnonzero((flat >= 0) & (flat < depth))
    result[valid, flat[valid].astype(np.int64)] = 1
    return result.reshape((*indices.shape, depth))


def counted(indices: Rows, mode: str, depth: int, dtype: Any) -> NDArray[Any]:
    """Return for each row how often each index occurs in it or, in "multi_hot", whether it does."""
    num = math.prod(indices.shape)
    flat = np.concatenate([np.zeros(0, np.int64), *(np.asarray(row, np.int64) for row in indices.rows)])
    places = np.repeat(np.arange(num), indices.lengths)
    valid = (flat >= 0) & (flat < depth)
    counts = np.bincount(places[valid] * depth + flat[valid], minlength=num * depth)
    if mode == "multi_hot":
        counts = counts > 0
    return counts.astype(dtype).reshape((*indices.shape, depth))
