"""The Ray actor that runs one worker of a job on its node, as a child process. It is loaded only when Ray is in use."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from typing import Any

import ray

from ..._python import bare_python, users_python
from ..team._processes import BEGIN

_remote: Any = ray.remote
_LOOK_SECONDS = 1.0  # that a look takes at most if nothing happens
_TICK = 0.02
_CHUNK = 1 << 20


@_remote(concurrency_groups={"look": 1}, max_restarts=0, max_task_retries=0)
class WorkerHost:
    """One worker. It leads its own session, and the kernel kills it when this actor ends.

    Args:
        command: The command line after ``python``.
        environ: The variables that differ from the environment of this actor.
        cwd: The directory in which the worker runs.
    """

    def __init__(self, command: list[str], environ: dict[str, str], cwd: str):
        self._read = 0
        self._code: int | None = None
        self._log = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it has no name, and vanishes with this process
        # Ray sets OMP_NUM_THREADS for its own tasks.
        env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | environ
        argv = bare_python(BEGIN, str(os.getpid()), *users_python(*command))
        self._process = subprocess.Popen(  # noqa: S603 - to run the user's script is what this is for
            argv, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT, env=env, cwd=cwd, start_new_session=True
        )

    def hello(self) -> tuple[int, str]:
        """The worker's process number, and the name of its node."""
        return self._process.pid, os.uname().nodename

    def signal(self, number: int) -> None:
        """Send the worker a signal. SIGKILL goes to its whole group."""
        if self._code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # not a group yet, or only its zombie is left
                (os.killpg if number == signal.SIGKILL else os.kill)(self._process.pid, number)

    @ray.method(concurrency_group="look")
    def look(self) -> tuple[bytes, int | None]:
        """What the worker has written since the last look, and its exit code once it has ended and all output was read."""
        deadline = time.monotonic() + _LOOK_SECONDS
        while True:
            ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) if self._code is None else True
            text = os.pread(self._log.fileno(), _CHUNK, self._read)
            self._read += len(text)
            if text or time.monotonic() > deadline:
                return text, None
            if ended:
                self.signal(signal.SIGKILL)  # end the rest of its group before the group's number can be used again
                self._code = self._process.wait()
                return b"", self._code
            time.sleep(_TICK)
