"""``replicant launch``: run a training script on several workers."""

import argparse
import shlex
import sys
from pathlib import Path

from ..errors import ArgumentError
from ..launch import Job, Settings, Supervisor, describe_job, submit_job
from ..launch._jobs import ENGINES
from ..launch._settings import check_script, parse_elastic

SUMMARY = "Run a training script on several workers: start them, watch them, start them again."
_LOCAL = ("elastic", "heartbeat", "start", "stall", "port")  # what engines decide themselves
_ENGINE = ("image", "name", "engine_args")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``replicant launch``."""
    parser.usage = "replicant launch [options] SCRIPT [ARGUMENTS ...]"
    add = parser.add_argument
    add("--workers", type=int, default=1, metavar="N", help="processes; 1 by default")
    add("--devices-per-worker", type=int, metavar="K", help="virtual CPU devices, or GPUs, of each")
    add("--max-restarts", type=int, default=0, metavar="N", help="start the job again after a failure, so many times; 0 by default")
    add("--elastic", metavar="MIN:MAX", help="go on with the workers that are left, as long as there are MIN")
    add("--log-dir", type=Path, metavar="D", help="where each worker's log goes: D/rank-0.log, ...; else a temporary directory")
    add("--grace", type=float, default=30.0, metavar="S", help="seconds that workers have to end when asked to; else 30")
    add("--heartbeat", type=float, metavar="S", help="seconds without a sign of life until a worker counts as frozen; else 30")
    add("--start", type=float, metavar="S", help="seconds that workers may come later than the first one; else 300")
    add("--finish", type=float, default=300.0, metavar="S", help="seconds without a step once a worker has left; else 300")
    add("--stall", type=float, metavar="S", help="seconds without a step on any worker until the job counts as stuck; else never")
    add("--port", type=int, metavar="P", help="of the coordinator on 127.0.0.1; a free one by default")
    add("--preempted-code", type=int, default=143, metavar="N", help="exit code of a program that was asked to leave; else 143")
    add("--engine", default="local", metavar="E", help=f"what runs the workers: {', '.join(ENGINES)}; local by default")
    add("--submit", action="store_true", help="give the job to slurm, kubernetes or mpi, instead of printing it")
    add("--hosts", metavar="H,H:N", help="for slurm and mpi: the hosts, and how many workers each one runs")
    add("--name", metavar="NAME", help="of the job, for slurm and kubernetes; the script's by default")
    add("--image", metavar="IMAGE", help="for kubernetes: the container in which the script is")
    add("--engine-args", metavar="ARGS", help="more options for sbatch or mpirun, in one quoted string")
    add("-m", "--module", action="store_true", help="SCRIPT is the name of a module, as in python -m")
    add("script", metavar="SCRIPT", help="the training program; what follows is handed to it")
    add("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help=argparse.SUPPRESS)


def main(arguments: argparse.Namespace) -> int:
    """Run ``replicant launch``; returns the exit code of the job."""
    if arguments.engine not in ENGINES:
        raise ArgumentError(f"--engine {arguments.engine!r} is not known. It is one of {', '.join(ENGINES)}.")
    settings = _settings(arguments)
    if not arguments.module and arguments.engine != "kubernetes":  # there it is in the container
        check_script(arguments.script)
    if arguments.engine == "local":
        _refuse(arguments, (*_ENGINE, "hosts", "submit"), "for other engines than local, which runs everything on this machine")
        return Supervisor(settings).run()
    if arguments.engine == "ray":
        _refuse(arguments, (*_ENGINE, "hosts", "submit"), "not for --engine ray, which runs the job now, on nodes that Ray chooses")
        from ..launch._ray import RayNodes

        with RayNodes(settings) as nodes:
            return Supervisor(settings, nodes=nodes).run()
    _refuse(arguments, _LOCAL, f"for --engine local; {arguments.engine} watches its workers itself")
    job = Job(
        settings,
        arguments.engine,
        name=arguments.name or "",
        hosts=tuple(filter(None, (arguments.hosts or "").split(","))),
        image=arguments.image or "",
        engine_args=_words(arguments.engine_args or ""),
        python="python" if arguments.engine == "kubernetes" else sys.executable,
    )
    if arguments.submit:
        return submit_job(job)
    sys.stdout.write(describe_job(job))
    return 0


def _settings(arguments: argparse.Namespace) -> Settings:
    given = {name: getattr(arguments, name) for name in ("heartbeat", "start") if getattr(arguments, name) is not None}
    rest = arguments.arguments
    return Settings(
        command=(arguments.script, *rest),
        is_module=arguments.module,
        num_workers=arguments.workers,
        devices_per_worker=arguments.devices_per_worker,
        max_restarts=arguments.max_restarts,
        elastic=None if arguments.elastic is None else parse_elastic(arguments.elastic),
        grace=arguments.grace,
        finish=arguments.finish,
        stall=arguments.stall,
        log_dir=arguments.log_dir,
        port=arguments.port,
        preempted_code=arguments.preempted_code,
        **given,
    )


def _refuse(arguments: argparse.Namespace, names: tuple[str, ...], what: str) -> None:
    """Do not silently leave out what was asked for."""
    for name in names:
        if getattr(arguments, name):
            raise ArgumentError(f"--{name.replace('_', '-')} is {what}.")


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ArgumentError(f"--engine-args {text!r} cannot be split into words: {error}.") from error
