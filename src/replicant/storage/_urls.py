"""What is a URL, and what is the path of a file on this machine."""

import os
import re
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, ReplicantError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")  # at least two letters, so that no drive is one
_COLLAPSED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]")  # what pathlib makes of a URL
_ON_THIS_MACHINE = re.compile(r"(?:file|local)://")
_WITHOUT_BUCKET = re.compile(r"(?:s3a?|gs|gcs|az|abfss?)://(?:/|$)")


def is_url(name: object) -> bool:
    """Return whether this is the URL of something on an object store, not a path on this machine.

    >>> is_url("s3://bucket/name"), is_url("/data/name"), is_url(b"gs://bucket/name")
    (True, False, True)
    """
    return isinstance(name, str | bytes) and _URL.match(os.fsdecode(name)) is not None


def checked_name(method: str, name: Any) -> str:
    """Return a path or a URL as text.

    Raises:
        ArgumentError: If it is a URL inside of a `pathlib.Path`, which has lost one of its slashes.
        TypeError: If it is neither.
    """
    text = os.fsdecode(name)
    if isinstance(name, os.PathLike) and _COLLAPSED.match(text):
        scheme, _, rest = text.partition(":/")
        raise ArgumentError(
            f"{method}: {name!r} was a URL, but pathlib drops one of its slashes. Pass the text: {f'{scheme}://{rest}'!r}."
        )
    return text


def folder_at(what: str, name: Any, error: type[ReplicantError]) -> str | Path:
    """Return the URL of a folder that is written to, or its path if it is on this machine (also if that is a ``file://`` URL).

    Raises:
        ReplicantError: If it is neither, of the type ``error``: a URL that has lost a slash, or names no bucket or several stores.
            The message begins with ``what``.
    """
    text = os.fsdecode(name)
    if _COLLAPSED.match(text):
        scheme, _, rest = text.partition(":/")
        whole = f"/{rest}" if _ON_THIS_MACHINE.match(f"{scheme}://") else f"{scheme}://{rest}"
        raise error(f"{what}: {name!r} lacks a slash of its URL, which pathlib drops. Pass the text: {whole!r}.")
    if "://" in text and "::" in text:
        raise error(
            f"{what}: {text!r} has '::', with which fsspec chains several file systems. Name the store alone, and a folder without "
            "'::'."
        )
    if _WITHOUT_BUCKET.match(text):
        raise error(f"{what}: {text!r} names no bucket. Write {text.partition('://')[0]}://bucket/name, say.")
    if found := _ON_THIS_MACHINE.match(text):
        return Path(text[found.end() :])
    return text if is_url(text) else Path(text)


def local_path(what: str, name: Any) -> Path:
    """Return the path of a file or folder on this machine, which must be one because it is written to or kept in order.

    Raises:
        ArgumentError: If it is a URL. The message begins with ``what``.
    """
    if is_url(text := os.fsdecode(name)) or (isinstance(name, os.PathLike) and _COLLAPSED.match(text)):
        raise ArgumentError(
            f"{what} must be a path on this machine, or on a file system that it mounts. Only files that datasets read, "
            f"checkpoints and TensorBoard's logs can be at URLs. Received: {name!r}. Name a local folder, and copy it with the "
            "store's own tool."
        )
    return Path(text)
