"""Ray's actor that runs one worker of a job on its node, as a child process. Loaded once Ray is in use."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import ray

from ._processes import BEGIN

_remote: Any = ray.remote
_LOOK_SECONDS = 1.0  # that a look lasts at most, if nothing happens
_TICK = 0.02
_CHUNK = 1 << 20


@_remote(concurrency_groups={"look": 1}, max_restarts=0, max_task_retries=0)
class WorkerHost:
    """One worker. It leads a session of its own, and the kernel kills it when this actor ends.

    Args:
        command: after ``python``.
        environ: what the worker has otherwise than this actor.
        cwd: where it runs.
    """

    def __init__(self, command: list[str], environ: dict[str, str], cwd: str):
        self._read = 0
        self._code: int | None = None
        self._log = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - nameless: it goes with this process
        env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | environ  # Ray's, for its tasks
        argv = [sys.executable, "-I", "-S", "-c", BEGIN, str(os.getpid()), sys.executable, *command]
        self._process = subprocess.Popen(  # noqa: S603 - to run the user's script is what this is for
            argv, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT, env=env, cwd=cwd, start_new_session=True
        )

    def hello(self) -> tuple[int, str]:
        """The worker's process number, and its node."""
        return self._process.pid, os.uname().nodename

    def signal(self, number: int) -> None:
        """Send the worker a signal; SIGKILL goes to its group."""
        if self._code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # not a group yet, or only its zombie is left
                (os.killpg if number == signal.SIGKILL else os.kill)(self._process.pid, number)

    @ray.method(concurrency_group="look")
    def look(self) -> tuple[bytes, int | None]:
        """What the worker has written since the last look, and its exit code once it has ended and all has been read."""
        deadline = time.monotonic() + _LOOK_SECONDS
        while True:
            ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) if self._code is None else True
            text = os.pread(self._log.fileno(), _CHUNK, self._read)
            self._read += len(text)
            if text or time.monotonic() > deadline:
                return text, None
            if ended:
                self.signal(signal.SIGKILL)  # what it has left in its group, before its number can be another's
                self._code = self._process.wait()
                return b"", self._code
            time.sleep(_TICK)
