"""Finds the TCP sockets through which CPU workers exchange data, so that a worker that leaves its world really closes them.

A worker in an exchange waits for its peers as long as their sockets are open, and an XLA client that something still refers to
keeps its sockets open. Linux lists the sockets of a process. On other systems they cannot be found, and garbage collection must do.
"""

import contextlib
import os
import socket
from collections.abc import Iterable

from ._tcp_sockets import LISTEN, tcp_sockets


def listening_ports() -> set[int]:
    """The ports on which this process listens."""
    return {local for _, local, _, state in tcp_sockets() if state == LISTEN}


def shut_down(own: Iterable[int], peers: Iterable[int]) -> int:
    """Shut down the connections that peers have made to this process, and those that it has made to them.

    The file descriptors stay with their owners.

    Args:
        own: The ports of this process.
        peers: The ports of its peers.

    Returns:
        The number of connections.
    """
    own, peers, count = set(own), set(peers), 0
    for descriptor, local, remote, state in tcp_sockets():
        if state != LISTEN and (local in own or remote in peers):
            count += 1
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)  # OSError: it was closed meanwhile, or is no longer connected
    return count
