"""What a stranger writes into the store of a job: it is ignored, and told."""

import logging
import threading
import time

import pytest

from replicant.cluster.exchange import _world
from replicant.cluster.exchange._world import World
from replicant.cluster.resolvers._membership import Membership
from replicant.cluster.wire import _seal

from ._counting_store import CountingStore


@pytest.fixture
def pair(monkeypatch):
    monkeypatch.setattr(_world, "_GRACE_SECONDS", 0.1)
    store = CountingStore()
    return [World(store.of(rank), Membership(rank, 2, "10.0.0.1:1"), ["a pid 1", "b pid 2"], secret="s") for rank in range(2)]


TOLD = (
    "Worker 0 of 2: a failure was reported by no worker of this job, and is ignored: somebody else can write to its coordination "
    "service. The key 'fate/failed/1' holds 'boom  '."
)


@pytest.mark.parametrize("key", ["failed/1", "ended/1", "left/1", "leave/0", "failed/x", "new/1", "failed"])
def test_what_a_stranger_says_about_a_worker_is_ignored(pair, caplog, key):
    pair[0].store.put(f"replicant/0/fate/{key}", "boom")
    assert pair[0]._fates() == {"failed": {}, "ended": {}, "left": {}, "leave": {}}
    assert pair[0].failures() == {}
    assert len(caplog.records) == 1  # it is told once


def test_a_forged_failure_is_told_in_the_log_and_in_the_error(pair, caplog):
    pair[0].store.put("replicant/0/fate/failed/1", "boom\n\x1b")
    assert pair[0].failures() == {}
    assert [record.getMessage() for record in caplog.records] == [TOLD]
    error = str(pair[0].lost("waited"))
    assert "somebody else  has written a failure that was reported by no worker of this job" in error
    assert "boom" not in error


def test_what_a_worker_says_itself_is_believed(pair, caplog):
    pair[1].report_failure("ValueError: \udcff")
    assert pair[0].failures() == {1: "ValueError: \udcff"}
    pair[1].report_end()
    assert pair[0]._fates()["ended"] == {1: ""}
    assert caplog.records == []


def test_a_seal_of_another_place_or_job_does_not_count(pair, caplog):
    pair[1].report_failure("boom")
    sealed = pair[0].store.list("replicant/0/fate/")["replicant/0/fate/failed/1"]
    pair[1].store.delete("replicant/0/fate")
    pair[0].store.put("replicant/0/fate/failed/0", sealed)
    other = World(pair[1].store, pair[1].membership, [], secret="other")
    other.report_failure("boom")
    assert pair[0]._fates()["failed"] == {}


def test_a_watch_that_ends_for_any_reason_ends_its_worker(pair, monkeypatch):
    monkeypatch.setattr(_world, "_BEAT_SECONDS", 0.01)
    left, told = threading.Event(), []
    pair[0].store.list = lambda prefix: {}[prefix]
    pair[0].begin_watch(lambda text: (told.append(text), left.set()))
    assert left.wait(10.0)
    pair[0].end_watch()
    (text,) = told
    assert text.startswith(
        "Worker 0 of 2 ends because its thread that watches the others has failed. This is an error of Replicant's.\nTraceback"
    )
    assert text.endswith("KeyError: 'replicant/0/beat/'")


@pytest.mark.parametrize("text", ["", "\ud800", "é" * 40, "\udcff" * 40, "0" * 31, "0" * 32, "\0" * 40])
def test_what_is_no_seal(text):
    assert _seal.open_("s", "beat/1", text) is None


def test_seals_of_an_earlier_run_with_the_same_key_do_not_count():
    old, new = (_seal.of_key("k" * 32, run) for run in ("1", "2"))
    assert _seal.open_(new, "fate/failed/1", _seal.close(old, "fate/failed/1", "boom")) is None


def test_forged_heartbeats_and_news_neither_end_a_worker_nor_its_watch(pair, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(_world, "_BEAT_SECONDS", 0.05)
    left = threading.Event()
    for each in pair:
        each.begin_watch(lambda text: left.set())
    for key, text in (("news/now", "{"), ("news/now", '[0, 9999, {"1": 99.0}, [1], true]'), ("beat/1", "x"), ("beat/9", "1 2 3")):
        for _ in range(5):
            pair[0].store.put(f"replicant/0/{key}", text, overwrite=True)
            time.sleep(0.03)
    assert all(each._watch.is_alive() for each in pair)
    assert not left.is_set()
    for each in pair:
        each.end_watch()
    assert any("a message was reported by no worker of this job" in record.getMessage() for record in caplog.records)
