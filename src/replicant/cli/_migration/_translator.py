"""Translates files in a process of its own, which has a deadline and a limit of memory for each, and is replaced if it ends.

A parser may need any time and memory for a file, or end its process. Then that one file is refused.
"""

import base64
import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from ..._python import own_python
from ...errors import CommandError

START_SECONDS = 120.0
MEMORY_BYTES = 4 << 30  # beyond what the process has when it begins
_LEAST_SECONDS, _MOST_SECONDS = 60.0, 3600.0
_SECONDS_PER_BYTE = 2e-3  # ten times as much as an idle processor needs
_END_SECONDS = 5.0


def seconds_for(size: int) -> float:
    """How long the translation of a file may take.

    >>> seconds_for(10_000)
    80.0
    """
    return min(_MOST_SECONDS, _LEAST_SECONDS + _SECONDS_PER_BYTE * size)


@dataclass(frozen=True)
class Place:
    """What the user has to look at: as a ``Finding``, with its place in the file."""

    kind: Literal["left", "check"]
    where: str
    construct: str
    advice: str


@dataclass(frozen=True)
class Translation:
    """The translation of a file.

    Attributes:
        path: The file.
        changed: Whether it differs from the file.
        places: What the user has to look at.
        diff: The changes, if they were asked for.
        data: The whole translated file otherwise.
    """

    path: Path
    changed: bool
    places: list[Place]
    diff: str
    data: bytes


class Translator:
    """The process that translates. It starts when it is first needed. This is a context manager.

    Args:
        memory: The bytes that it may take for a file.
        seconds: How long a file of so many bytes may take.
    """

    def __init__(self, *, memory: int = MEMORY_BYTES, seconds: Callable[[int], float] = seconds_for):
        self._memory, self._seconds = memory, seconds
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End the process."""
        self._end()

    def translate(self, path: Path, *, only_diff: bool) -> Translation:
        """Translate a file without changing it.

        Args:
            path: The file.
            only_diff: Whether the changes are wanted, and not the whole text.

        Raises:
            CommandError: If the file cannot be read, is not valid Python, or takes too much time or memory, or if the process
                does not start.
        """
        seconds = self._seconds(_size(path))
        process = self._process = self._process or self._start()
        answer = _ask(process, seconds, {"path": os.fspath(path), "only diff": only_diff, "seconds": seconds})
        if isinstance(answer, str) or "memory" in answer:  # then what it has taken may be in pieces
            self._end()
            problem = answer if isinstance(answer, str) else f"it needs more than {self._memory / 1e9:.3g} GB of memory"
            raise CommandError(f"{path} was not translated: {problem}. Translate it by hand, or divide it into smaller files.")
        if "error" in answer:
            raise CommandError(answer["error"])
        places = [Place(*place) for place in answer["places"]]
        return Translation(path, answer["changed"], places, answer["diff"], base64.b64decode(answer["data"]))

    def _start(self) -> "subprocess.Popen[bytes]":
        command = own_python("-m", f"{__package__}._child", str(self._memory))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603 - our own program
        answer = _ask(self._process, START_SECONDS)
        if isinstance(answer, str):
            raise CommandError(f"The process that translates does not start: {answer}.")
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()  # it holds nothing that must be kept
            process.communicate()


def _ask(process: "subprocess.Popen[bytes]", seconds: float, request: dict[str, Any] | None = None) -> dict[str, Any] | str:
    """Send a request, if there is one. Returns the next answer, or why there is none."""
    assert process.stdin is not None
    assert process.stdout is not None
    deadline = time.monotonic() + seconds
    parts = [b""]
    with contextlib.suppress(BrokenPipeError):  # it has ended, as is seen below
        process.stdin.write(json.dumps(request).encode() + b"\n" if request else b"")
        process.stdin.flush()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not parts[-1].endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return f"it took more than {seconds:g} s"
            parts.append(os.read(process.stdout.fileno(), 1 << 20))
            if not parts[-1]:
                return _end_of(process)
    return json.loads(b"".join(parts))


def _end_of(process: "subprocess.Popen[bytes]") -> str:
    """How a process has ended, whose output has ended."""
    try:
        code = process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        return "the process gives no answers any more"
    return f"the process was ended by {signal.Signals(-code).name}" if code < 0 else f"the process ended with exit code {code}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # whoever reads it says so
        return 0
