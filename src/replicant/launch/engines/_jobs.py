"""Makes job files and command lines for Slurm, Kubernetes and MPI from the settings of a job. Only `submit_job` runs anything.

The resolvers in `replicant.cluster` read the variables that these engines set, so a job file is short.
"""

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import ArgumentError, ConfigurationError
from .._cpu import virtual_devices
from .._settings import Settings

ENGINES = ("local", "slurm", "kubernetes", "ray", "mpi")
_COMMANDS = {"slurm": ["sbatch"], "kubernetes": ["kubectl", "apply", "-f", "-"], "mpi": ["mpirun"]}
_PORT = 55527  # of the coordinator in a pod, the same as in JAX's own detection
_PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
_UNSET = [*(variant for name in _PROXIES for variant in (name, name.upper())), "REPLICANT_SINGLE"]


@dataclasses.dataclass(frozen=True)
class Job:
    """A job for an engine.

    Args:
        settings: What to run, and with how many workers. Times and ports that the engine decides itself are not used.
        engine: The engine: "slurm", "kubernetes" or "mpi".
        name: The name of the job. By default that of the script.
        hosts: The hosts, each as ``HOST`` or ``HOST:WORKERS``. By default the engine chooses them.
        image: The container image, which Kubernetes needs.
        engine_args: Further options for ``#SBATCH`` lines or for mpirun.
        python: The name of the interpreter on the hosts.

    Raises:
        ArgumentError: If a value breaks a rule.
    """

    settings: Settings
    engine: str
    name: str = ""
    hosts: tuple[str, ...] = ()
    image: str = ""
    engine_args: tuple[str, ...] = ()
    python: str = "python"

    def __post_init__(self) -> None:
        if self.engine in ("local", "ray"):
            raise ArgumentError(f"--engine {self.engine} runs the job itself, so there is no job file to print or submit.")
        if self.engine not in _COMMANDS:
            raise ArgumentError(f"--engine {self.engine!r} is not known. It is one of {', '.join(ENGINES)}.")
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", self.job_name):
            raise ArgumentError(
                f"--name {self.name!r} is not a valid name. Kubernetes allows up to 40 lower-case letters, digits and hyphens."
            )
        if self.engine == "kubernetes" and not self.image:
            raise ArgumentError("--engine kubernetes needs --image: the container image that contains the script.")
        if self.engine == "kubernetes" and self.hosts:
            raise ArgumentError("--engine kubernetes chooses the nodes itself: leave --hosts out.")
        slots = parse_hosts(self.hosts)
        if slots and sum(slots.values()) < self.settings.num_workers:
            raise ArgumentError(
                f"--hosts {','.join(self.hosts)} has room for {sum(slots.values())} worker(s), but --workers is "
                f"{self.settings.num_workers}. Write HOST:N for N workers on a host."
            )

    @property
    def job_name(self) -> str:
        """The name of the job."""
        if self.name:
            return self.name
        program = self.settings.command[0]
        stem = program if self.settings.is_module else Path(program).stem
        return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:40].strip("-") or "job"

    @property
    def argv(self) -> list[str]:
        """The command line of a worker."""
        return [self.python, *(["-m"] if self.settings.is_module else []), *self.settings.command]

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that a worker needs besides those that the engine sets."""
        found = {"PYTHONUNBUFFERED": "1"}
        if self.settings.devices_per_worker is not None:
            found |= virtual_devices({}, self.settings.devices_per_worker)
        return found


def parse_hosts(hosts: Sequence[str]) -> dict[str, int]:
    """The number of workers on each host.

    Raises:
        ArgumentError: If an item is neither HOST nor HOST:N, or if a host is there twice.

    >>> parse_hosts(["a", "b:2"])
    {'a': 1, 'b': 2}
    >>> parse_hosts(["me@a"])
    {'me@a': 1}
    """
    found: dict[str, int] = {}
    for text in hosts:
        match = re.fullmatch(r"((?:[A-Za-z0-9._-]+@)?[A-Za-z0-9_.][A-Za-z0-9._-]*)(?::([1-9][0-9]{0,3}))?", text)
        if match is None:
            ipv6 = " An IPv6 address is no HOST: workers reach each other over IPv4." if text.count(":") > 1 else ""
            raise ArgumentError(
                f"--hosts: {text!r} is neither HOST nor HOST:WORKERS, with 1 to 9999 workers.{ipv6} Write it as in node1:4,node2:4."
            )
        if match[1] in found:
            raise ArgumentError(f"--hosts: {match[1]!r} is there twice. Write {match[1]}:N for N workers on it.")
        found[match[1]] = int(match[2] or 1)
    return found


def read_hosts_file(path: Path) -> list[str]:
    """The hosts in a file, each as ``HOST`` or ``HOST:WORKERS``. A line has one host: ``HOST``, ``HOST:N`` or ``HOST slots=N``.

    What follows a ``#`` is a comment.

    Raises:
        ArgumentError: If the file cannot be read, or if a line has another form.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"--hosts-file {str(path)!r} cannot be read: {error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        match = re.fullmatch(r"([^\s:=,]+)(?:(?::| slots=)([1-9][0-9]{0,3}))?", " ".join(words))
        if match is None:
            raise ArgumentError(
                f"--hosts-file {str(path)!r}, line {number}: {line.strip()!r} is no host. Write HOST, HOST:N or HOST slots=N, "
                "with N from 1 to 9999."
            )
        found.append(match[1] if match[2] is None else f"{match[1]}:{match[2]}")
    if not found:
        raise ArgumentError(f"--hosts-file {str(path)!r} names no host. Write one host in each line.")
    return found


