"""Keeps what a compiler said about a step, so that the same plan need not wait for it again.

Each file is compressed JSON, named by the hash of the program. It lies in the folder or at the URL that REPLICANT_PLAN_CACHE names.
By default, it lies beside the compiled programs and counts as an entry of their cache, which drops its oldest entries.
"""

import dataclasses
import hashlib
import json
import os
import warnings
import zlib
from importlib import metadata
from pathlib import Path
from typing import Any

from .._whole_file import write_whole
from ..errors import ConfigurationError
from ..runtime._compile_cache import compile_cache
from ..storage._path import RemotePath
from ..storage._urls import folder_at
from ..storage._write import is_missing
from ._exchanges import Exchange

SWITCH = "REPLICANT_PLAN_CACHE"
_READING = 4  # increase this when something else is read from a program


def key_of(program: str, *about: Any) -> str:
    """Return the key of a program's analysis, a hash of the program's text, the libraries' versions and what `about` adds."""
    versions = [_READING, *((name, _version(name)) for name in ("replicant-jax", "jax", "jaxlib", "libtpu"))]
    return hashlib.sha256(f"{versions} {about}\n{program}".encode()).hexdigest()


def find(key: str) -> dict[str, Any] | None:
    """Return the analysis that was kept; None if there is none, or if it cannot be read.

    Raises:
        ConfigurationError: If REPLICANT_PLAN_CACHE names no folder and no store that can be reached.
    """
    folder = _folder()
    if folder is None:
        return None
    try:
        kept = json.loads(zlib.decompress(_read(folder / _name(key))))
        return kept | {"exchanges": tuple(Exchange(**x) for x in kept["exchanges"])}
    except OSError as error:
        if isinstance(folder, RemotePath) and not is_missing(error):
            warnings.warn(f"The plan is made again, because {SWITCH} cannot be read: {error}", stacklevel=2)
        return None
    except (ValueError, KeyError, TypeError, zlib.error):
        return None


def keep(key: str, analysis: Any) -> None:
    """Keep an analysis, which is a dataclass, unless the folder is full or cannot be written to. At a URL, that is a warning.

    Raises:
        ConfigurationError: As `find`.
    """
    folder = _folder()
    if folder is None:
        return
    data = zlib.compress(json.dumps(dataclasses.asdict(analysis)).encode())
    try:
        _write(folder / _name(key), data)
    except OSError as error:
        if isinstance(folder, RemotePath):
            warnings.warn(f"The compiler's answers are not kept, because {SWITCH} cannot be written: {error}", stacklevel=2)


def _folder() -> Path | RemotePath | None:
    wish = os.environ.get(SWITCH, "")
    if not wish:
        return compile_cache().folder
    found = None if wish == "0" else folder_at(SWITCH, wish, ConfigurationError)
    return RemotePath(found) if isinstance(found, str) else found


def _read(file: Path | RemotePath) -> bytes:
    return file.store.get() if isinstance(file, RemotePath) else file.read_bytes()


def _write(file: Path | RemotePath, data: bytes) -> None:
    """Make this the contents of a file, at once."""
    if isinstance(file, RemotePath):
        file.store.put(data)
        return
    if os.environ.get(SWITCH):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, data)


def _name(key: str) -> str:
    return f"plan-{key}-cache"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
