"""The workers' logs: one file per rank, which is never truncated."""

import sys
import tempfile
from datetime import datetime
from pathlib import Path

from ...errors import ConfigurationError
from ..record._run_log import NAME
from ._console import Console, LogTail


class Logs:
    """The logs of all ranks, in one directory.

    Args:
        folder: The directory, which is made if it does not exist. By default a temporary one.
        num_workers: The number of ranks.

    Raises:
        ConfigurationError: If the directory cannot be written.
    """

    def __init__(self, folder: Path | None, num_workers: int):
        self._is_temporary = folder is None
        self._is_broken = False  # because a line could not be written
        made = Path(tempfile.mkdtemp(prefix="replicant-launch-")) if folder is None else folder
        try:
            made.mkdir(parents=True, exist_ok=True)
            self.folder = made.resolve()
            self.paths = [self.folder / f"rank-{rank}.log" for rank in range(num_workers)]
            for path in self.paths:
                _append(path, "")
        except OSError as error:
            raise ConfigurationError(
                f"--log-dir {str(folder)!r} cannot be written: {error.strerror}. Give another directory, or leave --log-dir out "
                "for a temporary one."
            ) from error
        self._tails = [LogTail(path) for path in self.paths]

    @property
    def run_log(self) -> Path:
        """The file in which everything that happens is noted."""
        return self.folder / NAME

    def begin(self, rank: int, generation: int, num_workers: int) -> Path:
        """Write the first line for a new process. Returns the path of the log."""
        stamp = datetime.now().astimezone().isoformat(timespec="seconds")
        self._write(rank, f"generation {generation}, rank {rank} of {num_workers}, {stamp}")
        return self.paths[rank]

    def tell_all(self, text: str) -> None:
        """Write a line of the supervisor into every log."""
        for rank in range(len(self.paths)):
            self._write(rank, text)

    def show(self, console: Console, *, to_the_end: bool = False) -> None:
        """Copy what is new to the console."""
        for rank, tail in enumerate(self._tails):
            for line in tail.all_lines() if to_the_end else tail.lines():
                console.line(rank, line)
        console.flush()

    def remove_if_temporary(self) -> None:
        """Remove logs in a temporary directory, which nobody needs after a job without failures."""
        if self._is_temporary:
            for path in (*self.paths, self.run_log):
                path.unlink(missing_ok=True)
            self.folder.rmdir()

    def close(self) -> None:
        """Close the files."""
        for tail in self._tails:
            tail.close()

    def _write(self, rank: int, text: str) -> None:
        """Write a line that the console does not show, because it is shown there once, and not for every worker."""
        try:
            self._tails[rank].leave_out(*_append(self.paths[rank], f"replicant launch: {text}\n"))
        except OSError as error:  # a full disk must not end the job
            if not self._is_broken:
                self._is_broken = True
                sys.stderr.write(f"replicant launch: the logs in {self.folder} cannot be written ({error.strerror}).\n")


def _append(path: Path, text: str) -> tuple[int, int]:
    """Add to a file that others write to. Returns where the text begins and ends."""
    line = text.encode()
    with path.open("ab", buffering=0) as file:
        file.write(line)
        end = file.tell()
    return end - len(line), end