def describe_job(job: Job) -> str:
    """The job file or, for MPI, the command line.

    Raises:
        ArgumentError: If the command line has bytes that are no text.
    """
    for word in (job.image, str(job.settings.log_dir or ""), *job.engine_args, *job.argv):
        if any("\ud800" <= each <= "\udfff" for each in word):
            raise ArgumentError(
                f"{word!a} is no text in UTF-8, so it cannot stand in a job for {job.engine}. Rename the file, or change the "
                "argument."
            )
    return {"slurm": slurm_file, "kubernetes": kubernetes_file, "mpi": mpi_line}[job.engine](job)


def slurm_file(job: Job) -> str:
    """A batch script that starts one process per worker, and that requeues itself as long as restarts are left."""
    settings = job.settings
    folder = "" if settings.log_dir is None else f"{settings.log_dir}/"
    slots = parse_hosts(job.hosts)
    options = [f"--job-name={job.job_name}", f"--ntasks={settings.num_workers}"]
    if slots:
        options += [f"--nodelist={','.join(slots)}", f"--ntasks-per-node={max(slots.values())}"]
    options += ["--output=slurm-%j.log", "--open-mode=append", f"--signal=TERM@{settings.grace:.0f}"]
    options += ["--requeue" if settings.max_restarts else "--no-requeue", *job.engine_args]
    run = ["srun", "--kill-on-bad-exit=1", f"--wait={settings.finish:.0f}", f"--output={folder}rank-%t.log", "--open-mode=append"]
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options), ""]
    lines += [f"unset {' '.join(_UNSET)}", *(f"export {name}={value}" for name, value in job.variables.items())]
    if folder:
        lines.append(f"mkdir -p {shlex.quote(str(settings.log_dir))}")
    lines += ["", shlex.join([*run, *job.argv])]
    if settings.max_restarts:
        test = f"[ $code -eq {settings.preempted_code} ] || {{ [ $code -ne 0 ] && [ ${{SLURM_RESTART_COUNT:-0}} -lt "
        test += f"{settings.max_restarts} ]; }}"
        lines += ["code=$?", f"if {test}; then", '    scontrol requeue "$SLURM_JOB_ID"', "fi", "exit $code"]
    return "\n".join(lines) + "\n"


