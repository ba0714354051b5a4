"""Runs contenders as processes, of which one computes at a time. Rounds alternate A B C A B C, and every wait has a deadline."""

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "contenders"


class ContenderError(Exception):
    """A contender died or did not answer. The message contains its last error."""


class Contender:
    """A running contender. It gives its first answer without being asked (see ``contenders/_serve.py``)."""

    def __init__(self, python: str, script: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None):
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the contender
        self._text = b""
        self.started = time.perf_counter()
        self._process = subprocess.Popen(
            [python, str(FOLDER / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # so that it can be killed together with the processes that it has started
        )

    def go(self) -> None:
        """Let the contender train a round."""
        assert self._process.stdin
        try:
            self._process.stdin.write(b"go\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ContenderError(self._last_words()) from None

    def answer(self, seconds: float) -> dict[str, Any]:
        """Return the figures of its round.

        Raises:
            ContenderError: If it has died, or does not answer within so many seconds.
        """
        assert self._process.stdout
        end = time.monotonic() + seconds
        while b"\n" not in self._text:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise ContenderError(f"no answer within {seconds:g} s")
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                raise ContenderError(self._last_words())
            self._text += part
        line, _, self._text = self._text.partition(b"\n")
        return json.loads(line)

    def stop(self) -> None:
        """Close its input, and then kill its processes."""
        assert self._process.stdin
        assert self._process.stdout
        with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
            self._process.stdin.close()
            self._process.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
        self._process.stdout.close()
        self._log.close()

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line]
        return f"died: {(errors or lines or ['without a message'])[-1].strip()[:160]}"


@dataclasses.dataclass
class Measured:
    """A contender's figures.

    Args:
        first_loss: The mean loss of the first round, which begins with the common initial weights.
        seconds: The seconds of each round that counts.
        processor: The processor seconds of each round that counts.
        libraries: The versions of its libraries.
        failed: The reason why it has no figures.
    """

    first_loss: float | None = None
    seconds: list[float] = dataclasses.field(default_factory=list)
    processor: list[float] = dataclasses.field(default_factory=list)
    libraries: dict[str, str] = dataclasses.field(default_factory=dict)
    failed: str | None = None


def alternate(
    commands: Mapping[str, tuple[str, str, list[str]]], *, rounds: int, seconds: float, deadline: float, least: int = 3
) -> dict[str, Measured]:
    """Start all contenders, and let them train rounds by turns.

    Args:
        commands: For each name, the interpreter, the script and its arguments.
        rounds: The most rounds.
        seconds: The time for everything, including the starts.
        deadline: The seconds for one answer.
        least: The least rounds, even if the time is over.
    """
    end = time.monotonic() + seconds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # stops the contenders, too
    found = {name: Measured() for name in commands}
    running: dict[str, Contender] = {}
    try:
        for name, (python, script, arguments) in commands.items():
            running[name] = Contender(python, script, [*arguments, "--deadline", f"{deadline + 5:g}"])
        for turn in range(-2, rounds):  # two rounds to warm up, the first of which compiles
            began = time.monotonic()
            for name in list(running):
                _round(name, running, found[name], turn, deadline)
            if turn >= least - 1 and 2 * time.monotonic() - began > end:
                break
    finally:
        for contender in running.values():
            contender.stop()
    return found


def _round(name: str, running: dict[str, Contender], found: Measured, turn: int, deadline: float) -> None:
    try:
        if turn > -2:
            running[name].go()
        told = running[name].answer(deadline)
    except ContenderError as error:
        print(f"{name}: {error}", file=sys.stderr, flush=True)
        found.failed, found.seconds, found.processor = str(error), [], []
        running.pop(name).stop()
        return
    if turn == -2:
        found.first_loss, found.libraries = told["loss"], told["libraries"]
    elif turn >= 0:
        found.seconds.append(told["seconds"])
        found.processor.append(told["processor"])
