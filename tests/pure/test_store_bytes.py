"""The store of JAX's coordination service, to which a stranger writes what is no text. The service and its clients are JAX's."""

import importlib
import logging
import socket
import time

import pytest

from replicant.cluster.exchange import _liveness
from replicant.cluster.exchange._sealed_store import SealedStore
from replicant.cluster.exchange._steady_store import SteadyStore
from replicant.cluster.exchange._world import World
from replicant.cluster.jax._store import JaxStore
from replicant.cluster.resolvers._membership import Membership

NO_UTF8 = b"\xff\xfe\x00" * 20


@pytest.fixture
def client():
    jaxlib = importlib.import_module("jaxlib._jax")
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{own.getsockname()[1]}"
    service = jaxlib.get_distributed_runtime_service(address, 1)
    made = jaxlib.get_distributed_runtime_client(address, 0, shutdown_on_destruction=False)
    made.connect()
    yield made
    made.shutdown()
    service.shutdown()


def test_what_is_no_utf8_and_has_no_seal_is_ignored(client, caplog, monkeypatch):
    monkeypatch.setattr(_liveness, "_BEAT_SECONDS", 0.05)
    caplog.set_level(logging.WARNING)
    store = JaxStore(client)
    world = World.over(store, Membership(0, 2, "10.0.0.1:1"), ["a pid 1", "b pid 2"], secret="s")
    other = World.over(store, Membership(1, 2, "10.0.0.1:1"), ["a pid 1", "b pid 2"], secret="s")
    for key in ("fate/failed/1", "fate/x", "beat/1", "beat/0", "news/now"):
        client.key_value_set_bytes(f"replicant/0/{key}", NO_UTF8, True)
    left: list[str] = []
    world.liveness.begin(left.append)
    deadline = time.monotonic() + 10.0
    while not caplog.records and time.monotonic() < deadline:
        time.sleep(0.01)
    sealed = SealedStore(other.peers, SteadyStore(store, "replicant/0", 60.0), "s")
    sealed.put("beat/1", "1 0")
    assert world.exchange._ahead() == set()
    sealed.put("beat/1", "2 5")
    assert world.exchange._ahead() == {1}
    other.fates.report_failure("ValueError: \udcff\ud800 é")
    assert world.fates.failures() == {1: "ValueError: \udcff\ud800 é"}
    assert (world.liveness._thread.is_alive(), left) == (True, [])
    world.liveness.end()
    told = [record.getMessage() for record in caplog.records]
    assert "The key 'fate/failed/1' holds '\ufffd\ufffd \ufffd\ufffd " in "".join(told)
    store._patience.close()


def test_texts_of_any_kind_come_back_and_other_bytes_are_an_error_of_the_store(client):
    store = JaxStore(client)
    for text in ("", "é\udcff\ud800\x00", "\ufffd"):
        store.put("r/a", text, overwrite=True)
        assert (store.get("r/a", 5.0), store.list("r/")) == (text, {"r/a": text})
    client.key_value_set_bytes("r/a", NO_UTF8, True)
    assert store.get("r/a", 5.0).startswith("\ufffd\ufffd\x00")
    with pytest.raises(ConnectionError, match=r"the coordination service's answer is not text: b'.*\\xff\\xfe"):
        store.increment("r/a")
    store._patience.close()
