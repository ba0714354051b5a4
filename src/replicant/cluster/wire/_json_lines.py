"""Lines of JSON, between processes that may be anybody's."""

import json
from collections.abc import Mapping
from typing import Any

from ..._untrusted_json import read_json

MAX_STRANGERS_LINE = 1024  # bytes of a line from a sender that is not known yet
MAX_LINE = 65536  # bytes of a line from a known sender
_MOST_DIGITS = 20  # of a float between 0.0001 and 1; integers that are as long can be computed with as floats, too


def line_of(message: Mapping[str, Any]) -> bytes:
    r"""The line that `parse_message` reads. What no UTF-8 can hold, such as parts of the names of files, becomes question marks.

    >>> parse_message(line_of({"path": "a\udcff", "text": "\n"})[:-1])
    {'path': 'a?', 'text': '\n'}
    """
    return json.dumps(message, ensure_ascii=False).encode(errors="replace") + b"\n"


def parse_message(line: bytes, longest: int = MAX_LINE) -> dict[str, Any] | None:
    r"""The object that a line contains, or None if it contains anything else. Its texts can be encoded, and its numbers are finite.

    >>> parse_message(b'{"kind": "hello", "rank": 1}')
    {'kind': 'hello', 'rank': 1}
    >>> lines = (b"[" * 9000, b"[]", b"\xff", b"9" * 9999, b'{"rank": NaN}', b'{"rank": 1e400}', b'{"nonce": "\\ud800"}', b"")
    >>> [parse_message(line) for line in lines]
    [None, None, None, None, None, None, None, None]
    """
    try:
        message = read_json(line, longest, most_digits=_MOST_DIGITS)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None
