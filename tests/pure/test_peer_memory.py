"""Two workers of one host that read each other's arrays from memory: exact bytes, in any order, and an error when one is gone.

The two ends are two of one process, which may read its own memory; where one of them dies, it is a process of its own.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from replicant.cluster import _peer_memory
from replicant.cluster._peer_memory import PeerMemory
from replicant.errors import ClusterError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux copies from process to process")

SECONDS = 20.0
GONE = "has closed its connection: it has ended, or has left the group"


class Result:
    """What `finish` was called with, once it was."""

    def __init__(self):
        self._event, self._error = threading.Event(), None

    def __call__(self, error):
        assert not self._event.is_set(), "called once"
        self._error = error
        self._event.set()

    @property
    def is_there(self):
        return self._event.is_set()

    def get(self):
        assert self._event.wait(SECONDS), "the exchange is never over"
        return self._error


class End:
    """One of the two, with the arrays that it exchanges."""

    def __init__(self, connection, name, process=None):
        self.connection = connection
        self.memory = PeerMemory(connection, process or os.getpid(), name)
        self._arrays = []  # the other one may still read them

    def swap(self, array, channel=0, num_bytes=None):
        target, result = np.zeros_like(array), Result()
        self._arrays += [array, target]
        self.memory.swap(channel, array.ctypes.data, target.ctypes.data, array.nbytes if num_bytes is None else num_bytes, result)
        return target, result


@pytest.fixture
def pair():
    made = []

    def make():
        sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made.extend(End(each, name) for each, name in zip(sockets, ("worker 1", "worker 0"), strict=True))
        return made[-2:]

    yield make
    for end in made:
        end.memory.close("the test is over")


def numbers(seed, size=1000):
    return np.random.default_rng(seed).integers(0, 255, size).astype(np.uint8)


@pytest.mark.parametrize("size", [0, 1, 1000, 5_000_001])
@pytest.mark.parametrize("first", [0, 1])
def test_each_has_the_others_bytes(pair, first, size):
    ends, arrays = pair(), [numbers(rank, size) for rank in range(2)]
    found = {rank: ends[rank].swap(arrays[rank]) for rank in (first, 1 - first)}
    for rank, (target, result) in found.items():
        assert result.get() is None
        np.testing.assert_array_equal(target, arrays[1 - rank])


def test_it_is_over_for_neither_before_both_have_read(pair):
    a, b = pair()
    _, result = a.swap(numbers(0))
    time.sleep(0.2)
    assert not result.is_there
    b.swap(numbers(1))
    assert result.get() is None


def test_channels_meet_in_any_order(pair):
    a, b = pair()
    mine, theirs = [{channel: numbers(10 * rank + channel) for channel in range(5)} for rank in range(2)]
    found_a = {channel: a.swap(mine[channel], channel) for channel in range(5)}
    found_b = {channel: b.swap(theirs[channel], channel) for channel in (3, 1, 4, 0, 2)}
    for channel in range(5):
        for (target, result), expected in ((found_a[channel], theirs[channel]), (found_b[channel], mine[channel])):
            assert result.get() is None
            np.testing.assert_array_equal(target, expected)


def test_exchanges_of_one_channel_meet_one_after_the_other_from_many_threads(pair):
    a, b = pair()
    count, found = 200, [[], []]

    def run(rank, end):
        for i in range(count):
            array = numbers(1000 * rank + i)
            target, result = end.swap(array)
            found[rank].append((array, target, result))

    threads = [threading.Thread(target=run, args=each) for each in ((0, a), (1, b))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    for rank in range(2):
        for i, (_, target, result) in enumerate(found[rank]):
            assert result.get() is None
            np.testing.assert_array_equal(target, found[1 - rank][i][0])


def test_closing_fails_what_is_under_way_on_both_ends_and_all_that_follows(pair):
    a, b = pair()
    (_, mine), (_, theirs) = a.swap(numbers(0), 1), b.swap(numbers(1), 2)
    assert a.memory.is_open
    a.memory.close("this worker has left the group")
    a.memory.close("again")
    assert mine.get() == "this worker has left the group"
    assert theirs.get() == f"worker 0 {GONE}"
    assert not a.memory.is_open
    assert a.swap(numbers(2))[1].get() == "this worker has left the group"
    assert b.swap(numbers(2))[1].get() == f"worker 0 {GONE}"


def test_arrays_of_different_sizes(pair):
    a, b = pair()
    (_, mine), (_, theirs) = a.swap(numbers(0, 10)), b.swap(numbers(1, 12))
    errors = {mine.get(), theirs.get()}
    texts = {"worker 1 offers 12 bytes where this worker has 10", "worker 0 offers 10 bytes where this worker has 12"}
    assert errors & texts
    assert errors <= texts | {f"worker {rank} {GONE}" for rank in range(2)}


def test_memory_that_is_not_there(pair):
    a, b = pair()
    result = Result()
    a.swap(numbers(0, 100), 1)
    target = numbers(0)
    b.memory.swap(1, 1 << 46, target.ctypes.data, 100, result)
    result.get()
    again = a.swap(numbers(1))[1].get()
    assert again in {f"the memory of process {os.getpid()} cannot be read: Bad address", f"worker 1 {GONE}"}


def test_what_was_read_while_the_other_one_left_is_not_believed(pair, monkeypatch):
    a, b = pair()
    copied = _peer_memory._copied

    def slowly(*args):
        problem = copied(*args)
        if threading.current_thread() is not threading.main_thread():
            with contextlib.suppress(OSError):
                b.connection.shutdown(socket.SHUT_RDWR)  # now the other one may free its array
        return problem

    monkeypatch.setattr(_peer_memory, "_copied", slowly)
    _, result = a.swap(numbers(0))
    b.swap(numbers(1))
    assert result.get() == f"worker 1 {GONE}"


def test_a_message_about_an_array_that_was_not_offered(pair):
    a, b = pair()
    b.connection.send(_peer_memory._MESSAGE.pack(b"r", 0, 7, 0, 0))
    _, result = a.swap(numbers(0))
    assert result.get() == "worker 1 says that it has read array 7, which it was not offered"


CHILD = """
import os, socket, sys, numpy as np
from replicant.cluster._peer_memory import PeerMemory
connection = socket.socket(fileno=int(sys.argv[1]))
memory = PeerMemory(connection, os.getppid(), "the test")
array = np.arange(1_000_000, dtype=np.float64)
target = np.zeros_like(array)
def finish(error):
    print(error, target.sum(), flush=True)
