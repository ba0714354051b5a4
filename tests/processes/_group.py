"""Starts the processes of one job, which run the same script, and reads what they wrote. No process outlives its group."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

SECONDS = 480.0  # for a whole group, which takes far less
_FOREIGN = ("JAX_", "REPLICANT_", "TF_CONFIG", "XLA_FLAGS", "NPROC", "SLURM_", "OMPI_", "RANK", "WORLD_SIZE", "MASTER_")


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def clean_environment() -> dict[str, str]:
    """Return this process's environment without proxies, and without variables that describe clusters and devices."""
    return {
        name: value
        for name, value in os.environ.items()
        if "proxy" not in name.lower() and not name.upper().startswith(_FOREIGN) and name != "KERAS_BACKEND"
    }


@dataclasses.dataclass
class Ended:
    """How a worker ended: its exit status (negative for a signal), what it printed, and the JSON that it wrote, if any."""

    status: int
    out: str
    err: str
    answer: Any


class Group:
    """Worker processes.

    Args:
        script: The script that all run. It writes JSON to the file that ANSWER names.
        num_workers: The number of processes.
        folder: The folder for what they write.
        arguments: The arguments of the script.
        environ: More environment variables, or a function of the rank that returns them. None removes a variable.
    """

    def __init__(
        self,
        script: Path,
        num_workers: int,
        folder: Path,
        arguments: Sequence[str] = (),
        environ: Mapping[str, str | None] | Callable[[int], Mapping[str, str | None]] = {},  # noqa: B006 - it is never changed
    ):
        self.folder = folder
        self.started = time.monotonic()
        address = f"127.0.0.1:{free_port()}"
        self.workers = []
        for rank in range(num_workers):
            env = clean_environment() | {
                "JAX_PROCESS_ID": str(rank),
                "JAX_NUM_PROCESSES": str(num_workers),
                "JAX_COORDINATOR_ADDRESS": address,
                "KERAS_BACKEND": "jax",
                "REPLICANT_COMPILATION_CACHE": os.environ.get("REPLICANT_COMPILATION_CACHE", "0"),  # shared by a run
                "REPLICANT_EXCHANGE_TIMEOUT": "200",
                "PYTHONUNBUFFERED": "1",
                "ANSWER": str(folder / f"{rank}.json"),
            }
            if "1" not in (os.environ.get("REPLICANT_TEST_FULL"), os.environ.get("REPLICANT_TEST_AGAIN")):  # as this process does
                env |= {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}
            more = environ(rank) if callable(environ) else environ
            env = {name: value for name, value in (env | dict(more)).items() if value is not None}
            with (folder / f"{rank}.out").open("w") as out, (folder / f"{rank}.err").open("w") as err:
                process = subprocess.Popen([sys.executable, str(script), *arguments], env=env, stdout=out, stderr=err)
            self.workers.append(process)

    def wait(self, seconds: float = SECONDS) -> list[Ended]:
        """Wait until all have ended. Those that are late are killed, and fail the test."""
        deadline = time.monotonic() + seconds
        late = []
        try:
            for rank, worker in enumerate(self.workers):
                try:
                    worker.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    late.append(rank)
        finally:
            self.kill()
        ended = [self._ended(rank) for rank in range(len(self.workers))]
        assert not late, f"workers {late} did not end within {seconds:g} s: {[each.err[-2000:] for each in ended]}"
        return ended

    def ended_well(self, seconds: float = SECONDS) -> list[Any]:
        """Wait until all have ended, without an error, and return what they wrote."""
        ended = self.wait(seconds)
        problems = {rank: (each.status, each.err[-3000:]) for rank, each in enumerate(ended) if each.status != 0}
        assert not problems, problems
        return [each.answer for each in ended]

    def wait_for_line(self, rank: int, text: str, seconds: float = SECONDS) -> None:
        """Wait until a worker has printed `text`."""
        deadline = time.monotonic() + seconds
        while text not in (self.folder / f"{rank}.out").read_text():
            assert time.monotonic() < deadline, f"worker {rank} never printed {text!r}: {self._ended(rank)}"
            assert self.workers[rank].poll() is None, self._ended(rank)
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill the workers that still run."""
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGKILL)  # this ends stopped processes, too
                worker.wait(10)

    def _ended(self, rank: int) -> Ended:
        answer = self.folder / f"{rank}.json"
        return Ended(
            self.workers[rank].poll() if self.workers[rank].poll() is not None else 0,
            (self.folder / f"{rank}.out").read_text(),
            (self.folder / f"{rank}.err").read_text(),
            json.loads(answer.read_text()) if answer.exists() else None,
        )
