"""Reads environment variables: numbers, and what JAX's own variables say about the coordinator."""

import zlib
from collections.abc import Mapping

from ...errors import ClusterError
from .._addresses import HIGHEST_PORT, join_address, split_address
from .._spec import MOST_TASKS

Environ = Mapping[str, str]

RENDEZVOUS = "REPLICANT_RENDEZVOUS"
# What to set where a launcher tells a process its rank, but not where process 0 is.
WHERE = (
    "JAX_COORDINATOR_ADDRESS=HOST:PORT in each process, with the host of process 0 and a free port there, or "
    f"{RENDEZVOUS}=/path/of/a/folder that all hosts share"
)
# Above the ports that Linux assigns by itself (32768 to 60999), with room for one port per process after each.
_FIRST_PORT = 61440
_PORT_CHOICES = 3840
_MOST_DIGITS = 18


def first(environ: Environ, *names: str) -> tuple[str, str] | None:
    """The name and value of the first variable that is set and not empty, or None."""
    return next(((name, environ[name].strip()) for name in names if environ.get(name, "").strip()), None)


def number(environ: Environ, *names: str) -> int | None:
    """The whole number in the first variable that is set, or None if none of them is set.

    Raises:
        ClusterError: If the variable contains anything but digits, or too many.

    >>> number({"RANK": "3"}, "RANK"), number({}, "RANK")
    (3, None)
    """
    found = first(environ, *names)
    if found is None:
        return None
    name, value = found
    if not (value.isascii() and value.isdigit()):
        raise ClusterError(f"{name}={value!r} is not a whole number from 0.")
    if len(value) > _MOST_DIGITS:
        raise ClusterError(f"{name} has {len(value)} digits; a number here has at most {_MOST_DIGITS}.")
    return int(value)


def needed_number(environ: Environ, source: str, advice: str, *names: str) -> int:
    """Like `number`, but it is an error if none of the variables is set.

    Args:
        environ: The environment to read.
        source: What needs the number, for the error message.
        advice: What to do, for the error message.
        *names: The variables.

    Raises:
        ClusterError: If no variable is set, or if the first that is set contains anything but digits.
    """
    value = number(environ, *names)
    if value is None:
        raise ClusterError(f"{source}: {' or '.join(names)} is not set. {advice}")
    return value


def check_rank(source: str, name: str, rank: int, count_name: str, count: int) -> None:
    """Check that a rank is below the number of processes.

    Raises:
        ClusterError: If it is not, or if there are no processes or more than 65,536.
    """
    if count < 1:
        raise ClusterError(f"{source}: {count_name}={count}; there must be at least one process.")
    if count > MOST_TASKS:
        raise ClusterError(f"{source}: {count_name}={count}; there can be at most {MOST_TASKS} processes.")
    if rank >= count:
        raise ClusterError(f"{source}: {name}={rank} is outside {count_name}={count}: it must be from 0 to {count - 1}.")


def local_place(environ: Environ, source: str, rank_name: str, size_name: str) -> tuple[int, int] | None:
    """The rank on this host and the number of processes there, or None unless both are known."""
    rank, size = number(environ, rank_name), number(environ, size_name)
    if rank is None or size is None:
        return None
    check_rank(source, rank_name, rank, size_name, size)
    return rank, size


def port_of_job(identity: str) -> int:
    """A port that is the same for all processes of a job, and that two jobs on one machine seldom share.

    >>> port_of_job("job 17") == port_of_job("job 17"), 61440 <= port_of_job("job 18") < 65280
    (True, True)
    """
    return _FIRST_PORT + zlib.crc32(identity.encode()) % _PORT_CHOICES


def coordinator_port(environ: Environ, default: int) -> int:
    """The port in ``JAX_COORDINATOR_PORT``, or a default.

    Raises:
        ClusterError: If the variable is not a port.
    """
    port = number(environ, "JAX_COORDINATOR_PORT")
    if port is not None and not 1 <= port <= HIGHEST_PORT:
        raise ClusterError(f"JAX_COORDINATOR_PORT={port}: a port is from 1 to {HIGHEST_PORT}.")
    return default if port is None else port


def told_coordinator(environ: Environ, default_port: int | None = None) -> str | None:
    """The address in ``JAX_COORDINATOR_ADDRESS``, with its own port or ``JAX_COORDINATOR_PORT``, or None if it is not set."""
    found = first(environ, "JAX_COORDINATOR_ADDRESS")
    if found is None:
        return None
    name, address = found
    has_port = address.count(":") == 1 or "]:" in address
    if not has_port and (default_port is not None or "JAX_COORDINATOR_PORT" in environ):
        address = join_address(address.strip("[]"), coordinator_port(environ, default_port or 0))
    split_address(address, name)
    return address


def told_rendezvous(environ: Environ) -> str | None:
    """The folder in ``REPLICANT_RENDEZVOUS``, where process 0 tells the others its address, unless its address was told.

    Raises:
        ClusterError: If it is not the full path of a folder.

    >>> told_rendezvous({"REPLICANT_RENDEZVOUS": "/shared/jobs"}), told_rendezvous({})
    ('/shared/jobs', None)
    """
    found = first(environ, RENDEZVOUS)
    if found is None or told_coordinator(environ) is not None:
        return None
    if not found[1].startswith("/"):
        raise ClusterError(
            f"{RENDEZVOUS}={found[1]!r} is not the full path of a folder that all processes share, as in /shared/jobs."
        )
    return found[1]


def told_bind_address(environ: Environ) -> str | None:
    """The address in ``JAX_COORDINATOR_BIND_ADDRESS``, or None if it is not set."""
    found = first(environ, "JAX_COORDINATOR_BIND_ADDRESS")
    if found is not None:
        split_address(found[1], found[0])
        return found[1]
    return None


def named_job(launcher: str, *parts: tuple[str, str] | None) -> str | None:
    """The launcher's name for a job, from variables that are the same in all of its processes. None if the first is not set.

    >>> named_job("Slurm", ("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0"))
    'Slurm: 7.0'
    """
    if not parts or parts[0] is None:
        return None
    return f"{launcher}: {'.'.join(part[1] for part in parts if part is not None)}"


def facts(environ: Environ, *names: str) -> tuple[str, ...]:
    """The variables that are set, as ``NAME=value``."""
    return tuple(f"{name}={environ[name]}" for name in names if environ.get(name, "").strip())
