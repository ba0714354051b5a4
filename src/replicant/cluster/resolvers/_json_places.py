"""Finds the place of each value in a JSON text, so that an error can point at it."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..._untrusted_json import read_json
from ...errors import ClusterError

Path = tuple[str | int, ...]

_MOST_BYTES = 1 << 23  # 65,536 tasks with names of 100 characters
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


class Places(Mapping[Path, str]):
    """The place of each value in a text, by its path of keys and indices. It is worked out when it is asked for."""

    def __init__(self, text: str, offsets: dict[Path, int]):
        self._text, self._offsets = text, offsets

    def __getitem__(self, path: Path) -> str:
        return _place(self._text, self._offsets[path])

    def __iter__(self) -> Iterator[Path]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)


def load_with_places(text: str, name: str) -> tuple[Any, Places]:
    """Parse a JSON text, and find the place of each value in it.

    Args:
        text: The JSON text.
        name: The name of the text in error messages.

    Returns:
        The value, and the place ``"line L, column C"`` of each value in it.

    Raises:
        ClusterError: If the text is not JSON that somebody wrote by hand or for a cluster, or if an object in it has a key twice.

    >>> value, places = load_with_places('{"worker": ["a:1", "b:1"]}', "TF_CONFIG")
    >>> value, places[("worker", 1)]
    ({'worker': ['a:1', 'b:1']}, 'line 1, column 20')
    """
    try:
        value = read_json(text, _MOST_BYTES)
    except json.JSONDecodeError as error:
        near = text[error.pos : error.pos + 20]
        at = f"at {near!r}" if near else "at its end"
        raise ClusterError(f"{name} is not JSON: line {error.lineno}, column {error.colno}, {at}: {error.msg}.") from error
    except ValueError as error:
        raise ClusterError(f"{name} {error}.") from error
    offsets: dict[Path, int] = {}
    _walk(text, _skip(text, 0), (), offsets, name)
    return value, Places(text, offsets)


def _walk(text: str, at: int, path: Path, offsets: dict[Path, int], name: str) -> int:
    """Note where the value at `at` and all values in it begin, in a text that is known to be valid. Returns where it ends."""
    offsets[path] = at
    if text[at] not in "{[":
        return _DECODER.raw_decode(text, at)[1]
    is_object = text[at] == "{"
    at = _skip(text, at + 1)
    index = 0
    while text[at] not in "}]":
        key: str | int = index
        if is_object:
            start = at
            key, at = _DECODER.raw_decode(text, at)
            if (*path, key) in offsets:
                raise ClusterError(f"{name}, {_place(text, start)}: the key {key!r} occurs twice.")
            at = _skip(text, _skip(text, at) + 1)  # the colon
        at = _skip(text, _walk(text, at, (*path, key), offsets, name))
        if text[at] == ",":
            at = _skip(text, at + 1)
        index += 1
    return at + 1


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _place(text: str, offset: int) -> str:
    return f"line {text.count(chr(10), 0, offset) + 1}, column {offset - text.rfind(chr(10), 0, offset)}"
