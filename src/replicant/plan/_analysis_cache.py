"""What a compiler said about a step, kept beside the compiled programs, so that the same plan need not wait for it again.

A file is compressed JSON under the hash of the program; it counts as one of the cache's entries, of which the oldest are dropped.
"""

import dataclasses
import hashlib
import json
import os
import zlib
from importlib import metadata
from typing import Any

from ..runtime._compile_cache import compile_cache
from ._exchanges import Exchange

_READING = 2  # to be raised when something else is read from a program


def key_of(program: str, *about: Any) -> str:
    """The name under which an analysis of the text of a program is kept: other versions and other wishes give another one."""
    versions = [_READING, *((name, _version(name)) for name in ("replicant", "jax", "jaxlib", "libtpu"))]
    return hashlib.sha256(f"{versions} {about}\n{program}".encode()).hexdigest()


def find(key: str) -> dict[str, Any] | None:
    """What was kept; None if nothing was, or if it cannot be read."""
    folder = compile_cache().folder
    if folder is None:
        return None
    try:
        told = json.loads(zlib.decompress((folder / _name(key)).read_bytes()))
        return told | {"exchanges": tuple(Exchange(**x) for x in told["exchanges"])}
    except (OSError, ValueError, KeyError, TypeError, zlib.error):
        return None


def keep(key: str, analysis: Any) -> None:
    """Keep an analysis, a dataclass. Where there is no room or no right to write, it is not kept."""
    folder = compile_cache().folder
    if folder is None:
        return
    half = folder / f"{_name(key)}.{os.getpid()}.tmp"
    try:
        half.write_bytes(zlib.compress(json.dumps(dataclasses.asdict(analysis)).encode()))
        half.replace(folder / _name(key))
    except OSError:
        half.unlink(missing_ok=True)


def _name(key: str) -> str:
    return f"plan-{key}-cache"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
