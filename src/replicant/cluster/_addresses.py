"""``host:port`` addresses, and where the coordinator listens."""

import ipaddress
import re

from ..errors import ClusterError

HIGHEST_PORT = 65535


def split_address(address: str, what: str) -> tuple[str, int]:
    """Split an address into its host and port.

    Args:
        address: The address, as ``host:port``. An IPv6 host must be in brackets.
        what: Whose address it is, for the error message.

    Returns:
        The host, without brackets, and the port.

    Raises:
        ClusterError: If the address has another form, or if the port is not from 1 to 65535.

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
    """Join a host and a port: the inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a host's name or number is written as a loopback address. Nothing is looked up.

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
    """The address where the coordinator listens by default: its own one, never all addresses of the machine.

    >>> default_bind_address("localhost:2222"), default_bind_address("node1:2222")
    ('127.0.0.1:2222', 'node1:2222')
    """
    host, port = split_address(coordinator_address, "coordinator address")
    return join_address("127.0.0.1", port) if host.lower() == "localhost" else coordinator_address
