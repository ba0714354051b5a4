"""What all workers contribute to an exchange, as one text. Equal parts are stored once, and long ones as their digest.

Most exchanges compare things that are the same everywhere. So what each worker reads does not grow with the number of workers.
"""

import hashlib
import json
from collections.abc import Sequence

_LONGEST = 2048  # characters of a part in the text; a longer part is stored under its own key

_MARK = "#"


def digest_of(part: str) -> str | None:
    """The digest that stands for a long part and ends the key where it is stored, or None for a short part.

    >>> digest_of("short")
    >>> digest_of("long" * 1000)[:9]
    '#59f1d666'
    """
    return None if len(part) <= _LONGEST else _MARK + hashlib.sha256(part.encode()).hexdigest()


def is_digest(part: str) -> bool:
    """Whether a text is the digest of a long part. Parts themselves are JSON, or numbers."""
    return part.startswith(_MARK)


def pack_parts(parts: Sequence[str]) -> str:
    """Join all parts, in the order of the ranks, into one text.

    >>> pack_parts(["a", "a", "a"]), pack_parts(["a", "b", "a"])
    ('[["a"], 3]', '[["a", "b"], [0, 1, 0]]')
    """
    places: dict[str, int] = {}
    order = [places.setdefault(part, len(places)) for part in parts]
    return json.dumps([list(places), len(order) if len(places) == 1 else order])


def unpack_parts(text: str) -> list[str]:
    """Take such a text apart: the inverse of `pack_parts`.

    >>> unpack_parts('[["a"], 3]'), unpack_parts('[["a", "b"], [0, 1, 0]]')
    (['a', 'a', 'a'], ['a', 'b', 'a'])
    """
    different, order = json.loads(text)
    return different * order if isinstance(order, int) else [different[place] for place in order]
