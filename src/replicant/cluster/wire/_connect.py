"""Connects to whoever listens at a place."""

import errno
import os
import socket


def connected(place: tuple[str, int], seconds: float) -> socket.socket:
    """A connection to a host and port.

    Linux may give a connection to a port of this host that very port, if nobody listens there: then it has met itself.

    Raises:
        ConnectionRefusedError: If nobody listens there.
        OSError: If it cannot connect in time for another reason.
    """
    connection = socket.create_connection(place, timeout=seconds)
    if connection.getsockname() == connection.getpeername():
        connection.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    return connection