memory.swap(0, array.ctypes.data, target.ctypes.data, array.nbytes, finish)
sys.stdin.read()
"""


@pytest.fixture
def other():
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with theirs:
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(theirs.fileno())], pass_fds=[theirs.fileno()], **pipes)
    end = End(mine, "worker 1", process=child.pid)
    yield child, end
    child.kill()
    child.communicate()
    end.memory.close("the test is over")


def test_two_processes(other):
    child, end = other
    array = np.full(1_000_000, 0.5)
    target, result = end.swap(array)
    assert result.get() is None
    np.testing.assert_array_equal(target, np.arange(1_000_000))
    assert child.stdout.readline() == "None 500000.0\n"


def test_a_process_that_is_killed(other):
    child, end = other
    assert end.swap(np.ones(1_000_000))[1].get() is None
    _, result = end.swap(np.ones(1_000_000))
    begun = time.monotonic()
    child.send_signal(signal.SIGKILL)
    assert result.get() == f"worker 1 {GONE}"
    assert time.monotonic() - begun < 5


# How the two find each other.


class Exchange:
    """Exchanges texts of two threads, in order."""

    def __init__(self):
        self._texts, self._both = {}, threading.Barrier(2, timeout=SECONDS)

    def of(self, rank):
        def exchange(label, text):
            self._texts[label, rank] = text
            self._both.wait()
            return [self._texts[label, each] for each in range(2)]

        return exchange


def met(change=lambda rank, label, text: text):
    """What each of two threads gets."""
    exchange, found = Exchange(), [None, None]

    def run(rank):
        mine = exchange.of(rank)
        changed = lambda label, text: mine(label, change(rank, label, text))  # noqa: E731
        found[rank] = _peer_memory.meet(changed, rank, ("worker 0", "worker 1"))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    return found


def test_the_two_meet_and_exchange():
    ends = met()
    assert [type(end) for end in ends] == [PeerMemory, PeerMemory]
    arrays, targets, results = (
        [numbers(rank) for rank in range(2)],
        [np.zeros(1000, np.uint8) for _ in range(2)],
        [Result(), Result()],
    )
    for rank, end in enumerate(ends):
        end.swap(0, arrays[rank].ctypes.data, targets[rank].ctypes.data, 1000, results[rank])
    for rank in range(2):
        assert results[rank].get() is None
        np.testing.assert_array_equal(targets[rank], arrays[1 - rank])
    ends[0].close("the test is over")


def test_one_that_is_switched_off(monkeypatch):
    monkeypatch.setenv("REPLICANT_PEER_MEMORY", "0")
    assert met() == ["worker 0: REPLICANT_PEER_MEMORY=0; worker 1: REPLICANT_PEER_MEMORY=0"] * 2


def test_a_switch_that_is_no_number(monkeypatch):
    monkeypatch.setenv("REPLICANT_PEER_MEMORY", "off")
    with pytest.raises(ClusterError, match=r"^REPLICANT_PEER_MEMORY='off' is not a whole number from 0\.$"):
        _peer_memory.meet(lambda *_: [], 0, ("worker 0", "worker 1"))


def test_two_on_different_hosts():
    def change(rank, label, text):
        if rank and label == "memory":
            place, *rest = json.loads(text)
            return json.dumps([place.replace("host ", "host of others "), *rest])
        return text

    first, second = met(change)
    assert first == second
    assert first.startswith("worker 0: host ")
    assert "; worker 1: host of others " in first


def test_a_stranger_is_left_outside():
    code = "import socket as s, sys; c = s.socket(s.AF_UNIX, s.SOCK_SEQPACKET); c.connect(chr(0) + sys.argv[1]); print(c.recv(9))"
    said = []

    def change(rank, label, text):
        if rank == 0 and label == "memory":
            address = json.loads(text)[1]
            child = subprocess.Popen([sys.executable, "-c", code, address], stdout=subprocess.PIPE, text=True)
            time.sleep(1)  # it is the first to connect
            said.append(child)
        return text

    ends = met(change)
    assert [type(end) for end in ends] == [PeerMemory, PeerMemory]
    assert said[0].communicate(timeout=SECONDS)[0] == "b''\n"
    ends[0].close("the test is over")


def test_memory_that_may_not_be_read(monkeypatch):
    monkeypatch.setattr(_peer_memory, "_copied", lambda process, *_: f"the memory of process {process} cannot be read: no")
    reason = f"the memory of process {os.getpid()} cannot be read: no"
    assert met() == [f"worker 0: {reason}; worker 1: {reason}"] * 2


def test_memory_that_holds_something_else(monkeypatch):
    monkeypatch.setattr(_peer_memory, "_copied", lambda *_: None)
    reason = f"the memory of process {os.getpid()} does not hold what it says"
    assert met() == [f"worker 0: {reason}; worker 1: {reason}"] * 2


def test_one_that_does_not_come(monkeypatch):
    monkeypatch.setattr(_peer_memory, "_MEET_SECONDS", 0.3)

    def change(rank, label, text):
        if rank == 0 and label == "memory":
            place, address, process = json.loads(text)
            return json.dumps([place, f"{address}-elsewhere", process])
        return text

    assert met(change) == ["worker 0: timed out; worker 1: [Errno 111] Connection refused"] * 2
