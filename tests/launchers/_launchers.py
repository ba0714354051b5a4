"""The launchers that are on this machine: how each starts two processes here, and what a dead process makes of its exit code."""

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from _install import FOLDER

AS_ROOT = dict.fromkeys([f"{name}_ALLOW_RUN_AS_ROOT{end}" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")], "1")


@dataclasses.dataclass(frozen=True)
class Launcher:
    """How a launcher starts two processes.

    Args:
        source: The source that Replicant must find.
        find: Finds the command, or returns None.
        options: Its options. The command of a process follows.
        killed: Its exit code if one process was killed by SIGKILL.
        environment: More variables.
        install: How to get it.
    """

    source: str
    find: Callable[[], list[str] | None]
    options: tuple[str, ...]
    killed: int
    install: str
    environment: dict[str, str] = dataclasses.field(default_factory=dict)


def _of_index(package: str, name: str) -> Callable[[], list[str] | None]:
    """A command of a package that `_install.py` installs."""
    path = FOLDER / package / "bin" / name
    return lambda: [str(path)] if path.exists() else None


def _on_path(name: str) -> Callable[[], list[str] | None]:
    return lambda: [found] if (found := shutil.which(name)) else None


def _torchrun() -> list[str] | None:
    """torchrun itself, or the module of another Python's torch."""
    if (found := shutil.which("torchrun")) is not None:
        return [found]
    for python in (sys.executable, "/usr/bin/python3"):
        code = "import torch.distributed.run"
        if Path(python).exists() and subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0:
            return [python, "-m", "torch.distributed.run"]
    return None


# torch 1.13 of Debian cannot read its own defaults of these with Python 3.11.
_LOGS = ("--redirects", "1", "--tee", "2", "--log_dir", "{folder}/logs")
_INDEX = "python tests/launchers/_install.py"
LAUNCHERS = {
    "MPICH of the index": Launcher("MPI", _of_index("mpich", "mpiexec"), ("-n", "2"), 9, _INDEX),
    "MPICH of the system": Launcher("MPI", _on_path("mpiexec.mpich"), ("-n", "2"), 9, "apt-get install mpich"),
    "Intel MPI": Launcher("MPI", _of_index("impi-rt", "mpiexec"), ("-n", "2"), 255, _INDEX),
    "Open MPI 5": Launcher("Open MPI", _of_index("openmpi", "mpiexec"), ("--host", "localhost:2", "-n", "2"), 137, _INDEX, AS_ROOT),
    "Open MPI 4": Launcher(
        "Open MPI", _on_path("mpiexec.openmpi"), ("--oversubscribe", "-n", "2"), 137, "apt-get install openmpi-bin", AS_ROOT
    ),
    "prterun": Launcher(
        "Open MPI",
        _of_index("openmpi", "prterun"),
        ("--host", "localhost:2", "-n", "2", "-x", "JAX_NUM_PROCESSES=2", "-x", "JAX_COORDINATOR_ADDRESS={address}"),
        137,
        _INDEX,
        AS_ROOT,
    ),
    "prterun with a rendezvous": Launcher(
        "Open MPI",
        _of_index("openmpi", "prterun"),
        ("--host", "localhost:2", "-n", "2", "-x", "JAX_NUM_PROCESSES=2"),
        137,
        _INDEX,
        AS_ROOT | {"REPLICANT_RENDEZVOUS": "{folder}", "JAX_COORDINATOR_BIND_ADDRESS": "{address}"},
    ),
    "torchrun": Launcher(
        "torchrun",
        _torchrun,
        ("--nproc_per_node", "2", "--master_addr", "127.0.0.1", "--master_port", "{port}", *_LOGS, "--no_python"),
        1,
        "apt-get install python3-torch, or pip install torch",
    ),
}
