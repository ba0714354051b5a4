"""Process 0 tells the others its address where no variable does: in a file of a folder that all share, or through the launcher.

The file is written by process 0 alone, whole and under a name that only this job has, and removed once all have come. What the
others read counts only if the same user wrote it, and nobody else can, or if it proves the key of the job. A run may leave a
file behind: an address counts once somebody listens there. Who listens there has to pass the roll call.
"""

import contextlib
import dataclasses
import json
import socket
from collections.abc import Callable, Iterator

from ..._untrusted_json import read_json
from ...errors import ClusterError, UnreachableError
from .._addresses import is_loopback, join_address, split_address
from ..resolvers._environ import Environ, number, told_bind_address
from ..resolvers._membership import Membership
from ..resolvers.tasks import _ray_train, _spark
from ._job import job_key, job_of
from ._own_address import LOOPBACK, source_towards
from ._rendezvous_file import MOST_BYTES, RendezvousFile

_FAR = "192.0.2.1:9"  # an address of no host: only the way there is looked up
_CHANNELS = {_ray_train.SOURCE: _ray_train.broadcast, _spark.SOURCE: _spark.broadcast}


@contextlib.contextmanager
def located(membership: Membership, environ: Environ, timeout_seconds: float) -> Iterator[Membership]:
    """The membership with the address of process 0. The workers meet inside.

    Args:
        membership: Which one of the workers this process is. If its coordinator's address is known, it is returned as it is.
        environ: The environment of this process.
        timeout_seconds: The time within which process 0 must have told its address.

    Raises:
        ClusterError: If the folder or the file cannot be used, or if process 0 finds no address of its own.
        UnreachableError: If process 0 does not tell its address in time.
    """
    if membership.rendezvous is None:
        yield membership
        return
    channel = _CHANNELS.get(membership.rendezvous)
    if channel is not None:
        yield _at(membership, _told(channel, membership, environ))
        return
    job = job_of(membership, environ)
    file = RendezvousFile(membership.rendezvous, job.told or job.found, membership.num_processes, job_key(environ))
    if membership.process_id:
        yield _at(membership, file.wait(f"Process {membership.process_id} of {membership.num_processes}", timeout_seconds))
        return
    address = own_address(membership, environ)
    file.write(address)
    try:
        yield _at(membership, address)
    finally:
        file.remove()


def own_address(membership: Membership, environ: Environ) -> str:
    """The address where the others find this process, as process 0, with a port that is free now.

    Raises:
        ClusterError: If the host has no address but loopback, and nothing says that all processes are on it.
    """
    host, port = split_address(told_bind_address(environ) or "0.0.0.0:1", "JAX_COORDINATOR_BIND_ADDRESS")
    if host not in ("0.0.0.0", "::"):  # noqa: S104 - all addresses only if the user asks for it
        return join_address(host, port)
    wanted = port if told_bind_address(environ) else number(environ, "JAX_COORDINATOR_PORT") or 0
    host = LOOPBACK if membership.num_local_processes == membership.num_processes else _host()
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, wanted))
        except OSError as error:
            advice = "Set JAX_COORDINATOR_BIND_ADDRESS=HOST:PORT to a free port."
            raise ClusterError(f"Process 0 cannot listen at {join_address(host, wanted)}: {error}. {advice}") from error
        return join_address(host, probe.getsockname()[1])


def _host() -> str:
    """An address of this host that is not loopback: the one of its name, or the one from which it reaches others."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        found += [str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)]
    with contextlib.suppress(UnreachableError):
        found.append(source_towards(_FAR))
    host = next((each for each in found if not is_loopback(each)), None)
    if host is None:
        raise ClusterError(
            f"The host of process 0 ({socket.gethostname()}) has no address but loopback, where processes on other hosts cannot "
            "find it. Set JAX_COORDINATOR_BIND_ADDRESS=HOST:PORT to an address that all processes can reach."
        )
    return host


def _at(membership: Membership, address: str) -> Membership:
    """The membership with the address of process 0, which listens there unless it was told where."""
    bind = membership.bind_address or address
    return dataclasses.replace(membership, coordinator_address=address, bind_address=bind, rendezvous=None)


def _told(channel: Callable[[str], str], membership: Membership, environ: Environ) -> str:
    """The address of process 0, which its launcher tells the others. If process 0 finds none, all raise its error."""
    mine = {}
    if membership.process_id == 0:
        try:
            mine = {"address": own_address(membership, environ)}
        except ClusterError as error:
            mine = {"error": str(error)}
    said = read_json(channel(json.dumps(mine)), MOST_BYTES)
    if "error" in said:
        raise ClusterError(f"Process 0: {said['error']}" if membership.process_id else said["error"])
    split_address(said["address"], f"the address that process 0 told through {membership.rendezvous}")
    return said["address"]
