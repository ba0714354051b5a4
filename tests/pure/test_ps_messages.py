"""What goes between coordinator, workers and servers: messages sent together, and arguments that are quick to pack."""

import os
import pickle
import select
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from replicant.coordinator._remote_value import RemoteValue
from replicant.coordinator.servers import _client
from replicant.coordinator.servers._client import Client, Link
from replicant.coordinator.servers._ledger import PushName
from replicant.coordinator.servers._push import Outbox, Push
from replicant.coordinator.servers._store import ServerMemory
from replicant.coordinator.wire import _errors
from replicant.coordinator.wire._channel import Channel, Closed
from replicant.coordinator.wire._memory import Memory
from replicant.coordinator.wire._task import Task
from replicant.coordinator.workers._datasets import PerWorkerValues
from replicant.coordinator.workers._pickling import pack_plain
from replicant.errors import LostProcessError


def test_messages_sent_together_come_out_one_by_one_and_in_order():
    one, other = Channel.pair("one", "other")
    messages = [("run", i, b"x" * size) for i, size in enumerate([0, 10, 70_000, 3])]
    one.post_all(messages)
    one.post_all([])
    one.send("last")
    assert [other.receive(60.0, "testing")[0] for _ in range(5)] == [*messages, "last"]
    one.close()
    other.close()


def test_what_comes_while_sending_waits_to_be_asked_for():
    one, other = Channel.pair("one", "other")
    large = b"x" * (8 << 20)
    other.send("news")
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(other.receive, 60.0, "testing")
        one.send(large)  # more than the sockets hold: meanwhile it takes in what comes
        assert received.result(60)[0] == large
    one.poll()
    assert one.has_news
    assert not select.select([one], [], [], 0)[0]  # nothing more arrives
    assert one.next() == ("news", [])
    assert not one.has_news
    one.close()
    other.close()


def test_posting_never_waits_and_what_was_posted_leaves_in_order_with_its_descriptors():
    one, other = Channel.pair("one", "other")
    inner, outer = os.pipe()
    messages = [("big", b"x" * (3 << 20)), ("with a pipe", None), ("last", 1)]
    one.post(messages[0])
    one.post(messages[1], [outer])
    one.post(messages[2])
    os.close(outer)  # it has kept its own
    assert one.outgoing_bytes > 1 << 20
    received = []
    while len(received) < 3:
        one.flush()
        other.poll()
        while message := other.next():
            received.append(message)
    assert [message for message, _ in received] == messages
    assert (one.outgoing_bytes, one.num_sent, other.num_received) == (0, 3, 3)
    (sent,) = received[1][1]
    os.write(sent, b"here")
    assert os.read(inner, 9) == b"here"
    for fd in (sent, inner):
        os.close(fd)
    one.close()
    other.close()


def test_sending_to_somebody_who_takes_nothing_in_has_an_end():
    one, other = Channel.pair("server 1", "other")
    one.peer = "server 1"
    with pytest.raises(LostProcessError, match=r"server 1 received nothing for 0 s\. Check whether it has been stopped\."):
        one.send(b"x" * (8 << 20), seconds=0.01)
    other.close()
    with pytest.raises(Closed):
        one.post("more")
    assert one.outgoing_bytes == 0
    one.close()


def test_an_answer_that_came_too_late_is_not_taken_for_the_next(monkeypatch):
    near, far = Channel.pair("the client", "server 0")
    memory = ServerMemory.create()
    client = Client(1, [memory], lambda *_: None)
    client.links = [Link(near, Outbox(Memory.create()))]
    monkeypatch.setattr(_client, "_ANSWER_SECONDS", 0.05)
    for _ in range(2):  # the second time it does not even ask
        with pytest.raises(LostProcessError, match="did not answer within 0 s while taking a message"):
            client.tell("first")
    monkeypatch.setattr(_client, "_ANSWER_SECONDS", 60.0)
    far.send(_errors.pack_error(ValueError("of the first"), "server 0"))
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(client.tell, "second")
        assert [far.receive(60, "testing")[0] for _ in range(2)] == ["first", "second"]
        far.send(True)
        second.result(60)
    assert (near.num_sent, near.num_received) == (2, 2)
    far.close()
    client.close()


VALUES = PerWorkerValues(lambda: 1)


@pytest.mark.parametrize(
    ("value", "is_plain"),
    [
        (((1, 2.0, "a", None, b"b", True), {"x": [np.ones(3)], "y": np.float32(2)}), True),
        (((VALUES, np.ones(2, "int64")), {}), True),
        (np.array(["text"]), False),
        (np.array([object()]), False),
        (RemoteValue(3), False),
        ([lambda: 1], False),
        ({"x": (1, {2})}, False),
    ],
)
def test_plain_arguments_are_known_when_seen(value, is_plain):
    packed = pack_plain(value)
    assert (packed is not None) == is_plain


def test_plain_arguments_name_the_per_worker_values_in_them():
    packed = pack_plain(((VALUES, 1), {"again": [VALUES]}))
    assert packed is not None
    assert packed.parcels == (VALUES,)


@pytest.mark.parametrize(
    "message", [Push(PushName(1, 2, 3), 4, 5, 6, 7, [([], "add", -1, 0, 0.0)]), Task(1, 2, 3), Task(1, 2, 3, holds=True)]
)
def test_messages_are_what_they_were(message):
    assert pickle.loads(pickle.dumps(message, protocol=5)) == message
