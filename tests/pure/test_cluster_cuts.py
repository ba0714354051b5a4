"""What workers on several hosts do about links that are cut: connections that outlast it, and errors that name the host."""

import socket
import threading
import time

import pytest

from replicant.cluster import Membership
from replicant.cluster.exchange import _world
from replicant.cluster.exchange._world import World, describe_error
from replicant.cluster.jax._service_sockets import outlast_cuts
from replicant.cluster.meeting._member import call_roll
from replicant.errors import UnreachableError, WorkerLostError

from ._counting_store import CountingStore

GRPC_MILLISECONDS = 20_000


def test_only_connections_to_the_port_outlast_a_cut():
    def limited(server):
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GRPC_MILLISECONDS)
        return client, accepted

    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        sockets = [*limited(one), *limited(other)]
        assert outlast_cuts(one.getsockname()[1]) == 2  # the one that listens, too
        limits = [sockets[n].getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) for n in (1, 3)]
        for each in sockets:
            each.close()
    assert limits == [0, GRPC_MILLISECONDS]


def test_a_host_without_a_route_may_come_later():
    began = time.monotonic()
    with pytest.raises(UnreachableError, match=r"Worker 1 found nobody at .* 224\.0\.0\.1:2222 within 0\.5 s \(.*unreachable"):
        call_roll(Membership(1, 2, "224.0.0.1:2222"), "b pid 1", {}, 0.5)  # TCP has no route to a multicast address
    assert time.monotonic() - began > 0.5


@pytest.mark.long
def test_an_error_names_the_workers_at_the_address_of_a_peer():
    world = World(CountingStore().of(0), Membership(0, 4, "10.0.0.1:1"), ["a pid 1", "a pid 2", "b pid 1", "b pid 2"])
    text = "UNKNOWN: Gloo all-reduce failed: Connection closed by peer [10.0.0.2]:3214"
    assert f"is gone ({text}). No worker" in str(world.lost("could not compute", ValueError(text)))
    world.addresses = ("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2")
    named = f"is gone ({text} (worker 2 (b pid 1) or worker 3 (b pid 2))). No worker"
    assert named in str(world.lost("could not compute", ValueError(text)))
    world.store.put("replicant/0/fate/failed/1", text)
    assert f"worker 1 (a pid 2)  failed: {text} (worker 2 (b pid 1) or" in str(world.lost("could not compute"))


def test_an_order_that_is_not_obeyed_breaks_the_exchange_off(monkeypatch):
    monkeypatch.setattr(_world, "_OBEY_SECONDS", 0.2)
    monkeypatch.setattr(_world, "_BEAT_SECONDS", 0.05)
    world, broken = World(CountingStore().of(0), Membership(0, 2, "10.0.0.1:1"), [], supervised=True), threading.Event()
    world.break_off = broken.set
    world.begin_watch(lambda text: None)
    assert not broken.wait(0.5)
    monkeypatch.setattr(_world._supervisor, "is_ordered", lambda: True)
    assert broken.wait(10)
    world.end_watch()


def test_a_worker_that_loses_another_tells_the_rest_which():
    error = WorkerLostError("Worker 0 of 3 waited, and cannot go on: another worker is gone.\n  worker 2 (node-c pid 9)  is silent")
    assert describe_error(error).endswith("is gone. worker 2 (node-c pid 9)  is silent")
    assert describe_error(ValueError("one\ntwo")) == "ValueError: one"
