"""Keeps what a compiler said about a step beside the compiled programs, so that the same plan need not wait for it again.

Each file is compressed JSON, named by the hash of the program. It counts as an entry of the cache, which drops its oldest entries.
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

_READING = 4  # increase this when something else is read from a program


def key_of(program: str, *about: Any) -> str:
    """Return the key of a program's analysis, a hash of the program's text, the libraries' versions and what `about` adds."""
    versions = [_READING, *((name, _version(name)) for name in ("replicant", "jax", "jaxlib", "libtpu"))]
    return hashlib.sha256(f"{versions} {about}\n{program}".encode()).hexdigest()


def find(key: str) -> dict[str, Any] | None:
    """Return the analysis that was kept; None if there is none, or if it cannot be read."""
    folder = compile_cache().folder
    if folder is None:
        return None
    try:
        kept = json.loads(zlib.decompress((folder / _name(key)).read_bytes()))
        return kept | {"exchanges": tuple(Exchange(**x) for x in kept["exchanges"])}
    except (OSError, ValueError, KeyError, TypeError, zlib.error):
        return None


def keep(key: str, analysis: Any) -> None:
    """Keep an analysis, which is a dataclass, unless the folder is full or cannot be written to."""
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
