"""How workers exchange: what it costs, and that nothing which the store loses is counted twice or hangs."""

import concurrent.futures
import random
import threading
import time

import numpy as np
import pytest

from replicant.cluster import Membership
from replicant.cluster.exchange._liveness import Lookout, News
from replicant.cluster.exchange._world import Timeouts, World
from replicant.data import Dataset, DistributedDataset
from replicant.errors import WorkerLostError, WorkerMismatchError
from replicant.replicas._topology import Topology

from ._counting_store import CountingStore


def worlds_of(store, count, **timeouts):
    timeouts = Timeouts(**{"exchange": 60.0, "heartbeat": 30.0, **timeouts})
    return [World(store.of(rank), Membership(rank, count, "a:1"), ["host"] * count, timeouts=timeouts) for rank in range(count)]


def on_all(worlds, fn):
    with concurrent.futures.ThreadPoolExecutor(len(worlds)) as pool:
        return list(pool.map(fn, worlds))


@pytest.mark.parametrize("count", [1, 4, 64])
def test_an_exchange_is_three_requests_of_each_worker_however_many_there_are(count, monkeypatch):
    # No looks at who has failed, however busy this machine is.
    monkeypatch.setattr("replicant.cluster.exchange._world._SLICE_SECONDS", 30.0)
    store = CountingStore()
    worlds = worlds_of(store, count)
    for number in range(3):
        said = on_all(worlds, lambda world, k=number: world.exchange("x", f"{k} {world.process_id}"))
        assert said == [[f"{number} {rank}" for rank in range(count)]] * count
    assert all(store.num_requests(rank) <= 3 * 3 + 2 * 3 for rank in range(count))  # who comes last gathers for all
    assert sum(store.requests.values()) == 3 * (2 * count + (count - 1) + 2) + 2
    assert len(store.texts) == count + 2  # of the last exchange


def test_a_step_with_data_of_its_own_is_two_requests_of_a_worker_at_most():
    """Where the input is faster than the training, and nobody knows where the data end."""
    num_workers, num_steps = 8, 64
    store = CountingStore()
    worlds = worlds_of(store, num_workers)

    def train(world):
        def dataset_fn(_):
            return Dataset.from_generator(lambda: iter(np.zeros((num_steps - world.process_id, 4), np.float32)))

        topology = Topology(num_workers, world.process_id, 1)
        dataset = DistributedDataset.from_function(dataset_fn, topology, lambda x: x, exchange=world.values("dataset"))
        count = 0
        with iter(dataset) as iterator:
            for _ in iterator:
                count += 1
                deadline = time.monotonic() + 5
                while not iterator._background.is_ready and time.monotonic() < deadline:
                    time.sleep(0.001)
                time.sleep(0.002)  # the step
        return count

    assert on_all(worlds, train) == [num_steps] * num_workers
    assert sum(store.requests.values()) <= 2 * num_workers * num_steps


def test_long_texts_are_told_in_full_and_those_alike_are_read_once():
    store = CountingStore()
    worlds = worlds_of(store, 8)
    assert on_all(worlds, lambda world: world.exchange("x", "long" * 5000)) == [["long" * 5000] * 8] * 8
    assert sum(store.requests.values()) == 8 * 3 + 7 + 2
    texts = [f"{rank}" * 5000 for rank in range(8)]
    assert on_all(worlds, lambda world: world.exchange("x", texts[world.process_id])) == [texts] * 8


def test_exchanges_in_the_background_have_an_order_of_their_own():
    """One that waits holds up no other, and what was exchanged is forgotten."""
    store = CountingStore()
    first, second = worlds_of(store, 2)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.collect, "files", 0, "parts", "a")
        for _ in range(3):
            assert on_all([first, second], lambda world: world.exchange("x", "step")) == [["step"] * 2] * 2
        assert not waiting.done()
        assert second.collect("files", 0, "parts", "b") == waiting.result() == ["a", "b"]
        waiting = pool.submit(first.collect, "files", 1, "manifest", "")
        assert second.collect("files", 1, "manifest", "") == waiting.result() == ["", ""]
    first.forget("files")
    assert not any("files" in key for key in store.texts)


@pytest.mark.long
def test_a_worker_that_goes_on_with_the_next_step_is_noticed_and_one_that_is_late_is_awaited():
    store = CountingStore()
    first, second = worlds_of(store, 2, exchange=20.0)
    threading.Timer(0.7, lambda: second.exchange("read", "b")).start()
    assert first.exchange("read", "a", before_next_step=True) == ["a", "b"]
    first.steps, second.steps = 3, 4
    second.store.put("replicant/0/beat/1", f"1 9 {second.steps}")
    began = time.monotonic()
    with pytest.raises(WorkerMismatchError, match=r"Worker 0 waits in 'read', but worker 1 \(host\) went on with the next step"):
        first.exchange("read", "a", before_next_step=True)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("lost", ["before", "after"])
