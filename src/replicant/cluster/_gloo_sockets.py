"""Finds the TCP sockets through which CPU workers exchange data, so that a worker that leaves its world really closes them.

A worker in an exchange waits for its peers as long as their sockets are open, and an XLA client that something still refers to
keeps its sockets open. Linux lists the sockets of a process. On other systems they cannot be found, and garbage collection must do.
"""

import contextlib
import os
import socket
from collections.abc import Iterable
from pathlib import Path

_LISTEN = "0A"


def listening_ports() -> set[int]:
    """The ports on which this process listens."""
    return {local for _, local, _, state in _sockets() if state == _LISTEN}


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
    for descriptor, local, remote, state in _sockets():
        if state != _LISTEN and (local in own or remote in peers):
            count += 1
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)  # OSError: it was closed meanwhile, or is no longer connected
    return count


def _sockets() -> list[tuple[int, int, int, str]]:
    """The descriptor, local port, remote port and state of each of this process's TCP sockets."""
    rows: dict[str, tuple[int, int, str]] = {}
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):  # not Linux, or no IPv6
            for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                rows[fields[9]] = (_port(fields[1]), _port(fields[2]), fields[3])
    found = []
    with contextlib.suppress(OSError):
        for path in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                target = str(path.readlink())
                if target.startswith("socket:[") and (row := rows.get(target[8:-1])) is not None:
                    found.append((int(path.name), *row))
    return found


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
