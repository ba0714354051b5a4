"""Machine code that comes with the package, so that nobody waits for numba on a new machine.

``make package`` makes it for each kind of processor (``.ci/kernel_code.py``). A file's name tells the source that it is made of,
and code of other source is not used. A clone has none: it translates.
"""

import hashlib
from pathlib import Path

from . import _registers

FOLDER = Path(__file__).with_name("code")


def file(name: str, source: bytes, kind: str | None = None) -> Path:
    """Return where the code of a function is for a kind of processor, this one's by default, if it comes with the package."""
    return FOLDER / f"{name}-{hashlib.sha256(source).hexdigest()[:16]}-{kind or _registers.kind() or 'none'}.object"
