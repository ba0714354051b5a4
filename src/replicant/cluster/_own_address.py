"""The address at which the workers of other hosts find this one: that of its own connections, and not what its name stands for.

Many systems let a host's own name stand for 127.0.1.1 in /etc/hosts, or for nothing.
"""

import contextlib
import socket
from collections.abc import Sequence

from ..errors import UnreachableError
from ._addresses import is_loopback, split_address

LOOPBACK = "127.0.0.1"


def source_towards(address: str) -> str:
    """The number of this machine that connections to ``host:port`` come from. Nothing is sent.

    Raises UnreachableError where no way leads there.

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
        f"This machine ({socket.gethostname()}) has no address of its own towards {address}: {problem}. The workers speak to each "
        "other over it. Is there a network, and a route?"
    )


def seen_by_others(rank: int, sources: Sequence[str], coordinator: str) -> str:
    """Where the others find worker `rank`.

    Args:
        rank: this worker.
        sources: of all workers, where their connections to the coordinator come from. On the coordinator's own host that may be
            loopback, which leads nobody there; then it is where connections to another worker come from.
        coordinator: its address, for the message.

    Raises UnreachableError if this worker has no address but loopback.

    >>> seen_by_others(1, ["10.0.0.1", "10.0.0.2"], "node1:2222"), seen_by_others(0, ["127.0.0.1", "127.0.0.1"], "node1:2222")
    ('10.0.0.2', '127.0.0.1')
    """
    own, peers = sources[rank], [source for source in sources if not is_loopback(source)]
    if not peers or not is_loopback(own):
        return own
    found = source_towards(f"[{peers[0]}]:1" if ":" in peers[0] else f"{peers[0]}:1")
    if is_loopback(found):
        raise UnreachableError(
            f"Worker {rank} ({socket.gethostname()}) speaks to the coordinator at {coordinator} from {own}, and to the worker at "
            f"{peers[0]} from {found}: workers of other hosts cannot find it there. Give the coordinator's address as a number "
            "that all hosts reach, or mend /etc/hosts."
        )
    return found
