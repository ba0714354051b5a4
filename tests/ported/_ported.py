"""Translates a program with `replicant migrate`, changes it by hand, and runs it on devices or as workers."""

import dataclasses
import functools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from _by_hand import Changes, changed

from replicant.cli import _migration

HERE = Path(__file__).resolve().parent
SECONDS = 480.0  # for all processes of a run, which take some seconds
# What describes devices and clusters, and what the process of the tests has set for itself.
FOREIGN = ("JAX_NUM", "JAX_PROCESS", "JAX_COORDINATOR", "NPROC", "TF_CONFIG", "XLA_FLAGS", "KERAS_BACKEND", "PYTHONWARNINGS")
OF_TESTS = ("REPLICANT_FUSE_REPLICAS", "REPLICANT_KERNELS")
APART = {"REPLICANT_FUSE_REPLICAS": "0"}  # each device computes its own rows, as GPUs do

Numbers = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Ported:
    """How a program is ported and compared.

    Attributes:
        by_hand: The lines that a hand changes after the translation, old and new, with their indentation. An old line stands there
            exactly once; an empty new line deletes it.
        strategy: The program names no strategy. On several devices, `replicant run --strategy` gives it this one. On one device, it
            has none.
        workers: The program runs as two worker processes with one device each, instead of as one process with two devices.
        apart: By how much numbers of two devices may differ from those of one, relative to the largest of their array.
        aside: The names of numbers that may differ, because random layers or statistics of a replica's own rows make them.
    """

    by_hand: Changes = ()
    strategy: str | None = None
    workers: bool = False
    apart: float = 1e-5
    aside: tuple[str, ...] = ()


def check(folder: str, name: str, ported: Ported, tmp_path: Path) -> None:
    """Translate and run a program, and check that two devices or workers give the numbers of one."""
    path = tmp_path / f"program_{name}.py"  # `keras.py` would hide the module of that name
    translate(HERE / folder / f"{name}.py", ported.by_hand, path)
    run = run_on_workers if ported.workers else functools.partial(run_on_devices, strategy=ported.strategy)
    [one] = run(path, 1, tmp_path / "one")
    assert one, "the program saved no numbers"
    for two in run(path, 2, tmp_path / "two"):
        assert two.keys() == one.keys()
        for key in one.keys() - set(ported.aside):
            largest = np.max(np.abs(one[key]), initial=1e-3)
            np.testing.assert_allclose(two[key], one[key], rtol=0, atol=ported.apart * largest, err_msg=f"{name}: {key}")


def translate(program: Path, by_hand: Changes, path: Path) -> None:
    """Write the translation of a program to `path`."""
    path.write_text(changed(_migration.migrate(program).text, by_hand))


def run_on_devices(
    path: Path, number: int, folder: Path, strategy: str | None = None, *, of_its_own: Mapping[str, str] = APART
) -> list[Numbers]:
    """Run a translated program on that many virtual devices, and return the numbers that it saved, as the only item."""
    variables = {"JAX_NUM_CPU_DEVICES": str(number), **of_its_own}
    if strategy is None:
        return _run(path, folder, [variables])
    if number == 1:
        return _run(path, folder, [{**variables, "KERAS_BACKEND": "jax"}])  # as a program without Replicant is told it
    return _run(path, folder, [variables], ["-m", "replicant", "run", "--strategy", strategy])


def run_on_workers(path: Path, number: int, folder: Path) -> list[Numbers]:
    """Run a translated program as that many workers with one device each, and return the numbers that each of them saved."""
    workers = [f"127.0.0.1:{port}" for port in _free_ports(number)]
    tasks = [{"cluster": {"worker": workers}, "task": {"type": "worker", "index": i}} for i in range(number)]
    return _run(path, folder, [{"JAX_NUM_CPU_DEVICES": "1", "TF_CONFIG": json.dumps(task)} for task in tasks])


def _free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return ports


def _run(path: Path, folder: Path, variables: Sequence[dict[str, str]], command: Sequence[str] = ()) -> list[Numbers]:
    """Run a program once for each of these sets of environment variables, all at the same time and in the same folder."""
    folder.mkdir(exist_ok=True)  # it may hold checkpoints
    inherited = {name: value for name, value in os.environ.items() if not name.startswith((*FOREIGN, *OF_TESTS))}
    if "1" not in (os.environ.get("REPLICANT_TEST_FULL"), os.environ.get("REPLICANT_TEST_AGAIN")):
        inherited["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    logs = [folder / f"{i}.log" for i in range(len(variables))]
    processes = []
    deadline = time.monotonic() + SECONDS
    try:
        for own, log in zip(variables, logs, strict=True):
            with log.open("w") as out:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, *command, str(path)], cwd=folder, env=inherited | own, stdout=out, stderr=subprocess.STDOUT
                    )
                )
        for process in processes:
            process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        pass
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, log in zip(processes, logs, strict=True):
        assert process.returncode == 0, f"{path.name} ended with {process.returncode}:\n{log.read_text()[-6000:]}"
    saved = sorted(folder.glob("numbers*.npz"))
    assert len(saved) == len(variables), saved
    return [dict(np.load(file)) for file in saved]
