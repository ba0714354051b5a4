"""Slurm on loopback: munged, slurmctld and two slurmd, which serve a partition of two nodes. All of it lies in one folder.

The nodes have two names of this machine, so that programs on both find each other.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc", "scontrol")
NODES = (socket.gethostname().partition(".")[0], "localhost")
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,bf_hetjob_immediate
MpiDefault=none
ReturnToService=2
KillWait=1
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 State=UNKNOWN
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 State=UNKNOWN
PartitionName=p Nodes={host},localhost Default=YES MaxTime=10 State=UP
"""


def missing() -> str | None:
    """Why Slurm cannot run here, or None."""
    if os.geteuid() != 0:
        return "slurmd needs root"
    absent = [name for name in NEEDED if shutil.which(name) is None]
    return f"{', '.join(absent)} not found: apt-get install slurm-wlm munge" if absent else None


class Slurm:
    """A cluster of two nodes on this machine. It is a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self) -> Self:
        folder, host = self.folder, NODES[0]
        for name in ("state", *(f"spool.{node}" for node in NODES)):
            (folder / name).mkdir(parents=True)
        folder.chmod(0o755)
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        (folder / "slurm.conf").write_text(_CONFIGURATION.format(host=host, folder=folder, ports=_free_ports(3)), encoding="utf-8")
        files = [f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in ("pid-file", "log-file", "seed-file")]
        try:
            self._start("munged", "--force", f"--key-file={key}", f"--socket={folder}/munge.sock", *files)
            self._start("slurmctld", "-f", self.environment["SLURM_CONF"])
            for node in NODES:
                self._start("slurmd", "-N", node, "-f", self.environment["SLURM_CONF"])
            self._wait_until_idle()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the daemons, the last one first."""
        for name in (*(f"slurmd.{node}" for node in NODES), "slurmctld", "munge"):
            path = self.folder / f"{name}.pid"
            if path.exists():
                process = int(path.read_text(encoding="utf-8"))
                _end(process)

    def _start(self, *command: str) -> None:
        done = self._run(*command)
        assert done.returncode == 0, (command, done.stderr)

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        variables = os.environ | self.environment
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)

    def _wait_until_idle(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            shown = self._run("scontrol", "show", "node")
            if shown.stdout.count("State=IDLE ") == len(NODES):
                return
            assert time.monotonic() < deadline, (shown.stdout, shown.stderr)
            time.sleep(0.2)


def _end(process: int) -> None:
    deadline = time.monotonic() + 20
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(process, number)
            while time.monotonic() < deadline:
                os.kill(process, 0)
                time.sleep(0.05)
        except ProcessLookupError:
            return


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