def kubernetes_file(job: Job) -> str:
    """An indexed Job, and the headless service that gives its pods names."""
    settings, name = job.settings, job.job_name
    variables = {"JAX_NUM_PROCESSES": str(settings.num_workers), "JAX_COORDINATOR_ADDRESS": f"{name}-0.{name}:{_PORT}"}
    variables |= {"REPLICANT_JOB_ID": name} | job.variables
    env = "\n".join(f"        - {{name: {key}, value: {_quoted(value)}}}" for key, value in variables.items())
    return _KUBERNETES.format(
        name=name,
        workers=settings.num_workers,
        backoff=settings.max_restarts * settings.num_workers,
        preempted=settings.preempted_code,
        grace=f"{settings.grace:.0f}",
        image=_quoted(job.image),
        command=f"[{', '.join(map(_quoted, job.argv))}]",
        env=env,
        port=_PORT,
    )


def _quoted(text: str) -> str:
    r"""A text in YAML. Beyond 16 bits, JSON writes characters as two halves, which YAML does not put together.

    >>> print(_quoted('"\N{SLIGHTLY SMILING FACE}"'))
    "\"\U0001f642\""
    """
    return f'"{"".join(json.dumps(each)[1:-1] if each <= chr(0xFFFF) else f"{chr(92)}U{ord(each):08x}" for each in text)}"'


def mpi_line(job: Job) -> str:
    """The command line of mpirun."""
    return shlex.join(mpi_argv(job)) + "\n"


def mpi_argv(job: Job) -> list[str]:
    """The command line of Open MPI's mpirun, as a list of words."""
    found = [*_COMMANDS["mpi"], "-np", str(job.settings.num_workers)]
    slots = parse_hosts(job.hosts)
    if slots:
        found += ["-H", ",".join(f"{host}:{count}" for host, count in slots.items())]
    for name, value in job.variables.items():
        found += ["-x", f"{name}={value}"]
    return [*found, *job.engine_args, *job.argv]


def submit_job(job: Job, environ: Mapping[str, str] | None = None) -> int:
    """Give the job to its engine.

    Args:
        job: The job.
        environ: The environment of the engine's command. By default the process's own.

    Returns:
        The exit code of ``sbatch``, ``kubectl`` or ``mpirun``.

    Raises:
        ConfigurationError: If the engine's command is not installed.
    """
    found = {name: value for name, value in (os.environ if environ is None else environ).items() if name not in _UNSET}
    command = mpi_argv(job) if job.engine == "mpi" else _COMMANDS[job.engine]
    path = shutil.which(command[0], path=found.get("PATH"))
    if path is None:
        raise ConfigurationError(
            f"--submit needs the command {command[0]!r}, which is not on PATH. Leave --submit out to print the job, and submit it "
            "on a machine that has the command."
        )
    text = None if job.engine == "mpi" else describe_job(job).encode()
    return subprocess.run([path, *command[1:]], input=text, env=found, check=False).returncode  # noqa: S603 - what the user asked for


_KUBERNETES = """\
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  clusterIP: None
  publishNotReadyAddresses: true  # pods look for pod 0 before it is ready
  selector:
    batch.kubernetes.io/job-name: {name}
  ports:
  - port: {port}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
spec:
  completionMode: Indexed
  completions: {workers}
  parallelism: {workers}
  backoffLimit: {backoff}  # every failed pod counts, and one failure ends the others
  podFailurePolicy:
    rules:
    - action: Ignore  # the node is taken away
      onPodConditions:
      - type: DisruptionTarget
    - action: Ignore  # the pod was asked to leave, and has saved everything
      onExitCodes:
        operator: In
        values: [{preempted}]
  template:
    spec:
      subdomain: {name}
      restartPolicy: Never
      terminationGracePeriodSeconds: {grace}
      containers:
      - name: worker
        image: {image}
        command: {command}
        env:
{env}
"""
