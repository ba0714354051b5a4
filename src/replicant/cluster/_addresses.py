"""``host:port`` addresses, and where the coordinator listens."""

import ipaddress
import re

from ..errors import ClusterError

HIGHEST_PORT = 65535


def split_address(address: str, what: str) -> tuple[str, int]:
    """Host and port of an address; IPv6 hosts stand in brackets.

    Args:
        address: ``host:port``.
        what: whose address it is, for the message.

    Raises:
        ClusterError: not of that form, or a port outside 1 to 65535.

    >>> split_address("node1:2222", "worker 0"), split_address("[::1]:80", "worker 1")
    (('node1', 2222), ('::1', 80))
    """
    match = re.fullmatch(r"(?:\[(?P<bracketed>[0-9A-Fa-f:.%\w]+)\]|(?P<plain>[^\s:/\[\]]+)):(?P<port>[0-9]{1,9})", address)
    if match is None:
        raise ClusterError(f"{what}: {address!r} is not an address. Write host:port, as in 'node1:2222' or '[fd00::1]:2222'.")
    port = int(match["port"])
    if not 1 <= port <= HIGHEST_PORT:
        raise ClusterError(f"{what}: {address!r} has port {port}; a port is from 1 to {HIGHEST_PORT}.")
    return match["bracketed"] or match["plain"], port


def join_address(host: str, port: int) -> str:
    """The opposite of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether the host's name or number is this machine's own, by what is written; nothing is looked up.

    >>> is_loopback("localhost"), is_loopback("127.0.1.1"), is_loopback("node1")
    (True, True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def default_bind_address(coordinator_address: str) -> str:
    """Where the coordinator listens unless told otherwise: at its own address, never at all of the machine's.

    >>> default_bind_address("localhost:2222"), default_bind_address("node1:2222")
    ('127.0.0.1:2222', 'node1:2222')
    """
    host, port = split_address(coordinator_address, "coordinator address")
    return join_address("127.0.0.1", port) if host.lower() == "localhost" else coordinator_address
