"""Keeps compiled programs on disk, so that the second start of a program need not compile them again.

The cache itself belongs to JAX. This file chooses its folder, makes sure that nobody else can write to it, limits its size, and
removes entries that a killed process has left incomplete. A cache that the user has configured is left alone.
"""

import contextlib
import dataclasses
import importlib
import os
import stat
import sys
import warnings
import zlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from ..cluster.jax._program_cache import processor
from ..storage._urls import is_url

SWITCH = "REPLICANT_COMPILATION_CACHE"
MAX_BYTES = 1 << 30
_ENTRY = "-cache"
_STAMP = "checked"
_NOBODY = 65534  # stands for users that a container does not know, such as the owner of / outside it
_ZSTD = b"\x28\xb5\x2f\xfd"


@dataclasses.dataclass(frozen=True)
class CompileCache:
    """Where compiled programs are kept, or why they are not.

    Args:
        folder: The folder with the programs, or None if Replicant keeps none.
        reason: The reason, in words.
    """

    folder: Path | None
    reason: str


_current = [CompileCache(None, "not configured yet")]


def compile_cache() -> CompileCache:
    """Report where compiled programs are kept between runs, or why they are not.

    They are in a folder of the user, for these versions and this kind of processor, which holds at most 1 GB. So a program does
    not have to compile when it starts again. REPLICANT_COMPILATION_CACHE=0 turns this off, and any other value is the folder to
    use. A URL gives a warning, and nothing is kept. If JAX was told to use another cache, that is left as it is.

    >>> import replicant
    >>> replicant.compile_cache().reason  # the tests keep nothing
    'REPLICANT_COMPILATION_CACHE=0'
    """
    return _current[0]


def configure() -> None:
    """Turn on JAX's cache of compiled programs, unless the user has configured it or turned it off.

    This must be called before the first compilation.
    """
    _current[0] = _configured(os.environ)


def _configured(environ: Mapping[str, str]) -> CompileCache:
    wish = environ.get(SWITCH, "")
    if wish == "0":
        return CompileCache(None, f"{SWITCH}=0")
    if is_url(wish):
        reason = f"{SWITCH}={wish} is a URL, and compiled programs are machine code, which is kept in a folder of this machine only"
        warnings.warn(f"{reason}. Every start compiles everything again: name a folder.", stacklevel=2)
        return CompileCache(None, reason)
    config: Any = jax.config  # type checkers do not know its options
    if config.jax_compilation_cache_dir is not None:
        return CompileCache(None, f"JAX's own setting is used: {config.jax_compilation_cache_dir}")
    try:
        folder = _prepared(Path(wish).absolute() if wish else default_folder(environ))
    except OSError as error:
        return CompileCache(None, f"no folder to keep compiled programs in ({error})")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # Another process may be writing the entry just then. JAX then compiles the program; what stays broken is removed at a start.
    warnings.filterwarnings("ignore", "Error reading persistent compilation cache entry", UserWarning)
    return CompileCache(folder, "on")


def default_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The default folder of the user, for these versions and this kind of processor."""
    if sys.platform == "darwin":
        base = _home() / "Library" / "Caches"
    else:
        base = Path(environ.get("XDG_CACHE_HOME") or _home() / ".cache")
    return base / "replicant" / f"jax-{jax.__version__}-jaxlib-{version('jaxlib')}-{processor()}"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:  # in many containers, HOME is not set and the system does not know this user
        raise FileNotFoundError(f"this user has no home directory: set HOME, or {SWITCH} to a folder") from error


def _prepared(folder: Path) -> Path:
    """Make `folder` if it does not exist, and clean it up.

    Returns:
        The folder, with links resolved.

    Raises:
        OSError: If the folder cannot be made.
        PermissionError: If others could write to it, because its contents are run as machine code.
    """
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    folder = folder.resolve()  # so that what is checked below is what is used, even if somebody changes a link later
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
    """Check that nobody else can replace a folder, or one of the folders above it.

    Raises:
        PermissionError: If somebody else can.
    """
    for parent in folder.parents:
        state = parent.stat()
        if state.st_mode & stat.S_IWOTH and not state.st_mode & stat.S_ISVTX:
            raise PermissionError(f"{parent} has mode {state.st_mode & 0o777:o}: others could replace what is in it")
        if state.st_uid not in (0, os.getuid(), _NOBODY):
            raise PermissionError(f"{parent} belongs to user {state.st_uid}, who could replace what is in it")


def _entries(folder: Path) -> list[tuple[float, int, Path]]:
    """The entries, each with the time when it was written or last read, its size and its path, oldest first."""
    found = []
    with os.scandir(folder) as items:
        for item in items:
            if item.name.endswith(_ENTRY):
                with contextlib.suppress(OSError):  # another process has just removed it, or it cannot be read now
                    state = item.stat()
                    found.append((max(state.st_mtime, state.st_atime), state.st_size, Path(item.path)))
    return sorted(found)


def _drop_broken(folder: Path, entries: list[tuple[float, int, Path]]) -> None:
    """Remove entries that a killed process has left incomplete. This checks only entries that are newer than the last check."""
    stamp = folder / _STAMP
    last = stamp.stat().st_mtime if stamp.exists() else 0.0
    for _, _, path in entries:
        with contextlib.suppress(OSError):  # as above; JAX reports what it needs and cannot read
            if path.stat().st_mtime >= last - 1 and not _whole(path.read_bytes()):
                path.unlink(missing_ok=True)
    stamp.touch()


def _whole(packed: bytes) -> bool:
    unpacker, error = _zstd_reader() if packed.startswith(_ZSTD) else (zlib.decompressobj(), zlib.error)
    if unpacker is None:  # JAX cannot read it, either
        return False
    try:
        unpacker.decompress(packed)
    except error:
        return False
    return unpacker.eof


def _zstd_reader() -> tuple[Any, type[Exception]]:
    """An object that unpacks what JAX packs if one of these libraries is there, and its error; None if neither is there."""
    with contextlib.suppress(ImportError):
        standard = importlib.import_module("compression.zstd")  # since Python 3.14
        return standard.ZstdDecompressor(), standard.ZstdError
    with contextlib.suppress(ImportError):
        package = importlib.import_module("zstandard")
        return package.ZstdDecompressor().decompressobj(), package.ZstdError
    return None, Exception


def _drop_oldest(entries: list[tuple[float, int, Path]]) -> None:
    total = sum(size for _, size, _ in entries)
    for _, size, path in entries:
        if total <= MAX_BYTES:
            return
        path.unlink(missing_ok=True)
        total -= size
