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
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "contenders"
_FIRST = -2  # two rounds to warm up, the first of which compiles


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
        stop_all([self])

    def close_input(self) -> None:
        """Let it end when it next looks for work."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def kill(self, seconds: float) -> None:
        """Wait for so long, and then kill its processes."""
        assert self._process.stdout
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, seconds))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
        self._process.stdout.close()
        self._log.close()

    def _last_words(self) -> str:
        """Say how it ended, with the last line that it wrote, or the last that names an error."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code, how = self._process.returncode, "died"
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        self._log.seek(0)
        lines = [line for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line]
        return f"{how}: {(errors or lines or ['without a message'])[-1].strip()[:200]}"


def stop_all(contenders: Iterable[Contender], seconds: float = 5) -> None:
    """End contenders: all of them have so many seconds together to end by themselves."""
    running, end = [*contenders], time.monotonic() + seconds
    with uninterrupted():
        for contender in running:
            contender.close_input()
        for contender in running:
            contender.kill(end - time.monotonic())


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM while processes are ended: whoever presses twice would leave some of them running."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may, and only it is interrupted
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclasses.dataclass
class Measured:
    """A contender's figures.

    Args:
        first_loss: The mean loss of the first round, which begins with the common initial weights.
        seconds: The seconds of each round that counts.
        processor: The processor seconds of each round that counts.
        joules: The energy that the machine used in each round that counts, if it tells.
        memory: The most bytes of memory at once, summed over the contender's processes.
        gpu_memory: The most bytes of the GPU's memory that its arrays had at once, if it uses a GPU.
        libraries: The versions of its libraries.
        failed: The reason why it has no figures.
    """

    first_loss: float | None = None
    seconds: list[float] = dataclasses.field(default_factory=list)
    processor: list[float] = dataclasses.field(default_factory=list)
    joules: list[float] = dataclasses.field(default_factory=list)
    memory: int = 0
    gpu_memory: int = 0
    libraries: dict[str, str] = dataclasses.field(default_factory=dict)
    failed: str | None = None


def alternate(
    commands: Mapping[str, tuple[str, str, list[str]]],
    *,
    rounds: int,
    seconds: float,
    deadline: float,
    least: int = 3,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Measured]:
    """Start contenders one after the other, and let them train rounds by turns.

    Args:
        commands: For each name, the interpreter, the script and its arguments.
        rounds: The most rounds.
        seconds: The time for everything, including the starts.
        deadline: The seconds for one answer.
        least: The least rounds, even if the time is over.
        environment: Variables of the environment that contenders have besides those of this process.
    """
    end = time.monotonic() + seconds
    exit_when_terminated()
    found = {name: Measured() for name in commands}
    running: dict[str, Contender] = {}
    try:
        for name, (python, script, arguments) in commands.items():
            running[name] = Contender(python, script, [*arguments, "--deadline", f"{deadline + 5:g}"], environment)
            _round(name, running, found[name], _FIRST, deadline)
        for turn in range(_FIRST + 1, rounds):
            began = time.monotonic()
            for name in list(running):
                _round(name, running, found[name], turn, deadline)
            if turn >= least - 1 and 2 * time.monotonic() - began > end:
                break
    finally:
        stop_all(running.values())
    return found


def exit_when_terminated() -> None:
    """Let SIGTERM end this process as Ctrl-C does, by an exception, so that it stops the processes that it has started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _round(name: str, running: dict[str, Contender], found: Measured, turn: int, deadline: float) -> None:
    try:
        if turn > _FIRST:
            running[name].go()
        told = running[name].answer(deadline)
    except ContenderError as error:
        print(f"{name}: {error}", file=sys.stderr, flush=True)
        found.failed, found.seconds, found.processor, found.joules = str(error), [], [], []
        running.pop(name).stop()
        return
    found.memory = max(found.memory, told["memory"])
    found.gpu_memory = max(found.gpu_memory, told.get("gpu_memory", 0))
    if turn == _FIRST:
        found.first_loss, found.libraries = told["loss"], told["libraries"]
    elif turn >= 0:
        found.seconds.append(told["seconds"])
        found.processor.append(told["processor"])
        if told["joules"] is not None:
            found.joules.append(told["joules"])
