"""Runs the self-test in its own process, with a time limit for each check, and reports what became of it."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ..._python import own_python
from ._result import Result
from ._selftest import REMEDIES

Environ = Mapping[str, str]

# The self-test runs alone, and must not take itself for a part of the cluster in which it is started.
_CLUSTER = ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_COORDINATOR_", "TF_CONFIG", "TORCHELASTIC_", "OMPI_", "PMIX_", "SLURM_")
_ALSO = ("RANK", "WORLD_SIZE", "JOB_COMPLETION_INDEX", "TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES", "MEGASCALE_NUM_SLICES")


def run_selftest(
    names: Sequence[str], deadline: float, environ: Environ = os.environ, command: Sequence[str] = ()
) -> Iterator[Result]:
    """Run checks of the self-test in order, and yield each result as soon as it is there.

    Args:
        names: The names of the checks.
        deadline: The seconds that each check may take. Then its process is killed, and another one does the rest.
        environ: The environment of the processes. Variables that describe a cluster are left out.
        command: The command that starts a process. The names are appended to it. By default it starts the self-test of this
            package.
    """
    command = command or own_python("-m", f"{__package__}._selftest")
    done = 0
    while done < len(names):
        for result in _one_process([*command, *names[done:]], names[done:], deadline, alone(environ)):
            done += 1
            yield result


def alone(environ: Environ) -> dict[str, str]:
    """The environment without the variables that describe a cluster, and without proxies."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(_CLUSTER) and name not in _ALSO and not name.lower().endswith("_proxy")
    }


def _one_process(command: Sequence[str], names: Sequence[str], deadline: float, environ: Environ) -> Iterator[Result]:
    """Run checks in one process, which prints a line of JSON per check. Yields at least one result."""
    with subprocess.Popen(  # noqa: S603 - our own program
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        lines: queue.Queue[str | None] = queue.Queue()
        errors: list[str] = []
        readers = [
            threading.Thread(target=_read, args=(process.stdout, lines.put), daemon=True, name="replicant doctor output"),
            threading.Thread(target=_read, args=(process.stderr, errors.append), daemon=True, name="replicant doctor errors"),
        ]
        for reader in readers:
            reader.start()
        try:
            for name in names:
                begin = time.monotonic()
                line = _next_line(lines, deadline)
                seconds = round(time.monotonic() - begin, 2)
                if line is None:
                    ended = process.poll() is not None or _ended(process)
                    how = f"the process ended with {process.poll()}" if ended else f"no answer within {deadline:g} s"
                    if ended:
                        readers[1].join(deadline)
                    last = next((text.strip() for text in reversed(errors) if text and text.strip()), "")
                    remedy = REMEDIES.get(name, "if a plain JAX program works here, please report this")
                    yield Result(name, "fail", f"{how}: {last}" if last else how, remedy, seconds)
                    break
                yield Result(name, **json.loads(line), seconds=seconds)
        finally:
            _kill(process)
            for reader in readers:
                reader.join(deadline)


def _next_line(lines: "queue.Queue[str | None]", deadline: float) -> str | None:
    """The next line of the self-test, or None at the end or when time is up."""
    until = time.monotonic() + deadline
    while (left := until - time.monotonic()) > 0:
        try:
            line = lines.get(timeout=left)
        except queue.Empty:
            return None
        if line is None or line.startswith("{"):
            return line
    return None


def _ended(process: "subprocess.Popen[str]") -> bool:
    """Whether a process ends within a second, now that its output has ended."""
    try:
        process.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        return False
    return True


def _read(stream: Iterable[str], put: Callable[[str | None], None]) -> None:
    for line in stream:
        put(line)
    put(None)


def _kill(process: "subprocess.Popen[str]") -> None:
    """Kill the process and those that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
