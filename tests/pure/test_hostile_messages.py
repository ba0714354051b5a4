"""Some hundred hostile messages to each listener, in this process. `tests/processes/test_strangers.py` sends thousands to jobs."""

import concurrent.futures
import contextlib
import importlib
import logging
import socket
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from replicant.cluster.exchange import _world
from replicant.cluster.exchange._world import World
from replicant.cluster.jax._store import JaxStore
from replicant.cluster.meeting._member import call_roll
from replicant.cluster.resolvers._membership import Membership
from replicant.cluster.wire._supervisor import Heartbeat
from replicant.launch.hosts._lobby import Lobby
from replicant.launch.show._status_server import StatusServer
from replicant.launch.team._connections import Channel

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))  # test folders are no packages

from _strangers import harass, scribble

MESSAGES, SECONDS, KEY = 300, 30.0, "k" * 32


def free_port():
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return own.getsockname()[1]


@contextlib.contextmanager
def polled(channel):
    """What a launcher hears meanwhile."""
    is_over, heard = threading.Event(), []

    def poll():
        while not is_over.is_set():
            heard.extend(channel.poll(0.02))

    with concurrent.futures.ThreadPoolExecutor() as pool:
        polling = pool.submit(poll)
        try:
            yield heard
        finally:
            is_over.set()
            polling.result()


def test_a_launcher(chaos):
    with Channel(0.05) as channel:
        channel.is_expected = lambda rank, generation, pid: True
        with polled(channel) as heard:
            harass(int(channel.address.rpartition(":")[2]), MESSAGES, chaos.seed)
            assert heard == []
            worker = Heartbeat(channel.address, channel.key, 1, 3)
            assert worker.is_connected


def test_a_lobby(chaos):
    notes, came = [], []
    listener = socket.create_server(("127.0.0.1", 0))
    lobby = Lobby(listener, KEY, {"run": "r"}, lambda facts, wire: came.append(facts) or "", notes.append)
    harass(listener.getsockname()[1], MESSAGES, chaos.seed)
    assert lobby._thread.is_alive()
    lobby.close()
    told = "somebody at 127.0.0.1 has connected without the key of this job (REPLICANT_JOB_KEY), and was turned away."
    assert (notes, came) == ([told], [])


@pytest.mark.parametrize("key", [KEY, ""], ids=["with a key", "without one"])
def test_a_roll_call(chaos, key):
    place = f"127.0.0.1:{free_port()}"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        calls = [pool.submit(call_roll, Membership(0, 2, place), "a", {"jax": "1"}, SECONDS, key=key)]
        harass(int(place.rpartition(":")[2]), MESSAGES, chaos.seed)
        calls.append(pool.submit(call_roll, Membership(1, 2, place), "b", {"jax": "1"}, SECONDS, key=key))
        assert [call.result() for call in calls] == [("a", "b")] * 2


def test_a_status_page(chaos):
    with StatusServer(0, {"/": ("text/plain", lambda: "well")}) as server:
        harass(server.port, MESSAGES, chaos.seed)
        with urllib.request.urlopen(server.url, timeout=SECONDS) as answer:
            assert answer.read() == b"well"


def test_a_store(chaos, monkeypatch, caplog):
    pytest.importorskip("grpc", reason="pip install grpcio: the stranger talks to JAX's coordination service by itself")
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(_world, "_BEAT_SECONDS", 0.02)
    port, jaxlib, left = free_port(), importlib.import_module("jaxlib._jax"), []
    service = jaxlib.get_distributed_runtime_service(f"127.0.0.1:{port}", 1)
    client = jaxlib.get_distributed_runtime_client(f"127.0.0.1:{port}", 0, shutdown_on_destruction=False)
    client.connect()
    store = JaxStore(client)
    worlds = [World(store, Membership(rank, 2, f"127.0.0.1:{port}"), ["a", "b"], secret="s") for rank in range(2)]
    for world in worlds:
        world.begin_watch(left.append)
    try:
        scribble(port, MESSAGES, chaos.seed)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            assert list(pool.map(lambda world: world.exchange("label", str(world.process_id)), worlds)) == [["0", "1"]] * 2
        assert left == []
        assert [world.failures() for world in worlds] == [{}, {}]
        assert [world._watch is not None and world._watch.is_alive() for world in worlds] == [True, True]
        assert left == []
    finally:
        for world in worlds:
            world.end_watch()
        store.close()
        service.shutdown()
