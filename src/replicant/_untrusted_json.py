"""Reads JSON that anybody may have written: a line from a network, a variable, a file. Whatever it takes has a bounded cost."""

import json
import math
import re
from typing import Any, NoReturn

MOST_DEPTH = 64
MOST_DIGITS = 40  # of a number, before or after its point: the states of NumPy's generators have 39

_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)  # also one without an end, so that each byte is looked at once
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ESCAPE = re.compile(r"\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w|(?P<lone>\\u[dD][89a-fA-F]\w\w)|\\.", re.DOTALL | re.ASCII)


def read_json(
    data: bytes | str,
    most_bytes: int,
    *,
    most_depth: int = MOST_DEPTH,
    most_digits: int = MOST_DIGITS,
    infinite: bool = False,
    halves: bool = False,
) -> Any:
    r"""Return the value of a JSON text.

    What it returns can be written as JSON again, and as UTF-8; its numbers are finite and have few digits.

    Args:
        data: The text, in UTF-8 if it is bytes.
        most_bytes: The longest text to look at.
        most_depth: How many lists and objects may be within each other.
        most_digits: How many digits a number may have in a row.
        infinite: Whether ``NaN``, ``Infinity`` and ``-Infinity`` may occur, which Python writes although they are not JSON.
        halves: Whether half characters (lone surrogates) may occur, with which Python writes names of files that are not UTF-8.

    Raises:
        ValueError: If it is anything else. A ``json.JSONDecodeError``, if its grammar is wrong. The message ends a sentence
            that begins with the name of what was read: "is nested more than 64 deep".

    >>> read_json(b'{"rank": 1, "name": "\\ud83d\\ude00"}', 1024)
    {'rank': 1, 'name': '😀'}
    >>> read_json("[" * 100_000, 1 << 20)
    Traceback (most recent call last):
    ...
    ValueError: is nested more than 64 deep
    """
    raw, text = _both(data, most_bytes)
    bare = _TEXT.sub(b"", raw)
    if re.search(rb"[0-9]{%d}" % (most_digits + 1), bare):
        raise ValueError(f"has a number of more than {most_digits} digits")
    if _is_deeper(bare, most_depth):
        raise ValueError(f"is nested more than {most_depth} deep")
    escapes = _ESCAPE.finditer(text) if r"\u" in text and not halves else ()
    lone = next((match["lone"] for match in escapes if match["lone"]), None)
    if lone:
        raise ValueError(f"has half of a character, {lone}, which no UTF-8 can hold")
    return json.loads(text, parse_float=_any_float if infinite else _finite, parse_constant=None if infinite else _refuse)


def _both(data: bytes | str, most_bytes: int) -> tuple[bytes, str]:
    """The text as bytes and as characters."""
    if len(data) <= most_bytes:  # otherwise it is not even decoded
        try:
            raw = data.encode() if isinstance(data, str) else data
            text = data if isinstance(data, str) else data.decode()
        except UnicodeError as error:  # to encode or to decode
            raise ValueError(f"is not UTF-8: {error.reason} at {error.start}") from None  # type: ignore[attr-defined]
        if len(raw) <= most_bytes:
            return raw, text
    raise ValueError(f"is longer than {most_bytes} bytes")


def _is_deeper(bare: bytes, most: int) -> bool:
    """Whether brackets are within each other more than so often. Each pass takes the innermost ones away."""
    left = bare.translate(_BRACKETS, _NO_BRACKETS)
    for _ in range(most):
        if not left:
            return False
        left = left.replace(b"[]", b"")
    return b"[]" in left or left.count(b"[") > most  # those without an end are for the parser to tell, which goes as deep


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"has a number that no float can hold: {text}")
    return value


_any_float = float


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"has {name}, which is not JSON")
