"""What all workers have brought to an exchange, as one text: those that are alike are there once, and long ones by their digest.

Most exchanges compare things that are the same everywhere. Then what every worker reads does not grow with their number.
"""

import hashlib
import json
from collections.abc import Sequence

_LONGEST = 2048  # characters of a part that is listed; a longer one lies under a key of its own

_MARK = "#"


def digest_of(part: str) -> str | None:
    """What stands for a long part, and is the end of the key where it lies; None: the part is short, and stands for itself.

    >>> digest_of("short")
    >>> digest_of("long" * 1000)[:9]
    '#59f1d666'
    """
    return None if len(part) <= _LONGEST else _MARK + hashlib.sha256(part.encode()).hexdigest()


def is_digest(part: str) -> bool:
    """Whether that stands for a long part. Parts themselves are JSON, or numbers."""
    return part.startswith(_MARK)


def pack_parts(parts: Sequence[str]) -> str:
    """All parts, in the order of the ranks, as one text.

    >>> pack_parts(["a", "a", "a"]), pack_parts(["a", "b", "a"])
    ('[["a"], 3]', '[["a", "b"], [0, 1, 0]]')
    """
    places: dict[str, int] = {}
    order = [places.setdefault(part, len(places)) for part in parts]
    return json.dumps([list(places), len(order) if len(places) == 1 else order])


def unpack_parts(text: str) -> list[str]:
    """The opposite.

    >>> unpack_parts('[["a"], 3]'), unpack_parts('[["a", "b"], [0, 1, 0]]')
    (['a', 'a', 'a'], ['a', 'b', 'a'])
    """
    different, order = json.loads(text)
    return different * order if isinstance(order, int) else [different[place] for place in order]