@pytest.mark.parametrize("kind", ["put", "increment", "list"])
def test_a_request_or_an_answer_that_is_lost_costs_time_only(kind, lost):
    for unlucky in range(4):
        store, failing = CountingStore(), [lost]
        store.fail = lambda rank, what, key, failing=failing, unlucky=unlucky: (
            failing.pop() if failing and what == kind and (rank == unlucky or kind == "list") else None
        )
        worlds = worlds_of(store, 4)
        started = time.monotonic()
        for _ in range(3):
            assert on_all(worlds, lambda world: world.exchange("x", str(world.process_id))) == [["0", "1", "2", "3"]] * 4
        assert not failing
        assert time.monotonic() - started < 5


def test_a_store_that_often_loses_something_changes_nothing():
    store, draw = CountingStore(), random.Random(1)
    store.fail = lambda rank, kind, key: draw.choice(["before", "after"]) if draw.random() < 0.2 else None
    worlds = worlds_of(store, 5)
    for number in range(6):
        said = on_all(worlds, lambda world, k=number: world.exchange("x", f"{k} {world.process_id}"))
        assert said == [[f"{number} {rank}" for rank in range(5)]] * 5


def test_the_last_one_may_die_before_it_has_gathered():
    store = CountingStore()
    worlds = worlds_of(store, 3)
    store.of(2).put("replicant/0/x/0/of/2", '["x", "2"]')
    store.of(2).increment("replicant/0/x/0/count")  # what the last one does may look so to the others: it was counted
    store.texts["replicant/0/x/0/count"] = "-9"  # and nobody is the last one now
    worlds[2].report_end()
    assert on_all(worlds[:2], lambda world: world.exchange("x", str(world.process_id))) == [["0", "1", "2"]] * 2


def test_who_is_missing_is_named_by_all_who_are_there():
    worlds = worlds_of(CountingStore(), 5)

    def said(world):
        with pytest.raises(WorkerLostError) as caught:
            world.exchange("x", "", 0.3)
        return str(caught.value)

    for error in on_all([worlds[0], worlds[2], worlds[3]], said):
        assert "waited 0.3 s in 'x' for worker 1 (host), worker 4 (host), which did not come" in error


@pytest.mark.long
def test_a_worker_asks_twice_per_beat_and_only_one_looks_at_all(monkeypatch):
    monkeypatch.setattr("replicant.cluster.exchange._world._BEAT_SECONDS", 0.2)
    store = CountingStore()
    worlds, left = worlds_of(store, 16), []
    for world in worlds:
        world.begin_watch(left.append)
    time.sleep(2)
    for world in worlds:
        world.end_watch()
    beats = [int(store.texts[f"replicant/0/beat/{rank}"].split()[0]) for rank in range(16)]
    assert min(beats) >= 4
    assert all(store.num_requests(rank) <= 2 * beats[rank] for rank in range(1, 16))
    assert store.num_requests(0) <= 4 * beats[0]
    assert store.requests[0, "list"] <= 2 * beats[0]
    assert left == []


def test_the_next_worker_looks_while_nothing_is_heard_of_the_chief():
    lookouts = [Lookout(rank, 3, 10.0, now=0.0) for rank in range(3)]
    told, lookers = None, []
    for second in range(1, 40):
        chief_is_there = second < 5 or second >= 30
        for rank, lookout in enumerate(lookouts):
            if rank == 0 and not chief_is_there:
                continue
            if rank:
                lookout.hear(told)
            if lookout.looks:
                beats = {each: str(second if each or chief_is_there else 4) for each in range(3)}
                told = lookout.look(beats, (), (), False, float(second)).text()
                lookers.append((second, rank))
    assert {rank for second, rank in lookers if second < 5 or second > 31} == {0}
    assert {rank for second, rank in lookers if 10 < second < 30} == {1}
    silent = News.parse(told)
    assert silent.silent == {}


def test_what_is_repeated_is_no_sign_of_life_and_no_news():
    """Somebody else can write what a worker has sealed once more, but cannot count on."""
    lookout = Lookout(0, 2, 10.0, now=0.0)
    for second in range(1, 12):
        news = lookout.look({0: f"{second} 0 0", 1: ("1 0 0", "2 0 0")[second % 2]}, (), (), False, float(second))
    assert news.silent == {}
    assert lookout.look({1: "1 0 0"}, (), (), False, 12.0).silent == {1: 11.0}
    told, old = News(0, 2, {}).text(), News(0, 1, {2: 99.0}, [2], True).text()
    other = Lookout(2, 3, 10.0, now=0.0)
    other.hear(old)
    assert other.news.leave
    other.hear(told)
    for _ in range(3):
        other.hear(old)
        assert other.news == News(0, 2, {}, [])
    for _ in range(3):
        other.hear(old)
    assert other.looks, "nothing new is heard of the chief"


def test_what_the_looking_worker_finds():
    lookout = Lookout(0, 4, 10.0, now=0.0)
    assert lookout.look({0: "1", 1: "1", 2: "1", 3: "1"}, (), (), False, 1.0).silent == {}
    news = lookout.look({0: "9", 1: "9", 2: "1", 3: "1"}, {3: ""}, {1: "ValueError"}, True, 12.0)
    assert (news.silent, news.failed, news.leave) == ({2: 11.0}, [1], True)
    assert News.parse(news.text()) == news
