"""What to do about a file that cannot be opened, or that is read as it is although it is compressed."""

import contextlib
import re
from collections.abc import Collection
from pathlib import Path

from ..._whole_file import open_regular
from ...storage._retry import RemoteError
from ...storage._urls import is_url

HEAD = 6  # bytes at the beginning of a file, which say how it is compressed
_PATTERN = re.compile(r"[*?\[]")
_FIRST_BYTES = (  # of a compressed file, how it is called, and what decompresses it
    ((b"\x1f\x8b\x08",), "GZIP", "gunzip"),
    ((b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda"), "ZLIB", "zlib-flate -uncompress"),
    ((b"\x28\xb5\x2f\xfd",), "ZSTD", "unzstd"),
    ((b"BZh",), "bzip2", "bunzip2"),
    ((b"\xfd7zXZ\x00",), "xz", "unxz"),
)


def _is_there(path: str) -> bool:
    with contextlib.suppress(OSError):  # such as a name that is too long
        return Path(path).exists()
    return False


def if_not_opened(path: str, error: OSError) -> str:
    """Return what to pass instead of a path or URL that cannot be opened, as whole sentences."""
    if not is_url(path) and not isinstance(error, FileNotFoundError) and _is_there(path) and not Path(path).is_file():
        if not Path(path).is_dir():
            return "Pass a regular file, or read the pipe by `from_generator`."
        pattern = f"{path.rstrip('/')}/*"
        return f"It is a folder. Pass the files in it: Dataset.list_files({pattern!r}, shuffle=False)."
    if _PATTERN.search(path) and isinstance(error.__cause__ if isinstance(error, RemoteError) else error, FileNotFoundError):
        return f"If it is a pattern, pass the files that match: Dataset.list_files({path!r}, shuffle=False)."
    return "Check the URL and the store." if is_url(path) else "Check the path."


def if_compressed(head: bytes, taken: Collection[str]) -> str | None:
    """Return what to do about a file that begins with these bytes, as whole sentences; None if it is not compressed.

    ``taken`` are the values of ``compression_type`` that its reader takes.
    """
    for beginnings, name, program in _FIRST_BYTES:
        if head.startswith(beginnings):
            what = f'pass compression_type="{name}"' if name in taken else f"decompress it before ({program})"
            return f"Its first bytes are those of a file that is compressed by {name}: {what}."
    return None


def if_not_read(path: str, error: BaseException, otherwise: str) -> str:
    """Return what to do about a file that another library does not open, as whole sentences."""
    if isinstance(error, OSError) and (isinstance(error, FileNotFoundError | RemoteError) or Path(path).is_dir()):
        return if_not_opened(path, error)
    head = b""
    if not is_url(path):
        with contextlib.suppress(OSError), open_regular(path) as file:
            head = file.read(HEAD)
    return if_compressed(head, ()) or f"{otherwise}."
