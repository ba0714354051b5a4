"""``replicant launch``: runs a training script on several workers."""

import argparse
import os
import shlex
import sys
from pathlib import Path

from ..cluster.resolvers._launchers import find_single
from ..cluster.resolvers._signs import started_several
from ..errors import ArgumentError, ClusterError
from ..launch import Job, Settings, Supervisor, describe_job, submit_job
from ..launch._settings import check_script, parse_elastic
from ..launch.engines._hosts import read_hosts_file
from ..launch.engines._options import ENGINES, IN_CONTAINERS, JOBS, SUBMITTED, TAKEN_BY, check_engine, check_taken
from . import _launch_hosts
from ._status import show

SUMMARY = "Run a training script on several workers: start them, watch them, and start them again if they fail."
_ON_HOSTS = ("python", "max_clock_skew")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``replicant launch``."""
    parser.usage = "replicant launch [options] SCRIPT [ARGUMENTS ...]"
    add = parser.add_argument
    add("--workers", type=int, metavar="N", help="number of workers, which are processes (default: 1); with --nodes: on this host")
    add("--devices-per-worker", type=int, metavar="K", help="number of virtual CPU devices, or of GPUs, of each worker")
    add("--max-restarts", type=int, metavar="N", help="start the job again up to N times after failures (default: 0)")
    add("--elastic", metavar="MIN:MAX", help="go on with the remaining workers as long as there are at least MIN of them")
    add("--log-dir", type=Path, metavar="D", help="directory for the logs D/rank-0.log, ... (default: a temporary directory)")
    add("--grace", type=float, metavar="S", help="seconds that workers have to end when asked to (default: 30)")
    add("--heartbeat", type=float, metavar="S", help="seconds without a heartbeat until a worker counts as frozen (default: 30)")
    add("--start", type=float, metavar="S", help="seconds that workers may come later than the first one (default: 300)")
    finish = "seconds that a worker may go on without a step once another has ended its program (default: 300)"
    add("--finish", type=float, metavar="S", help=finish)
    stall = "seconds without a step on any worker until the job counts as stuck (default: no limit)"
    add("--stall", type=float, metavar="S", help=stall)
    add("--port", type=int, metavar="P", help="port of the coordinator on 127.0.0.1 (default: a free one)")
    page = "show how the job is at http://127.0.0.1:P/ (default: no such page; 0: a free port)"
    add("--status-port", type=int, metavar="P", help=page)
    show = "show how a running job is instead of starting one; RUN is its --log-dir"
    add("--status", type=Path, metavar="RUN", help=show)
    preempted = "exit code of a program that was asked to leave and has saved (default: 143)"
    add("--preempted-code", type=int, metavar="N", help=preempted)
    add("--engine", default="local", metavar="E", help=f"what runs the workers: {', '.join(ENGINES)} (default: local)")
    add("--print", action="store_true", help=f"print the job, as is done without --submit; for {', '.join(JOBS)}")
    add("--submit", action="store_true", help=f"submit the job instead of printing it; for {', '.join(SUBMITTED)}")
    _launch_hosts.add_arguments(parser)
    add("--name", metavar="NAME", help="with a job that is printed or submitted: its name (default: that of the script)")
    add("--image", metavar="IMAGE", help=f"the container image that contains the script; for {', '.join(IN_CONTAINERS)}")
    more = "as one quoted string: further options for sbatch or mpirun, limits of a pod's resources, or fields of a job in a cloud"
    add("--engine-args", metavar="ARGS", help=more)
    add("-m", "--module", action="store_true", help="run SCRIPT as a module, as python -m does")
    add("script", metavar="SCRIPT", nargs="?", help="the training program; further arguments are passed to it")
    add("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help=argparse.SUPPRESS)


def main(arguments: argparse.Namespace) -> int:
    """Run ``replicant launch``. Returns the exit code of the job.

    Raises:
        ArgumentError: If an option breaks a rule, or does not fit the engine.
        ClusterError: If another launcher has started this command several times.
        CommandError: With --status, if there is no run log.
        ConfigurationError: If the job cannot be started on this machine.
    """
    if arguments.status is not None:
        if arguments.script is not None:
            raise ArgumentError(
                f"--status shows how a job is and starts none, so it takes no SCRIPT. Got {arguments.script!r}. To start a job "
                "that has a status page, write --status-port."
            )
        return show(arguments.status)
    if arguments.script is None:
        raise ArgumentError("there is no SCRIPT to run. Write replicant launch [options] SCRIPT [ARGUMENTS ...].")
    _check_options(arguments)
    settings, hosts = _settings(arguments), _hosts(arguments)
    if not arguments.module and arguments.engine not in IN_CONTAINERS:
        check_script(arguments.script)
    if arguments.engine in ("local", "ray") and arguments.node_rank is None:
        _check_started_once()
    if arguments.engine == "local":
        if _launch_hosts.is_on_hosts(arguments, hosts):
            return _launch_hosts.run_on_hosts(settings, arguments, hosts)
        for option in _ON_HOSTS:
            if _is_given(arguments, option):
                raise ArgumentError(f"--{option.replace('_', '-')} is only for a job on several hosts: give --hosts or --nodes.")
        return Supervisor(settings).run()
    if arguments.engine == "ray":
        from ..launch.engines._ray import RayNodes

        with RayNodes(settings) as nodes:
            return Supervisor(settings, nodes=nodes).run()
    return _give(settings, hosts, arguments)


def _give(settings: Settings, hosts: tuple[str, ...], arguments: argparse.Namespace) -> int:
    """Print or submit the job. Returns the exit code."""
    if arguments.print and arguments.submit:
        raise ArgumentError("--print prints the job and --submit submits it: give one of the two.")
    job = Job(
        settings,
        arguments.engine,
        name=arguments.name or "",
        hosts=hosts,
        image=arguments.image or "",
        engine_args=_words(arguments.engine_args or ""),
        python="python" if arguments.engine in IN_CONTAINERS else sys.executable,
    )
    if arguments.submit:
        return submit_job(job)
    sys.stdout.write(describe_job(job))
    return 0


def _check_options(arguments: argparse.Namespace) -> None:
    """Check that the engine takes the options that are given."""
    check_engine(arguments.engine)
    for option in TAKEN_BY:
        if _is_given(arguments, option):
            check_taken(option, arguments.engine)


def _check_started_once() -> None:
    """Check that this is not one of several copies of the command, each of which would train a model of its own.

    Raises:
        ClusterError: If a launcher says so, and REPLICANT_SINGLE does not say that it is meant.
    """
    sign = started_several(os.environ)
    if sign is not None and find_single(os.environ) is None:
        raise ClusterError(
            f"by {sign}, another launcher has started this command several times, and each would start a job of its own. Let that "
            "launcher start the program itself, without replicant launch; or start one command on each host, with --nodes and "
            "--node-rank. If each is to start a job of its own, set REPLICANT_SINGLE=1."
        )


def _settings(arguments: argparse.Namespace) -> Settings:
    names = ("max_restarts", "grace", "heartbeat", "start", "finish", "preempted_code")
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    return Settings(
        command=(arguments.script, *arguments.arguments),
        is_module=arguments.module,
        num_workers=1 if arguments.workers is None else arguments.workers,
        devices_per_worker=arguments.devices_per_worker,
        elastic=None if arguments.elastic is None else parse_elastic(arguments.elastic),
        stall=arguments.stall,
        log_dir=arguments.log_dir,
        port=arguments.port,
        status_port=arguments.status_port,
        **given,
    )


def _hosts(arguments: argparse.Namespace) -> tuple[str, ...]:
    if arguments.hosts is not None and arguments.hosts_file is not None:
        raise ArgumentError("--hosts and --hosts-file both say which hosts there are: give one of the two.")
    if arguments.hosts_file is not None:
        return tuple(read_hosts_file(Path(arguments.hosts_file)))
    return () if arguments.hosts is None else tuple(arguments.hosts.split(","))


def _is_given(arguments: argparse.Namespace, option: str) -> bool:
    value = getattr(arguments, option)
    return value is not None and value is not False


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ArgumentError(f"--engine-args {text!r} cannot be split into words: {error}.") from error
