"""Compiled programs are kept on disk, so that a program's second start need not compile them again.

JAX has the cache; here is where it lies, that nobody else can write to it, and that it neither grows without end nor keeps what a
killed process wrote half. A cache that the user configured is left alone.
"""

import contextlib
import dataclasses
import os
import stat
import sys
import zlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from ..cluster._program_cache import processor

SWITCH = "REPLICANT_COMPILATION_CACHE"
MAX_BYTES = 1 << 30
_ENTRY = "-cache"
_STAMP = "checked"
_NOBODY = 65534  # stands for users that a container does not know, such as the owner of / outside of it
_ZSTD = b"\x28\xb5\x2f\xfd"


@dataclasses.dataclass(frozen=True)
class CompileCache:
    """Where compiled programs are kept, or why they are not.

    folder: their directory; None if there is none of ours. reason: in words.
    """

    folder: Path | None
    reason: str


_current = [CompileCache(None, "not configured yet")]


def compile_cache() -> CompileCache:
    """Where compiled programs are kept between runs, or why they are not.

    They lie in a folder of the user's, for these versions and this kind of processor, of at most 1 GB; a second start of a program
    need not compile. REPLICANT_COMPILATION_CACHE=0 turns that off, another value is the folder to use. A cache that JAX was told to
    use is left as it is.

    >>> import replicant
    >>> replicant.compile_cache().reason  # the tests keep nothing
    'REPLICANT_COMPILATION_CACHE=0'
    """
    return _current[0]


def configure() -> None:
    """Turn JAX's cache of compiled programs on, unless the user has configured it or said no. Before the first compilation."""
    _current[0] = _configured(os.environ)


def _configured(environ: Mapping[str, str]) -> CompileCache:
    wish = environ.get(SWITCH, "")
    if wish == "0":
        return CompileCache(None, f"{SWITCH}=0")
    config: Any = jax.config  # its options are not known to type checkers
    if config.jax_compilation_cache_dir is not None:
        return CompileCache(None, f"JAX's own setting is used: {config.jax_compilation_cache_dir}")
    try:
        folder = _prepared(Path(wish).absolute() if wish else default_folder(environ))
    except OSError as error:
        return CompileCache(None, f"no folder to keep compiled programs in ({error})")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return CompileCache(folder, "on")


def default_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """A folder of the user's, for these versions and this kind of processor."""
    if sys.platform == "darwin":
        base = _home() / "Library" / "Caches"
    else:
        base = Path(environ.get("XDG_CACHE_HOME") or _home() / ".cache")
    return base / "replicant" / f"jax-{jax.__version__}-jaxlib-{version('jaxlib')}-{processor()}"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:  # as in many containers: HOME is not set, and the system does not know this user
        raise FileNotFoundError(f"this user has no home directory: set HOME, or {SWITCH} to a folder") from error


def _prepared(folder: Path) -> Path:
    """`folder`, made if it is not there, without the links on the way to it.

    Raises OSError if it cannot be made, PermissionError if others could put something there: it is run as machine code.
    """
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    folder = folder.resolve()  # what is checked below is what is used, whatever somebody does to a link later
    state = folder.stat()
    if hasattr(os, "getuid"):
        if state.st_uid != os.getuid() or state.st_mode & 0o022:
            raise PermissionError(
                f"{folder} belongs to user {state.st_uid}, mode {state.st_mode & 0o777:o}: others could write to it"
            )
        _require_own_way(folder)
    entries = _entries(folder)
    _drop_broken(folder, entries)
    _drop_oldest(entries)
    return folder


def _require_own_way(folder: Path) -> None:
    """Raise PermissionError if somebody else could put another folder in the place of this one or of one that it lies in."""
    for parent in folder.parents:
        state = parent.stat()
        if state.st_mode & stat.S_IWOTH and not state.st_mode & stat.S_ISVTX:
            raise PermissionError(f"{parent} has mode {state.st_mode & 0o777:o}: others could replace what lies in it")
        if state.st_uid not in (0, os.getuid(), _NOBODY):
            raise PermissionError(f"{parent} belongs to user {state.st_uid}, who could replace what lies in it")


def _entries(folder: Path) -> list[tuple[float, int, Path]]:
    """When each entry was written or last read, its size, and its path."""
    found = []
    with os.scandir(folder) as items:
        for item in items:
            if item.name.endswith(_ENTRY):
                with contextlib.suppress(OSError):  # another process has just removed it, or it cannot be read at present
                    state = item.stat()
                    found.append((max(state.st_mtime, state.st_atime), state.st_size, Path(item.path)))
    return sorted(found)


def _drop_broken(folder: Path, entries: list[tuple[float, int, Path]]) -> None:
    """Remove what a process that was killed wrote half; only entries younger than the last look are looked at."""
    stamp = folder / _STAMP
    last = stamp.stat().st_mtime if stamp.exists() else 0.0
    for _, _, path in entries:
        with contextlib.suppress(OSError):  # as above; JAX says so if it cannot read what it needs
            if path.stat().st_mtime >= last - 1 and not _whole(path.read_bytes()):
                path.unlink(missing_ok=True)
    stamp.touch()


def _whole(packed: bytes) -> bool:
    if packed.startswith(_ZSTD):  # JAX uses zstandard where that is installed; its reader says itself what is broken
        return len(packed) > len(_ZSTD)
    unpacker = zlib.decompressobj()
    try:
        unpacker.decompress(packed)
    except zlib.error:
        return False
    return unpacker.eof


def _drop_oldest(entries: list[tuple[float, int, Path]]) -> None:
    total = sum(size for _, size, _ in entries)
    for _, size, path in entries:
        if total <= MAX_BYTES:
            return
        path.unlink(missing_ok=True)
        total -= size
