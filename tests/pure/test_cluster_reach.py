"""Names that do not resolve, ports where nobody listens, proxies in between. Real sockets on loopback."""

import socket
import threading
import time

import pytest

from replicant.cluster import check_proxies, check_reachable, proxy_variables
from replicant.cluster.wire._supervisor import Heartbeat
from replicant.errors import ClusterError, UnreachableError


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def address_of(server):
    return f"127.0.0.1:{server.getsockname()[1]}"


def test_somebody_listens(listener):
    assert check_reachable(address_of(listener), 5.0) == ("127.0.0.1",)


def test_a_coordinator_that_comes_late_is_waited_for():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # taken, and nobody listens yet
        late = threading.Timer(0.5, server.listen)
        late.start()
        began = time.monotonic()
        check_reachable(address_of(server), 20.0)
        late.join()
        assert time.monotonic() - began >= 0.4


def test_nobody_listens():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        began = time.monotonic()
        with pytest.raises(
            UnreachableError, match=r"Nobody answered at 127\.0\.0\.1:\d+ \(127\.0\.0\.1\) within 0\.5 s: .*refused.*Has process 0"
        ):
            check_reachable(address_of(server), 0.5)
        assert 0.4 < time.monotonic() - began < 5.0
        check_reachable(address_of(server), 0.5, connect=False)


def test_a_socket_that_met_itself_is_nobody(monkeypatch):
    """Linux may give a connection the very port that it asks for, if nobody listens there."""

    def create_connection(*_, **__):
        connection = socket.socket()
        connection.bind(("127.0.0.1", 0))
        connection.connect(connection.getsockname())
        return connection

    monkeypatch.setattr(socket, "create_connection", create_connection)
    with pytest.raises(UnreachableError, match=r"Nobody answered at 127\.0\.0\.1:40000 "):
        check_reachable("127.0.0.1:40000", 0.3)
    with pytest.raises(
        ClusterError, match=r"cannot reach its supervisor at REPLICANT_SUPERVISOR=127.*refused\. Is `replicant launch"
    ):
        Heartbeat("127.0.0.1:40000", "key", 0, 0)


def test_a_name_that_does_not_resolve():
    began = time.monotonic()
    with pytest.raises(
        UnreachableError, match=r"The name 'no-such-host\.invalid' (does not resolve on this machine \(|was not resolved within)"
    ):
        check_reachable("no-such-host.invalid:1", 0.5)
    assert time.monotonic() - began < 5.0


def test_a_name_that_no_resolver_takes():
    with pytest.raises(UnreachableError, match="does not resolve on this machine"):
        check_reachable(f"{'x' * 64}.example:1", 0.1)


def test_a_name_server_that_does_not_answer(monkeypatch):
    answered = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answered.wait(10.0) and [])
    with pytest.raises(
        UnreachableError, match=r"The name 'node1' was not resolved within 0\.2 s: the name server does not answer\."
    ):
        check_reachable("node1:1", 0.2)
    answered.set()


def test_a_name_that_appears_late_is_waited_for(monkeypatch, listener):
    answers = [socket.gaierror(socket.EAI_NONAME, "Name or service not known"), socket.getaddrinfo("127.0.0.1", 1)]

    def getaddrinfo(*_, **__):
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert check_reachable("pod-0.pods:1", 20.0, connect=False) == ("127.0.0.1",)
    assert answers == []


def test_a_name_that_is_loopback_here_is_no_name_for_others(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 1))])
    with pytest.raises(
        UnreachableError, match=r"'node1' resolves to 127\.0\.1\.1 on this machine: other hosts cannot reach a coordinator"
    ):
        check_reachable("node1:1", 5.0, connect=False, from_other_hosts=True)
    assert check_reachable("node1:1", 5.0, connect=False) == ("127.0.1.1",)
    assert check_reachable("localhost:1", 5.0, connect=False, from_other_hosts=True) == ("127.0.1.1",)


def test_an_unreachable_host_is_a_cluster_error_and_an_os_error():
    assert issubclass(UnreachableError, ClusterError)
    assert issubclass(UnreachableError, OSError)
    with pytest.raises(ClusterError, match="address: 'node1' is not an address"):
        check_reachable("node1", 1.0)


PROXY = "http://user:secret@proxy:3128"


@pytest.mark.parametrize(
    ("environ", "address", "names"),
    [
        ({}, "node1:1", ()),
        ({"http_proxy": ""}, "node1:1", ()),
        ({"http_proxy": PROXY}, "node1:1", ("http_proxy",)),
        ({"http_proxy": PROXY, "https_proxy": PROXY, "grpc_proxy": PROXY}, "node1:1", ("grpc_proxy", "https_proxy", "http_proxy")),
        ({"HTTP_PROXY": PROXY, "ftp_proxy": PROXY, "all_proxy": PROXY}, "node1:1", ()),  # gRPC does not read these
        ({"http_proxy": PROXY, "no_proxy": "node2"}, "node1:1", ("http_proxy",)),
        ({"http_proxy": PROXY, "no_proxy": "node2, node1"}, "node1:1", ()),
        ({"http_proxy": PROXY, "no_proxy": ".cluster.local"}, "a.cluster.local:1", ()),
        ({"http_proxy": PROXY, "no_proxy": "10.0.0.0/8"}, "10.1.2.3:1", ()),
        ({"http_proxy": PROXY, "no_proxy": "10.0.0.0/8"}, "11.1.2.3:1", ("http_proxy",)),
        ({"http_proxy": PROXY, "no_proxy": "localhost"}, "127.0.0.1:1", ("http_proxy",)),
        ({"http_proxy": PROXY, "no_proxy": "node1", "no_grpc_proxy": "node2"}, "node1:1", ("http_proxy",)),
        ({"http_proxy": PROXY, "no_proxy": "*"}, "node1:1", ()),
    ],
)
def test_proxies_that_would_disturb(environ, address, names):
    assert proxy_variables(environ, address) == names


def test_a_proxy_in_between_is_named_and_its_password_is_not():
    check_proxies({}, "node1:2222")
    with pytest.raises(
        ClusterError, match=r"^https_proxy and http_proxy would send the connection to the coordinator at node1:2222"
    ) as raised:
        check_proxies({"http_proxy": PROXY, "https_proxy": PROXY}, "node1:2222")
    assert "Add node1 to no_proxy, or start the program with 'env -u https_proxy -u http_proxy ...'" in str(raised.value)
    assert "secret" not in str(raised.value)
