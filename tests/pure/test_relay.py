"""A worker's relay to the coordination service: passes everything on, and stays open when the service has gone."""

import contextlib
import os
import random
import re
import socket
import sys
import threading
import time

import pytest

from replicant.cluster.jax._deadline_calls import Patience
from replicant.cluster.jax._relay import Relay

SECONDS = 10.0


@pytest.fixture
def service():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SECONDS)
        yield listener


@pytest.fixture
def relay(service):
    made = Relay(f"127.0.0.1:{service.getsockname()[1]}")
    yield made
    made.close()


def connect(relay):
    kind, _, name = relay.address.partition(":")
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(SECONDS)
    client.connect(f"\0{name}" if kind == "unix-abstract" else name)
    return client


@contextlib.contextmanager
def met(relay, service):
    """Both ends of a line over which the service has said something."""
    with connect(relay) as client, service.accept()[0] as theirs:
        theirs.settimeout(SECONDS)
        theirs.sendall(b"hello")
        assert client.recv(5) == b"hello"
        yield client, theirs


def wait_until(is_true):
    deadline = time.monotonic() + SECONDS
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_true()


def receive(end, count):
    data = bytearray()
    while len(data) < count and (more := end.recv(1 << 16)):
        data += more
    return bytes(data)


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "replicant-relay"]


def test_every_byte_arrives_both_ways_also_when_nobody_reads_for_a_while(relay, service):
    rng = random.Random(1)
    up, down = rng.randbytes(7_000_001), rng.randbytes(5_000_003)
    with met(relay, service) as (client, theirs):
        senders = [threading.Thread(target=end.sendall, args=(data,)) for end, data in ((client, up), (theirs, down))]
        for sender in senders:
            sender.start()
        time.sleep(0.3)  # more waits than the relay keeps
        assert max(map(len, relay._waiting.values())) < 3 << 20
        assert receive(theirs, len(up)) == up
        assert receive(client, len(down)) == down
        for sender in senders:
            sender.join()
        assert relay.gone == ""


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_the_client_stays_connected_when_the_service_has_gone(relay, service, reset):
    with met(relay, service) as (client, theirs):
        relay.hold()
        if reset:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        theirs.close()
        assert wait_until(lambda: relay.gone)
        said = "Connection reset by peer" if reset else "the other end has closed it"
        assert relay.gone == f"the connection to {relay._service} was closed: {said}"
        client.sendall(b"nobody reads this")
        client.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(SECONDS)
        relay.close()
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
    assert threads() == []


def test_a_client_that_has_not_taken_its_leave_stays_connected_for_ever(relay, service):
    with met(relay, service) as (client, _):
        relay.close(keep_silent=True)
        client.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.recv(1)
    assert threads() == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_mistake_in_the_relay_leaves_the_client_connected(relay, service, monkeypatch):
    with met(relay, service) as (client, theirs):
        monkeypatch.setattr(relay, "_send", None)
        theirs.sendall(b"x")
        assert wait_until(lambda: relay.gone)
        assert re.match(r"the relay to \S+ has failed: TypeError\(", relay.gone)
        client.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.recv(1)


@pytest.mark.long
def test_before_it_is_held_a_line_ends_with_the_service_and_may_be_tried_anew(relay, service):
    with connect(relay) as client:
        service.accept()[0].close()  # without a word, as one that is not ready
        assert client.recv(1) == b""
    with met(relay, service) as (client, theirs):
        theirs.close()
        assert client.recv(1) == b""
        assert relay.gone == ""
    with met(relay, service):
        assert relay.gone == ""


def test_a_service_that_starts_late_is_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    relay = Relay(f"127.0.0.1:{port}")
    with connect(relay):
        time.sleep(0.3)
        with socket.create_server(("127.0.0.1", port)) as listener:
            listener.settimeout(SECONDS)
            listener.accept()[0].close()
    relay.close()
    assert threads() == []


def test_a_relay_ends_while_it_waits_for_a_service():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    relay = Relay(f"127.0.0.1:{port}")
    with connect(relay):
        time.sleep(0.2)
        relay.close()
    relay.close()
    assert threads() == []


def test_the_client_that_leaves_takes_the_line_along(relay, service):
    relay.hold()
    with met(relay, service) as (client, theirs):
        client.close()
        assert theirs.recv(1) == b""
    assert relay.gone == ""


@pytest.mark.filterwarnings("ignore:.*fork.*")  # JAX warns of its own threads
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only this user may enter the folder")
def test_another_process_is_turned_away(relay, service):
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException), connect(relay) as client:
            os._exit(0 if client.recv(1) == b"" else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    with met(relay, service):
        pass


@pytest.mark.filterwarnings("ignore:.*fork.*")  # JAX warns of its own threads
def test_a_forked_child_holds_no_line(relay, service):
    """Else the service would not hear that its worker has gone."""
    with met(relay, service) as (client, theirs):
        child = os.fork()
        if not child:
            client.close()
            time.sleep(SECONDS)
            os._exit(0)
        try:
            relay.close()
            theirs.settimeout(SECONDS / 2)
            assert theirs.recv(1) == b""
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)


def test_a_call_ends_when_the_service_has_gone():
    gone, over = [""], threading.Event()
    patience = Patience(SECONDS, "the service", lambda: gone[0])
    threading.Timer(0.3, gone.__setitem__, (0, "it was killed")).start()
    started = time.monotonic()
    for _ in range(2):  # and the next one at once
        with pytest.raises(ConnectionResetError, match=r"^it was killed$"):
            patience.call(over.wait)
    over.set()
    assert time.monotonic() - started < 1.0


def test_a_caller_that_waits_for_its_turn_learns_why_there_is_no_answer():
    gone, over, found = [""], threading.Event(), []
    patience = Patience(SECONDS, "the service", lambda: gone[0])

    def wait_in_turn():
        try:
            patience.call(over.wait)
        except OSError as error:
            found.append((type(error), str(error)))

    waiting = [threading.Thread(target=wait_in_turn) for _ in range(3)]
    for thread in waiting:
        thread.start()
    time.sleep(0.3)  # one is called, and two wait for their turn
    gone[0] = "it was killed"
    for thread in waiting:
        thread.join(SECONDS)
    over.set()
    assert found == [(ConnectionResetError, "it was killed")] * 3
