"""What a supervisor does per message and per look at everything: counts, with connections that a test plays."""

import contextlib
import json
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from replicant.cluster.wire._handshake import proof
from replicant.cluster.wire._supervisor import WORKER
from replicant.launch._settings import Settings
from replicant.launch.team._connections import Channel
from replicant.launch.team._team import Team


class Watched(Team):
    """A team of workers that are no processes, on a channel of its own."""

    def __init__(self, channel, num_workers):
        self.num_rounds, self.num_taken = 0, 0
        settings = Settings(command=("true",), num_workers=num_workers)
        nothing = SimpleNamespace(take=list, show=lambda console: None, say=print, status=lambda text: None)
        nothing.steps = nothing.write = lambda *args, **kwargs: None
        tools = SimpleNamespace(settings=settings, console=nothing, logs=nothing, run_log=nothing, signals=nothing, channel=channel)
        with contextlib.ExitStack() as stack:
            super().__init__(tools, 0, stack)
            stack.pop_all()

    def _start(self):
        for rank in range(self._settings.num_workers):
            worker = SimpleNamespace(
                rank=rank, pid=1000 + rank, code=None, signals=set(), poll=lambda: False, is_stopped=lambda: False
            )
            self.workers.append(Played(**vars(worker)))

    def _each_round(self, now):
        self.num_rounds += 1
        if self.num_taken >= self.wanted or time.monotonic() > self.until:
            for worker in self.workers:
                worker.code, worker.poll = 0, lambda: True

    def _take(self, rank, message):
        self.num_taken += 1
        super()._take(rank, message)


class Played(SimpleNamespace):
    __hash__ = object.__hash__


def connect(channel, rank):
    """A worker's connection that has proved who it is."""
    own = socket.create_connection(channel.address.split(":"))
    list(channel.poll(1.0))
    nonce = json.loads(own.recv(4096))["nonce"]
    hello = {"kind": "hello", "rank": rank, "generation": 0, "pid": 1000 + rank, "nonce": "1"}
    hello["proof"] = proof(channel.key, WORKER, nonce, "1")
    own.sendall(json.dumps(hello).encode() + b"\n")
    while not list(channel.poll(1.0)):
        pass
    own.recv(4096)
    return own


@pytest.fixture
def channel():
    with Channel(0.1) as made:
        yield made


def test_heartbeats_cost_no_look_at_all_workers_and_are_taken_several_at_once(channel, monkeypatch):
    """A look at everything takes time for each worker, and being woken takes time too: neither happens once per heartbeat."""
    polls, poll = [], channel.poll
    monkeypatch.setattr(channel, "poll", lambda timeout: polls.append(timeout) or poll(timeout))
    team = Watched(channel, 8)
    ends = [connect(channel, rank) for rank in range(8)]
    beat = json.dumps({"kind": "beat", "step": 1, "at": 1.0, "waited": 0.0, "phase": "step"}).encode() + b"\n"

    def speak():  # one after the other
        for _ in range(100):
            for end in ends:
                end.sendall(beat)
                time.sleep(0.001)

    polls.clear()
    speaking = threading.Thread(target=speak)
    speaking.start()
    team.until, team.wanted = time.monotonic() + 60.0, 800
    team.watch()
    speaking.join()
    for end in ends:
        end.close()
    assert team.num_taken == 800
    assert team.num_rounds < 80
    assert len(polls) < 320


def test_an_order_goes_to_the_connection_of_its_worker(channel):
    channel.is_expected = lambda *_: True
    ends = [connect(channel, rank) for rank in range(3)]
    again = connect(channel, 1)
    assert channel.send(1, {"kind": "go"})
    ends[1].close()
    assert [message for _, message in channel.poll(1.0)] == [{"kind": "closed"}]
    assert channel.send(1, {"kind": "form"})
    assert json.loads(again.recv(4096)) == {"kind": "form"}
    assert not channel.send(7, {"kind": "go"})
    for end in [*ends, again]:
        end.close()
