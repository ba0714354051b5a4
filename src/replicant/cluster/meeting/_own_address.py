"""Finds the address at which workers on other hosts find this one: that of its own connections, not the one its name resolves to.

On many systems, a host's own name resolves to 127.0.1.1 because of /etc/hosts, or does not resolve at all.
"""

import contextlib
import socket
from collections.abc import Sequence

from ...errors import UnreachableError
from .._addresses import is_loopback, split_address

LOOPBACK = "127.0.0.1"


def source_towards(address: str) -> str:
    """The IP address of this machine from which connections to ``host:port`` come. Nothing is sent.

    Raises:
        UnreachableError: If there is no route to the address.

    >>> source_towards("127.0.0.1:9")
    '127.0.0.1'
    """
    host, port = split_address(address, "address")
    problem: OSError | None = None
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError as error:
        entries, problem = [], error
    for family, kind, protocol, _, number in entries:
        with contextlib.closing(socket.socket(family, kind, protocol)) as probe:
            try:
                probe.connect(number)
                return str(probe.getsockname()[0])
            except OSError as error:
                problem = error
    raise UnreachableError(
        f"This machine ({socket.gethostname()}) has no address from which it can reach {address}: {problem}. The workers talk to "
        "each other through it. Is there a network, and a route?"
    )


def seen_by_others(rank: int, sources: Sequence[str], coordinator: str) -> str:
    """The address where the others find worker `rank`.

    Args:
        rank: The rank of this worker.
        sources: The addresses from which the workers' connections to the coordinator come, one for each worker. On the
            coordinator's own host this may be loopback, which is of no use to the others. Then the address from which connections
            to another worker come is used instead.
        coordinator: The address of the coordinator, for the message.

    Returns:
        The IP address.

    Raises:
        UnreachableError: If this worker has no address except loopback.

    >>> seen_by_others(1, ["10.0.0.1", "10.0.0.2"], "node1:2222"), seen_by_others(0, ["127.0.0.1", "127.0.0.1"], "node1:2222")
    ('10.0.0.2', '127.0.0.1')
    """
    own, peers = sources[rank], [source for source in sources if not is_loopback(source)]
    if not peers or not is_loopback(own):
        return own
    found = source_towards(f"[{peers[0]}]:1" if ":" in peers[0] else f"{peers[0]}:1")
    if is_loopback(found):
        raise UnreachableError(
            f"Worker {rank} ({socket.gethostname()}) talks to the coordinator at {coordinator} from {own}, and to the worker at "
            f"{peers[0]} from {found}: workers on other hosts cannot find it there. Give the coordinator's address as an IP "
            "address that all hosts can reach, or fix /etc/hosts."
        )
    return found
