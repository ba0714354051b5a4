"""Reads a run log line by line, so that a log of any length needs little memory, and checks each line. Nothing here is trusted."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

from .._settings import MAX_WORKERS

MAX_LINE = 1 << 20  # characters; the steps of 1,024 workers take 50,000
_LATEST = 1e11  # seconds since 1970; the year 5138
_MOST_STEPS = 1 << 62
Event = Mapping[str, Any]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LATEST and math.isfinite(value)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST_STEPS


def _is_rank(value: object) -> bool:
    return type(value) is int and 0 <= value < MAX_WORKERS


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _or_none(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or check(value)


def _is_steps(value: object) -> bool:
    return isinstance(value, dict) and all(
        rank.isascii()
        and rank.isdigit()
        and len(rank) < 5
        and _is_rank(int(rank))
        and isinstance(found, list)
        and len(found) == 3
        and _is_count(found[0])
        and _is_number(found[1])
        and _is_text(found[2])
        for rank, found in value.items()
    )


_FIELDS: dict[str, dict[str, Callable[[object], bool]]] = {
    "job": {"command": lambda value: value is None or isinstance(value, list)},
    "start": {"rank": _is_rank, "generation": _is_count, "pid": _or_none(_is_count)},
    "came": {"rank": _is_rank, "host": _is_text},
    "formed": {"generation": _is_count},
    "steps": {"workers": _is_steps},
    "saved": {"rank": _is_rank, "seconds": _or_none(_is_number), "step": _or_none(_is_count), "path": _or_none(_is_text)},
    "failed": {"rank": lambda value: value == -1 or _is_rank(value), "what": _is_text},
    "ended": {"rank": _is_rank},
    "done": {"code": lambda value: type(value) is int},
}


class Events:
    """The events of a run log, in their order. Iterating reads the file once; what cannot be read is counted and left out.

    Args:
        file: The log. A last line without an end is being written, or its writer was killed, and does not count as damaged.
    """

    def __init__(self, file: TextIO):
        self._file = file
        self.damaged = 0
        self.first_damaged: int | None = None  # the number of the line, from 1

    def __iter__(self) -> Iterator[Event]:
        number = 0
        while line := self._file.readline(MAX_LINE):
            number += 1
            if is_too_long := not line.endswith("\n") and len(line) == MAX_LINE:
                self._skip()
            event = None if is_too_long else parse(line)
            if event is not None:
                yield event
            elif line.strip() and (line.endswith("\n") or is_too_long):
                self.damaged += 1
                self.first_damaged = self.first_damaged or number

    def _skip(self) -> None:
        """Read the rest of a line."""
        while (more := self._file.readline(MAX_LINE)) and not more.endswith("\n"):
            pass


def parse(line: str) -> Event | None:
    """Return the event of a line, or None if it is none.

    >>> parse('{"t": 1, "kind": "done", "code": 0}'), parse('{"t": NaN, "kind": "done", "code": 0}')
    ({'t': 1, 'kind': 'done', 'code': 0}, None)
    """
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("kind"), str) or not _is_number(event.get("t")):
        return None
    checks = _FIELDS.get(event["kind"], {})
    return event if all(check(event.get(name)) for name, check in checks.items()) else None
