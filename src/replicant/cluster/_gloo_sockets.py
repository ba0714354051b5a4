"""The TCP sockets over which CPU workers exchange: found, so that a worker that leaves its world closes them for certain.

A worker inside of an exchange waits for its peers as long as their sockets are open, and those of a client of XLA's that somebody
still refers to stay open. Linux lists a process's sockets; elsewhere there is nothing to find, and collecting garbage must do.
"""

import contextlib
import os
import socket
from collections.abc import Iterable
from pathlib import Path

_LISTEN = "0A"


def listening_ports() -> set[int]:
    """Ports on which this process listens."""
    return {local for _, local, _, state in _sockets() if state == _LISTEN}


def shut_down(own: Iterable[int], peers: Iterable[int]) -> int:
    """Break off this process's connections that its peers have made to its ports `own`, and that it has made to theirs.

    The descriptors stay with whoever holds them. Returns how many connections there were.
    """
    own, peers, count = set(own), set(peers), 0
    for descriptor, local, remote, state in _sockets():
        if state != _LISTEN and (local in own or remote in peers):
            count += 1
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)  # OSError: closed meanwhile, or not connected any more
    return count


def _sockets() -> list[tuple[int, int, int, str]]:
    """Descriptor, local port, remote port and state of this process's TCP sockets."""
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
