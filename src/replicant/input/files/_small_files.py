"""Small files that describe larger ones: an index, or what a folder holds."""

import json
from pathlib import Path
from typing import Any

from ..._untrusted_json import read_json
from ...errors import DatasetError
from ...storage._retry import RemoteError
from ...storage._urls import is_url
from ._stream import PIECE, FileStream


class NotJsonError(ValueError):
    """The contents of a file are not JSON. The message is the end of a sentence that begins with its name."""


def whole_file(method: str, path: str, most_bytes: int, remedy: str) -> bytes:
    """Return the contents of a file, or ``most_bytes`` and some more if it is longer.

    Raises:
        DatasetError: If it cannot be read; the message ends in ``remedy``.
    """
    try:
        stream = FileStream(method, path, "")
    except DatasetError as error:
        why = error.__cause__.strerror if isinstance(error.__cause__, OSError) else error
        raise DatasetError(f"{method}: cannot open {path!r}: {why}. {remedy}") from error.__cause__
    data, piece = bytearray(), memoryview(bytearray(PIECE))
    try:
        while len(data) <= most_bytes and (count := stream.read_into(piece)):
            data += piece[:count]
    finally:
        stream.close()
    return bytes(data)


def json_file(method: str, path: str, most_bytes: int, remedy: str) -> Any:
    """Return the value in a file of JSON.

    Raises:
        DatasetError: If the file cannot be read; the message ends in ``remedy``.
        NotJsonError: If it is something else.
    """
    try:
        return read_json(whole_file(method, path, most_bytes, remedy), most_bytes)
    except DatasetError:
        raise
    except json.JSONDecodeError as error:
        raise NotJsonError(f"it is not JSON ({error})") from error
    except ValueError as error:
        raise NotJsonError(f"it {error}") from error


def is_missing(error: DatasetError) -> bool:
    """Return whether an error says that there is no such file, here or on a store."""
    cause = error.__cause__
    return isinstance(cause.__cause__ if isinstance(cause, RemoteError) else cause, FileNotFoundError)


def joined(folder: str, name: str) -> str:
    """Return the path or URL of a file in a folder."""
    return f"{folder.rstrip('/')}/{name}" if is_url(folder) else str(Path(folder) / name)


def is_below(name: str) -> bool:
    """Return whether a file with this name, which somebody else has written, lies below the folder that it belongs to."""
    return bool(name) and not name.startswith("/") and "\\" not in name and ".." not in name.split("/") and not is_url(name)
