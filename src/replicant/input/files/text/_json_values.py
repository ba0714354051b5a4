"""Values in JSON that records of files hold: lines, and columns of samples."""

import json
from collections.abc import Callable
from typing import Any

from ...._untrusted_json import MOST_DEPTH, read_json

_MOST_DIGITS = 4300  # as Python converts by default


def json_value(data: bytes, parse_float: Callable[[str], Any] | None = None) -> Any:
    """Return the value of a JSON text, in which NaN and Infinity may occur, as Python writes them.

    What must be looked at with care is: what may be nested too deeply for what flattens it, or hold half of a character. For all
    other lines, counting takes far less time than parsing.

    Raises:
        ValueError: If it is something else.
    """
    if data.count(b"[") + data.count(b"{") > MOST_DEPTH or b"\\ud" in data or b"\\uD" in data:
        try:
            read_json(data, len(data), most_digits=_MOST_DIGITS, infinite=True)
        except json.JSONDecodeError:
            raise
        except ValueError as error:
            raise ValueError(f"it {error}") from error
    try:
        text = data.decode("utf-8-sig")  # of bytes, json takes halves of characters, too
        return json.loads(text, parse_float=parse_float)
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8: {error.reason} at byte {error.start}") from error
