"""Checks before the workers meet: that names resolve, that the coordinator answers, and that no proxy is in between."""

import ipaddress
import queue
import socket
import threading
import time

from ...errors import ClusterError, UnreachableError
from .._addresses import is_loopback, split_address
from ..resolvers._environ import Environ, first

_PAUSE_SECONDS = 0.2  # between two tries
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")


def check_reachable(
    address: str, timeout_seconds: float, *, connect: bool = True, from_other_hosts: bool = False
) -> tuple[str, ...]:
    """Wait until the name in an address resolves and somebody listens there.

    So a coordinator may start late, and a cluster may take a while to publish a name.

    Args:
        address: The address, as ``host:port``.
        timeout_seconds: The time for all of this.
        connect: Whether to connect, too. The coordinator's own process, which listens only later, just resolves its name.
        from_other_hosts: Whether other hosts must be able to reach this machine by the name, so that it must not resolve to
            loopback.

    Returns:
        The IP addresses of the host.

    Raises:
        UnreachableError: If the name does not resolve or nobody answers in time.

    >>> check_reachable("127.0.0.1:9", 5.0, connect=False)
    ('127.0.0.1',)
    """
    host, port = split_address(address, "address")
    deadline = time.monotonic() + timeout_seconds
    numbers = _resolve(host, port, deadline, timeout_seconds)
    if from_other_hosts and not is_loopback(host) and all(is_loopback(number) for number in numbers):
        raise UnreachableError(
            f"{host!r} resolves to {', '.join(numbers)} on this machine: other hosts cannot reach a coordinator that listens "
            "there. Set JAX_COORDINATOR_BIND_ADDRESS=IP:PORT with the machine's own IP address, or fix /etc/hosts."
        )
    if connect:
        _connect(address, numbers, port, deadline, timeout_seconds)
    return numbers


def _resolve(host: str, port: int, deadline: float, timeout_seconds: float) -> tuple[str, ...]:
    """Look a name up until it is known. A thread does this, because the system's own resolver has no deadline."""
    while True:
        answers: queue.SimpleQueue[tuple[str, ...] | OSError] = queue.SimpleQueue()
        threading.Thread(target=_ask, args=(host, port, answers), name="replicant-resolve", daemon=True).start()
        try:
            answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise UnreachableError(
                f"The name {host!r} was not resolved within {timeout_seconds:g} s: the name server does not answer."
            ) from None
        if isinstance(answer, tuple):
            return answer
        if time.monotonic() + _PAUSE_SECONDS > deadline:
            raise UnreachableError(
                f"The name {host!r} does not resolve on this machine ({answer.strerror}), tried for {timeout_seconds:g} s. "
                "Is it misspelt, or not in this network?"
            ) from answer
        time.sleep(_PAUSE_SECONDS)


def _ask(host: str, port: int, answers: "queue.SimpleQueue[tuple[str, ...] | OSError]") -> None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label of the name is empty or too long
        answers.put(OSError(0, str(error)))
    except OSError as error:
        answers.put(error)
    else:
        answers.put(tuple(dict.fromkeys(str(entry[4][0]) for entry in found)))


def _connect(address: str, numbers: tuple[str, ...], port: int, deadline: float, timeout_seconds: float) -> None:
    refused: OSError | None = None
    while (left := deadline - time.monotonic()) > 0:
        for number in numbers:
            try:
                with socket.create_connection((number, port), timeout=left / len(numbers)) as connection:
                    if connection.getsockname() != connection.getpeername():  # on loopback a socket can meet itself
                        return
            except OSError as error:
                refused = error
        time.sleep(min(_PAUSE_SECONDS, max(0.0, deadline - time.monotonic())))
    raise UnreachableError(
        f"Nobody answered at {address} ({', '.join(numbers)}) within {timeout_seconds:g} s: {refused}. Has process 0 started, and "
        "is the port open between the hosts?"
    ) from refused


def proxy_variables(environ: Environ, address: str) -> tuple[str, ...]:
    """The variables that would send a connection to an address through a proxy.

    gRPC reads these variables in lower case: the first of ``grpc_proxy``, ``https_proxy`` and ``http_proxy``, except for hosts that
    ``no_grpc_proxy`` or else ``no_proxy`` names by suffix, IP address or network.

    >>> proxy_variables({"http_proxy": "http://proxy:3128", "no_proxy": ".local"}, "node1.local:2222")
    ()
    >>> proxy_variables({"http_proxy": "http://proxy:3128"}, "node1.local:2222")
    ('http_proxy',)
    """
    host, _ = split_address(address, "address")
    named = first(environ, *_EXCEPTIONS)
    if named is not None and any(_is_excepted(host, entry.strip()) for entry in named[1].split(",") if entry.strip()):
        return ()
    return tuple(name for name in _PROXIES if environ.get(name, "").strip())


def check_proxies(environ: Environ, address: str) -> None:
    """Check that no proxy is between this process and the coordinator.

    Raises:
        ClusterError: If there is a proxy. The message names the variables, but not their values.
    """
    names = proxy_variables(environ, address)
    if names:
        host, _ = split_address(address, "address")
        raise ClusterError(
            f"{' and '.join(names)} would send the connection to the coordinator at {address} through a proxy, where it hangs. "
            f"Add {host} to no_proxy, or start the program with 'env {' '.join('-u ' + name for name in names)} ...'."
        )


def _is_excepted(host: str, entry: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return host.lower().endswith(entry.lower().removeprefix("*"))
