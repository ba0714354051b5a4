"""Starts worker processes so that none of them outlives the supervisor, and ends everything that they have started.

Each worker leads its own session. On Linux, the kernel kills it when the supervisor ends for whatever reason. A guard, which is a
small process that does nothing else, then kills the whole process groups, including the children of the workers.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Self

from ..._python import bare_python
from ...errors import ConfigurationError

# This runs in the worker's process before the script. Its arguments are the supervisor's process number and the command.
BEGIN = """
import os, sys
try:
    import ctypes, signal
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
except (ImportError, OSError, AttributeError):
    pass  # not Linux: only the guard ends this process
if os.getppid() != int(sys.argv[1]):
    os._exit(1)  # the supervisor has ended before this was set
try:
    os.execvpe(sys.argv[2], sys.argv[2:], os.environ)
except OSError as error:
    sys.exit(f"replicant: {sys.argv[2]}: {error}")
"""

# The guard reads "+group" and "-group". When its input ends, the supervisor is gone.
_GUARD = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
"""


class Guard:
    """Kills the process groups that it watches as soon as this process has ended."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - this file's own text
            bare_python(_GUARD),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    def add(self, group: int) -> None:
        """Watch a group."""
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Stop watching a group, because it has ended."""
        self._tell(f"-{group}\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End the guard. It kills all groups that it still watches."""
        with contextlib.suppress(OSError):
            self._process.communicate(timeout=10)
        self._process.kill()
        self._process.wait()

    def _tell(self, line: str) -> None:
        if self._process.stdin is None:
            return
        with contextlib.suppress(OSError):  # somebody has killed the guard; the kernel's signal remains
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()


class Worker:
    """A started process, its group and its log.

    Args:
        rank: The rank of the worker, for messages.
        argv: Its command line.
        environ: Its whole environment.
        log: The file for its output, including standard error.
        guard: The guard that watches its process group.

    Raises:
        ConfigurationError: If the process could not be started.
    """

    def __init__(self, rank: int, argv: Sequence[str], environ: Mapping[str, str], log: Path, guard: Guard):
        self.rank, self.log = rank, log
        self.code: int | None = None  # as in subprocess: -9 after SIGKILL
        self.signals: set[int] = set()  # the signals that it was sent
        self._guard = guard
        begin = bare_python(BEGIN, str(os.getpid()), *argv)
        try:
            with log.open("ab") as output:
                self._process = _open(begin, environ, output)
        except OSError as error:
            raise ConfigurationError(f"Worker {rank} could not be started: {error}") from error
        self.pid = self._process.pid
        guard.add(self.pid)

    @property
    def host(self) -> str:
        """The name of its host."""
        return os.uname().nodename

    def poll(self) -> bool:
        """Whether it has ended. Then what is left of its group is killed, before the group's number can be used again."""
        if self.code is None:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                self._kill_group()
                self.code = self._process.wait()
                self._guard.remove(self.pid)
        return self.code is not None

    def is_stopped(self) -> bool:
        """Whether it is stopped, for example by SIGSTOP. Returns False if the system does not say."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        return False

    def signal(self, number: int) -> None:
        """Send it a signal. SIGKILL goes to its whole group."""
        if self.poll():
            return
        self.signals.add(number)
        if number == signal.SIGKILL:
            self._kill_group()
        else:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it and its whole group, and wait until it has ended."""
        self.signal(signal.SIGKILL)
        while not self.poll():
            time.sleep(0.005)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # not a group yet, or only its zombie is left
            os.killpg(self.pid, signal.SIGKILL)


def _open(argv: Sequence[str], environ: Mapping[str, str], output: BinaryIO) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(  # noqa: S603 - to run the user's script is what this is for
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=dict(environ),
        start_new_session=True,
    )
