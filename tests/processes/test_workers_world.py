"""What workers tell each other over JAX's coordination service, here with several clients of it in one process."""

import concurrent.futures
import re
import socket

import pytest
from jaxlib import _jax

from replicant.cluster import Membership
from replicant.cluster.exchange._world import Timeouts, World
from replicant.cluster.jax._bootstrap import timeouts_of
from replicant.cluster.jax._store import JaxStore
from replicant.errors import ClusterError, WorkerLostError, WorkerMismatchError

SECONDS = 100.0


@pytest.fixture
def worlds():
    """Three workers that have met."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{server.getsockname()[1]}"
    service = _jax.get_distributed_runtime_service(address, 3, recoverable=True, shutdown_timeout=5)
    clients = [_jax.get_distributed_runtime_client(address, rank, shutdown_on_destruction=False) for rank in range(3)]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda client: client.connect(), clients))
    made = [
        World(JaxStore(client), Membership(rank, 3, address), ["a", "b", "c"], timeouts=Timeouts(exchange=SECONDS))
        for rank, client in enumerate(clients)
    ]
    yield made
    for world in made:
        world.end_watch()
        world.store.close()
    service.shutdown()


def on_all(worlds, fn):
    """What fn gives on each worker: a result or an error."""

    def one(world):
        try:
            return fn(world)
        except (WorkerLostError, WorkerMismatchError) as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(len(worlds)) as pool:
        return list(pool.map(one, worlds))


def test_exchanges(worlds):
    for number in range(5):
        assert (
            on_all(worlds, lambda world, k=number: world.exchange("x", f"{k} {world.process_id}"))
            == [[f"{number} 0", f"{number} 1", f"{number} 2"]] * 3
        )
    assert on_all(worlds, lambda world: world.tell("seed", str(world.process_id + 7))) == ["7"] * 3
    assert on_all(worlds, lambda world: world.values("n")([world.process_id, "é"])) == [[[0, "é"], [1, "é"], [2, "é"]]] * 3
    assert on_all(worlds, lambda world: world.agree("same", "x", "They differ:")) == [None] * 3
    kept = worlds[0].store.list("replicant/0/x/")
    assert sorted(kept) == [f"replicant/0/x/7/{name}" for name in ("all", "count", "of/0", "of/1", "of/2")]  # of the last one only


def test_workers_that_do_something_else(worlds):
    for error in on_all(worlds, lambda world: world.agree("strategy", f"{world.process_id // 2} devices", "They differ:")):
        assert str(error) == "They differ:\n  worker 0 (a)  0 devices\n  worker 1 (b)  0 devices\n  worker 2 (c)  1 devices"
    for error in on_all(worlds, lambda world: world.exchange("save" if world.is_chief else "restore", "")):
        with pytest.raises(
            WorkerMismatchError,
            match=r"do different things at the same time.*\n  worker 0 \(a\)  save\n  worker 1 \(b\)  restore\n",
        ):
            raise error


def test_a_worker_that_does_not_come_is_named(worlds):
    for error in on_all(worlds[:2], lambda world: world.exchange("variables", "", 0.6)):
        message = r"waited 0\.6 s in 'variables' for worker 2 \(c\), which did not come\. .*inside `if is_chief:`"
        with pytest.raises(WorkerLostError, match=message):
            raise error


def test_a_worker_that_fails_is_named_with_its_error(worlds):
    worlds[2].report_failure("ValueError: no such file")
    for error in on_all(worlds[:2], lambda world: world.exchange("variables", "")):
        with pytest.raises(WorkerLostError, match=r"another worker is gone\.\n  worker 2 \(c\)  failed: ValueError: no such file"):
            raise error


def test_a_worker_that_has_ended_is_named_unless_it_did_its_part(worlds):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        part = pool.submit(worlds[2].exchange, "last", "")
        assert on_all(worlds[:2], lambda world: world.exchange("last", "")) == [["", "", ""]] * 2
        part.result()
    worlds[2].report_end()
    for error in on_all(worlds[:2], lambda world: world.exchange("more", "")):
        with pytest.raises(WorkerLostError, match=r"worker 2 \(c\)  has ended its program"):
            raise error


@pytest.mark.long
def test_a_worker_without_a_heartbeat_is_named(worlds):
    left = []
    for world in worlds[:2]:
        world.timeouts = Timeouts(exchange=SECONDS, heartbeat=0.5)
        world.begin_watch(left.append)
    for error in on_all(worlds[:2], lambda world: world.exchange("variables", "")):
        assert re.search(r"worker 2 \(c\)  has sent no heartbeat for \d+ s", str(error))


def test_a_store_that_is_gone(worlds):
    worlds[1].store.close()
    with pytest.raises(WorkerLostError, match=r"could not talk to the others.*this process has left"):
        worlds[1].exchange("x", "")


def test_timeouts_from_the_environment():
    assert timeouts_of({}) == Timeouts()
    assert timeouts_of({"REPLICANT_EXCHANGE_TIMEOUT": "7", "REPLICANT_HEARTBEAT_TIMEOUT": "9"}) == Timeouts(exchange=7, heartbeat=9)
    with pytest.raises(ClusterError, match=r"REPLICANT_STOP_TIMEOUT='soon' is not a whole number"):
        timeouts_of({"REPLICANT_STOP_TIMEOUT": "soon"})
