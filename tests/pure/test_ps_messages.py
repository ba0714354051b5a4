"""What goes between coordinator, workers and servers: messages sent together, and arguments that are quick to pack."""

import pickle
import select
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from replicant.coordinator._datasets import PerWorkerValues
from replicant.coordinator._ledger import PushName
from replicant.coordinator._push import Push
from replicant.coordinator._queue import Task
from replicant.coordinator._remote_value import RemoteValue
from replicant.coordinator._travel import pack_plain
from replicant.coordinator._wire import Channel


def test_messages_sent_together_come_out_one_by_one_and_in_order():
    one, other = Channel.pair("one", "other")
    messages = [("run", i, b"x" * size) for i, size in enumerate([0, 10, 70_000, 3])]
    one.send_all(messages)
    one.send_all([])
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
