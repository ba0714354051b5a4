"""Parses one line of JSON from a sender that may be anybody."""

import json
from typing import Any, NoReturn

MAX_STRANGERS_LINE = 1024  # bytes of a line from a sender that is not known yet
MAX_LINE = 65536  # bytes of a line from a known sender


def parse_message(line: bytes) -> dict[str, Any] | None:
    r"""The object that a line contains, or None if it contains anything else.

    >>> parse_message(b'{"kind": "hello", "rank": 1}')
    {'kind': 'hello', 'rank': 1}
    >>> [parse_message(line) for line in (b"[" * 100_000, b"[]", b"\xff", b"9" * 9999, b'{"rank": NaN}', b"")]
    [None, None, None, None, None, None]
    """
    try:
        message = json.loads(line.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):  # no UTF-8, no JSON, a number with thousands of digits, or nested too deeply
        return None
    return message if isinstance(message, dict) else None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
