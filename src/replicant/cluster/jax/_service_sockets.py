"""Lets connections to JAX's coordination service outlast a link that is cut for a while.

gRPC tells the kernel to reset a server's connection once the other end has acknowledged nothing for 20 s. A worker whose link was
cut for longer could then never talk to the others again, although its link has healed. Whether a worker counts as lost is decided
by its heartbeats (``exchange/_world.py``), and the kernel's own limit of some 15 minutes remains.
"""

import contextlib
import os
import socket

from ._tcp_sockets import tcp_sockets


def outlast_cuts(port: int) -> int:
    """Take gRPC's limit from the connections that this process has accepted at a port. gRPC sets it when it accepts them.

    Nothing happens on other systems than Linux, where gRPC sets no such limit either.

    Returns:
        The number of sockets there, with the one that listens.

    >>> outlast_cuts(1)
    0
    """
    count = 0
    for descriptor, local, _, _ in tcp_sockets():
        if local == port:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as duplicate:  # closed meanwhile
                duplicate.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
                count += 1
    return count
