"""``replicant run``: starts a program with settings for CPUs that must be made before Python starts."""

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from .._python import users_python
from ..errors import ArgumentError
from ..launch._cpu import ALLOCATORS, Chosen, Machine, Wishes, check_preload, choose, library_folders, parse_cores, shown_cores
from ..launch._environment import accelerators_of
from ..launch._settings import check_script
from ..profiling._of_program import settings
from ..storage._urls import local_path
from ..strategies._of_program import STRATEGIES, check_name
from . import _under_strategy

SUMMARY = "Run a program on CPUs with settings that must be made before Python starts: allocator, cores, threads, devices."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``replicant run``."""
    parser.usage = "replicant run [options] SCRIPT [ARGUMENTS ...]"
    add = parser.add_argument
    known = ", ".join(ALLOCATORS)
    add(
        "--allocator",
        metavar="NAME",
        help=f"load another allocator: {known}, or the path of one (default: glibc's, which keeps its memory)",
    )
    add("--cores", metavar="LIST", help="the cores to use, such as 0-3,6 (default: all)")
    add("--threads", type=int, metavar="N", help="number of threads that XLA computes with (default: one for each core)")
    add("--devices", type=int, metavar="N", help="number of virtual CPU devices")
    add("--unfused", action="store_true", help="compute each replica on a virtual device of its own, to try a program as on GPUs")
    add("--cache", metavar="DIR", help="folder for compiled programs")
    add("--strategy", metavar="NAME", help=f"give a program without strategies one, on all devices: {', '.join(STRATEGIES)}")
    add(
        "--profile", type=int, metavar="N", help="record where the time of N steps goes, and print a table as soon as they are done"
    )
    add("--profile-dir", metavar="DIR", help="folder for the files of JAX's profiler, with --profile")
    add("--quiet", action="store_true", help="do not say what was set")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("-m", "--module", action="store_true", help="run SCRIPT as a module, as python -m does")
    kind.add_argument("-c", "--code", action="store_true", help="run SCRIPT as code, as python -c does")
    add("script", metavar="SCRIPT", help="the program; further arguments are passed to it")
    add("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help=argparse.SUPPRESS)


def main(arguments: argparse.Namespace) -> int:
    """Become the program. This returns only by raising.

    Raises:
        ArgumentError: If an option cannot be met, or if the environment contradicts it.
        ConfigurationError: If the system is not Linux.
    """
    if arguments.strategy is not None:
        check_name(arguments.strategy)
    profile = _profile(arguments)
    wishes = Wishes(
        allocator=arguments.allocator,
        cores=None if arguments.cores is None else parse_cores(arguments.cores),
        threads=arguments.threads,
        devices=arguments.devices,
        cache=None if arguments.cache is None else str(local_path("--cache", arguments.cache).absolute()),
        unfused=arguments.unfused,
    )
    environ = _given()
    chosen = choose(wishes, environ, _machine(environ))
    check_preload(chosen.variables)
    if not (arguments.module or arguments.code):
        check_script(arguments.script)
    if wishes.cores is not None:
        os.sched_setaffinity(0, wishes.cores)  # which the program inherits
    if not arguments.quiet:
        print(f"replicant run: {_told(chosen, wishes, arguments)}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    argv = users_python(*_program(arguments), *arguments.arguments)
    os.execve(argv[0], argv, {**environ, **chosen.variables, **profile})  # noqa: S606 - it is the user's program


def _profile(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the variables with which the program is profiled. The process keeps its number when it becomes the program.

    Raises:
        ArgumentError: If the number of steps is not positive, or if there is only a folder.
    """
    if arguments.profile is None:
        if arguments.profile_dir is not None:
            raise ArgumentError("--profile-dir says where to keep a profile, but there is none. Add --profile 10.")
        return {}
    if arguments.profile < 1:
        raise ArgumentError(f"--profile must be the number of steps to record, 1 or more. Got {arguments.profile}.")
    return settings(arguments.profile, arguments.profile_dir, os.getpid())


def _program(arguments: argparse.Namespace) -> list[str]:
    """Return what Python is told to run."""
    if arguments.strategy is not None:
        kind = "module" if arguments.module else "code" if arguments.code else "script"
        return [_under_strategy.__file__, arguments.strategy, kind, arguments.script]
    return [*(["-m"] if arguments.module else ["-c"] if arguments.code else []), arguments.script]


def _given() -> dict[str, str]:
    """The environment that this process was given. Importing this package has added to it what this process needs."""
    try:
        text = Path("/proc/self/environ").read_bytes()
    except OSError:  # nothing is mounted there
        return dict(os.environ)
    pairs = (os.fsdecode(pair).partition("=") for pair in text.split(b"\0") if b"=" in pair)
    return {name: value for name, _, value in pairs}


def _machine(environ: Mapping[str, str]) -> Machine:
    is_linux = sys.platform == "linux"
    return Machine(
        sys.platform,
        frozenset(os.sched_getaffinity(0)) if is_linux else frozenset(),
        accelerators_of(environ, [path.name for path in Path("/dev").iterdir()]) if is_linux else (),
        library_folders(environ),
    )


def _told(chosen: Chosen, wishes: Wishes, arguments: argparse.Namespace) -> str:
    """Say in one line what was set, and what the user had set."""
    parts = [] if arguments.strategy is None else [f"strategy {arguments.strategy}"]
    parts += [] if arguments.profile is None else [f"profile of {arguments.profile} steps"]
    parts += [] if wishes.cores is None else [f"cores {shown_cores(wishes.cores)}"]
    parts += [f"{name}={value}" for name, value in chosen.variables.items()]
    if chosen.kept:
        parts.append("as you set it: " + " ".join(f"{name}={value}" for name, value in chosen.kept.items()))
    return "; ".join(parts) or "nothing to set"
