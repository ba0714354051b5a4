"""A link to the coordination service that lets nothing through any more: nobody waits for ever, and it may heal."""

import contextlib
import re
import selectors
import socket
import threading
import time

import pytest
from jaxlib import _jax

from replicant.cluster import Membership
from replicant.cluster.exchange._world import Timeouts, World
from replicant.cluster.jax._store import JaxStore
from replicant.errors import WorkerLostError

pytestmark = pytest.mark.long

HEARTBEAT_SECONDS = 4.0


class Relay:
    """Forwards a port of this machine to another one, until `cut`: then it keeps the connections, and what they send."""

    def __init__(self, port: int):
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open, self._over = threading.Event(), threading.Event()
        self._open.set()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def cut(self) -> None:
        self._open.clear()
        time.sleep(0.2)  # for what is being forwarded

    def heal(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._over.set()
        self._open.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
            stack.enter_context(self._listener)
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._over.is_set():
                self._open.wait()
                for key, _ in selector.select(0.05):
                    if key.fileobj is self._listener:
                        near = stack.enter_context(self._listener.accept()[0])
                        far = stack.enter_context(socket.create_connection(self._target))
                        selector.register(near, selectors.EVENT_READ, far)
                        selector.register(far, selectors.EVENT_READ, near)
                    elif self._open.is_set() and not self._forward(key.fileobj, key.data):
                        selector.unregister(key.fileobj)

    def _forward(self, source: socket.socket, target: socket.socket) -> bool:
        try:
            data = source.recv(65536)
            target.sendall(data)
        except OSError:
            return False
        return bool(data)


@pytest.fixture
def cut_off():
    """Two workers that have met, the second over a relay."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    address = f"127.0.0.1:{port}"
    service = _jax.get_distributed_runtime_service(address, 2, recoverable=True, shutdown_timeout=5)
    relay = Relay(port)
    clients = [
        _jax.get_distributed_runtime_client(each, rank, shutdown_on_destruction=False, heartbeat_timeout=3600)
        for rank, each in enumerate((address, f"127.0.0.1:{relay.port}"))
    ]
    threads = [threading.Thread(target=client.connect) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timeouts = Timeouts(exchange=100.0, heartbeat=HEARTBEAT_SECONDS)
    worlds = [
        World(JaxStore(client), Membership(rank, 2, address), ["here", "there"], timeouts=timeouts)
        for rank, client in enumerate(clients)
    ]
    yield worlds, relay
    relay.heal()
    for world in reversed(worlds):
        world.end_watch()
        world.store.close()
    service.shutdown()
    relay.close()


def exchange(worlds):
    """What each worker says of an exchange."""
    said = [None] * len(worlds)

    def one(world):
        try:
            said[world.process_id] = world.exchange("x", str(world.process_id))
        except WorkerLostError as error:
            said[world.process_id] = str(error)

    threads = [threading.Thread(target=one, args=(world,)) for world in worlds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said


def test_both_sides_end_soon_and_name_the_other(cut_off):
    worlds, relay = cut_off
    ends = [[], []]
    for world, end in zip(worlds, ends, strict=True):
        world.begin_watch(lambda text, end=end: end.append((time.monotonic(), text)))
    time.sleep(1.5)  # they have sent heartbeats
    relay.cut()
    started = time.monotonic()
    while not all(ends) and time.monotonic() < started + 60:
        time.sleep(0.05)
    assert [end[0][0] - started < HEARTBEAT_SECONDS + 5 for end in ends] == [True, True]
    assert re.search(r"^Worker 0 of 2 ends because .*\n  worker 1 \(there\)  has sent no heartbeat for \d+ s$", ends[0][0][1])
    assert re.search(r"^Worker 1 of 2 ends because .*\n  worker 0 \(here\)  ", ends[1][0][1])


def test_an_exchange_over_a_cut_link_is_an_error(cut_off):
    worlds, relay = cut_off
    assert exchange(worlds) == [["0", "1"]] * 2
    relay.cut()
    started = time.monotonic()
    with pytest.raises(
        WorkerLostError,
        match=r"Worker 1 of 2 could not talk to the others, and cannot go on: another worker is gone .*\n"
        r"  worker 0 \(here\)  runs the coordination service, which does not answer: "
        r"the coordination service has not answered for \d+\.\d s",
    ):
        worlds[1].exchange("y", "")
    assert time.monotonic() - started < HEARTBEAT_SECONDS + 5


@pytest.mark.slow
def test_a_link_that_heals_costs_nothing_but_time(cut_off):
    worlds, relay = cut_off
    left = []
    for world in worlds:
        world.begin_watch(left.append)
    relay.cut()
    threading.Timer(HEARTBEAT_SECONDS / 2, relay.heal).start()
    assert exchange(worlds) == [["0", "1"]] * 2
    time.sleep(HEARTBEAT_SECONDS + 5)  # nobody remembers
    assert left == []
    assert exchange(worlds) == [["0", "1"]] * 2


@pytest.mark.slow
def test_one_transient_error_ends_nobody(cut_off):
    worlds, _ = cut_off
    world, left = worlds[1], []
    put, failing = world.store.put, [TimeoutError("late"), ConnectionError("reset")]

    def sometimes(key, text, **kwargs):
        if failing and "/beat/" in key:
            raise failing.pop()
        put(key, text, **kwargs)

    world.store.put = sometimes
    for each in worlds:
        each.begin_watch(left.append)
    time.sleep(8)  # the grace period of 3 s has long been over
    assert (failing, left) == ([], [])
