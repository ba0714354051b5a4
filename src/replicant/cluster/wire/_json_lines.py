"""Lines of JSON, between processes that may be anybody's."""

import json
import math
import socket
import time
from collections.abc import Mapping
from typing import Any

from ..._untrusted_json import read_json

MAX_STRANGERS_LINE = 1024  # bytes of a line from a sender that is not known yet
MAX_LINE = 65536  # bytes of a line from a known sender
_PIECE = 65536  # bytes to look at at once
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


def read_line(connection: socket.socket, longest: int, deadline: float = math.inf) -> bytes | None:
    """Read the next line, without its end, and nothing that follows it.

    Args:
        connection: A socket that blocks.
        longest: The bytes of the longest line. Of a longer one, only its beginning is returned, which is longer than that.
        deadline: When the line must be there, as ``time.monotonic()`` tells the time.

    Returns:
        The line, or its beginning if the connection is closed within it, or None if it is closed before.

    Raises:
        TimeoutError: If it is not there in time.
        OSError: If the connection fails.
    """
    line = b""
    while len(line) <= longest:
        if deadline != math.inf:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            seen = connection.recv(_PIECE, socket.MSG_PEEK)
        except TimeoutError as error:
            raise TimeoutError("it does not finish a line" if line else "it says nothing") from error
        if not seen:
            return line or None
        line += connection.recv(seen.find(b"\n") + 1 or len(seen))
        if line.endswith(b"\n"):
            return line[:-1]
    return line
