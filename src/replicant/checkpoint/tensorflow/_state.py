"""The file ``checkpoint`` beside TensorFlow's checkpoints, which says which is the newest: a message as text (CheckpointState)."""

import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...errors import CheckpointError
from ...storage._path import RemotePath
from ...storage._write import is_missing
from ..folders._locations import Place, place_at
from ..format._files import open_file
from ._prefix import is_prefix
from .files._damage import damaged, reading

STATE = "checkpoint"
_MOST_BYTES = 64 << 20
_TOKEN = re.compile(
    rb"""(?P<nothing>[\s;,]+|\#[^\n]*)
    |(?P<name>[A-Za-z_]\w*)[\s]*:
    |(?P<number>[-+.0-9][-+.0-9A-Za-z]*)
    |"(?P<double>(?:[^"\\\n]|\\.)*)"
    |'(?P<single>(?:[^'\\\n]|\\.)*)'""",
    re.VERBOSE,
)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_LETTERS = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_NEWEST, _ALL, _TIMES, _KEPT = (
    "model_checkpoint_path",
    "all_model_checkpoint_paths",
    "all_model_checkpoint_timestamps",
    "last_preserved_timestamp",
)


class State(NamedTuple):
    """What the file says.

    Args:
        newest: The path or URL of the newest checkpoint; None if there is no file, or it names none.
        all: Those of all that TensorFlow kept at that time, the oldest first. They need not be there any more.
        timestamps: When each was saved, in seconds since 1970; nothing if it does not say.
        last_preserved: When the last one was saved that is kept for good, in seconds since 1970.
    """

    newest: str | None = None
    all: tuple[str, ...] = ()
    timestamps: tuple[float, ...] = ()
    last_preserved: float | None = None


def checkpoint_state(folder: Place) -> State:
    """Read the file ``checkpoint`` in a folder. All of the state is empty if there is none.

    A relative path in it is one in the folder. Where an absolute one names no checkpoint, because the folder was moved, it stands
    for the checkpoint of the same name in the folder, if that is there.

    Raises:
        CheckpointError: If the file cannot be read, or is not such a message.
    """
    file = folder / STATE
    data = _contents(file)
    found: dict[str, list[Any]] = {_NEWEST: [], _ALL: [], _TIMES: [], _KEPT: []}
    for name, value in _fields(file, data or b""):
        if name not in found or isinstance(value, str) != (name in (_NEWEST, _ALL)):
            raise damaged(file, f"it says {name}: {value!r}, which TensorFlow does not write")
        found[name].append(value)
    paths = [_resolved(folder, each) for each in (*found[_NEWEST][-1:], *found[_ALL])]
    newest = paths[0] if found[_NEWEST] else None
    kept = found[_KEPT][-1] if found[_KEPT] else None
    return State(newest, tuple(paths[bool(found[_NEWEST]) :]), tuple(found[_TIMES]), kept)


def _contents(file: Place) -> bytes | None:
    """The bytes of a file; None if there is none."""
    with reading(file):
        try:
            with open_file(file) as stream:
                size = stream.seek(0, os.SEEK_END)
                stream.seek(0)
                data = stream.read(min(size, _MOST_BYTES + 1))  # reading n bytes takes the memory of n, whatever the file has
        except (IsADirectoryError, NotADirectoryError):
            return None
        except OSError as error:
            if is_missing(error):
                return None
            raise
    if len(data) > _MOST_BYTES:
        raise CheckpointError(f"{file} has more than {_MOST_BYTES} bytes, so it is not a list of TensorFlow's checkpoints.")
    return data


def _fields(file: Place, data: bytes) -> Iterator[tuple[str, str | float]]:
    """Yield the fields of a message as text: numbers, and strings, of which several that follow each other are one."""
    at, name, value = 0, "", None
    while at < len(data):
        token = _TOKEN.match(data, at)
        line = data.count(b"\n", 0, at) + 1
        if token is None:
            raise damaged(file, f"line {line} cannot be parsed")
        kind, at = token.lastgroup, token.end()
        if kind == "nothing":
            continue
        if kind == "name":
            yield from _finished(file, name, value)
            name, value = token["name"].decode(), None
        elif not name or not (value is None or (kind != "number" and isinstance(value, bytes))):
            raise damaged(file, f"line {line} has a value without a name")
        elif kind == "number":
            value = _number(file, token["number"], line)
        else:
            value = (value or b"") + _unescaped(token[kind or ""])
    yield from _finished(file, name, value)


def _finished(file: Place, name: str, value: bytes | float | None) -> Iterator[tuple[str, str | float]]:
    if name and value is None:
        raise damaged(file, f"{name} has no value")
    if value is not None:
        yield name, os.fsdecode(value) if isinstance(value, bytes) else value


def _number(file: Place, text: bytes, line: int) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise damaged(file, f"line {line} has {text.decode('ascii', 'replace')!r} in place of a number") from error


def _unescaped(text: bytes) -> bytes:
    """Return the bytes that a string with C's escapes stands for."""

    def character(found: re.Match[bytes]) -> bytes:
        octal, hexadecimal, short, long, letter = found.groups()
        if octal is not None:
            return bytes([int(octal, 8) & 0xFF])
        if hexadecimal is not None:
            return bytes([int(hexadecimal, 16)])
        if letter is not None:
            return _LETTERS.get(letter, letter)
        return chr(min(int(short or long, 16), 0x10FFFF)).encode("utf-8", "surrogatepass")

    return _ESCAPE.sub(character, text)


def _resolved(folder: Place, name: str) -> str:
    place = place_at(name)
    if not isinstance(place, RemotePath) and not place.is_absolute():
        return str(folder / name)
    moved = folder / place.name
    return str(moved if not is_prefix(place) and is_prefix(moved) else place)
