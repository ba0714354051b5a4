"""What happens in a job, as JSON lines in one file that is only added to. `replicant report` reads it."""

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...storage._urls import local_path
from ._progress import Progress

NAME = "run.jsonl"
_SECONDS = 1.0  # between two lines about steps
_WORKERS_PER_LINE_AND_SECOND = 32  # with more workers, their steps are written less often


def run_log_of(argument: str, run: str | Path) -> Path:
    """Return the run log of a job, whose --log-dir may have been given instead. `argument` is what messages call it.

    Raises:
        ArgumentError: If it is a URL.
    """
    local_path(argument, run)
    path = Path(run)
    return path / NAME if path.is_dir() else path


class RunLog:
    """The run log of one job. A disk that does not take it is told once, and the job goes on.

    Times are those of the system's clock when the job began, and of a clock that is never set from then on.

    Args:
        path: The file. Several jobs may add to it, also at the same time: each line has the name of its job.
        say: Tells the user something.
        hear: Is given each event, also if the disk does not take it.
    """

    def __init__(self, path: Path, say: Callable[[str], None], hear: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        self.path, self._say, self._hear = path, say, hear
        self._job = secrets.token_hex(4)
        self._clocks = time.time() - time.monotonic()
        self._is_broken = False
        self._steps: dict[str, list[Any]] = {}  # as they were written last, by rank
        self._next = 0.0

    def write(self, kind: str, **facts: Any) -> None:
        """Add a line: when it is, what has happened, and what else is known."""
        event = {"t": round(self._clocks + time.monotonic(), 3), "job": self._job, "kind": kind, **facts}
        if self._hear is not None:
            self._hear(event)
        if self._is_broken:
            return
        line = json.dumps(event) + "\n"
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n" + line if kind == "job" and _is_cut_off(self.path) else line)
        except OSError as error:
            self._is_broken = True
            self._say(f"the run log {self.path} cannot be written ({error.strerror}). The job goes on without it.")

    def begin(self, command: Sequence[str], num_workers: int, elastic: tuple[int, int] | None) -> None:
        """Note that a job begins."""
        self.write(
            "job",
            command=list(command),
            workers=num_workers,
            elastic=elastic,
            host=os.uname().nodename,
            pid=os.getpid(),
            began=process_start(os.getpid()),
            python=sys.version.split()[0],
        )

    def steps(self, now: float, progress: Mapping[int, Progress]) -> None:
        """Note how far the workers are, if it is time for that. It always is when one is in another phase, as in its first step."""
        if now >= self._next or any(
            each.phase != self._steps.get(str(rank), ["", 0, each.phase])[2] for rank, each in progress.items()
        ):
            self._next = now + max(_SECONDS, len(progress) / _WORKERS_PER_LINE_AND_SECOND)
            self.all_steps(progress)

    def all_steps(self, progress: Mapping[int, Progress]) -> None:
        """Note how far the workers are: of each its step, the seconds that it has waited, and its phase."""
        found = {str(rank): [each.step, round(each.waited, 3), each.phase] for rank, each in progress.items() if each.phase}
        changed = {rank: each for rank, each in found.items() if self._steps.get(rank) != each}
        if changed:
            self._steps |= changed
            self.write("steps", workers=changed)


def process_start(pid: int) -> str | None:
    """When a process of this machine started, in ticks since the machine did; None if there is no such process, or no Linux.

    >>> process_start(os.getpid()) == process_start(os.getpid())
    True
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else fields[18]


def _is_cut_off(path: Path) -> bool:
    """Whether the last line of a file has no end: the job that wrote it was killed in it."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return size > 0 and file.read(1) != b"\n"
