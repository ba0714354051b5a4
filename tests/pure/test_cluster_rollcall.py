"""The roll call over real sockets: every worker hears the same, and none waits for ever."""

import concurrent.futures
import json
import socket
import threading

import pytest

from replicant.cluster import Membership
from replicant.cluster._rollcall import call_roll
from replicant.errors import ClusterError, UnreachableError, WorkerMismatchError

SECONDS = 60.0


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def meet(claims, seconds=SECONDS, facts=None, port=None):
    """What each worker gets: who they are, or the error. `claims`: process id and number of processes of each."""
    address = f"127.0.0.1:{port or free_port()}"

    def one(i):
        membership = Membership(*claims[i], address, address)
        try:
            return call_roll(membership, f"host pid {i}", (facts or {}).get(i, {"jax": "1"}), seconds)
        except ClusterError as error:
            return error
        except WorkerMismatchError as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(len(claims)) as pool:
        return list(pool.map(one, range(len(claims))))


def test_all_hear_who_is_there():
    assert meet([(2, 3), (0, 3), (1, 3)]) == [("host pid 1", "host pid 2", "host pid 0")] * 3


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ([(0, 3), (1, 3), (1, 3)], "Two workers have the process id 1: each needs its own.\n"),
        ([(0, 2), (1, 3)], r"disagree on how many they are: \[2, 3\].\n  host pid 0  process 0 of 2\n  host pid 1  process 1 of 3"),
    ],
    ids=["twice", "counts"],
)
def test_claims_that_contradict_each_other(claims, message):
    for error in meet(claims):
        with pytest.raises(ClusterError, match=message):
            raise error


def test_other_versions():
    message = r"different versions of numpy.*\n  worker 0 \(host pid 0\)  numpy 2\n  worker 1"
    for error in meet([(0, 2), (1, 2)], facts={0: {"jax": "1", "numpy": "2"}, 1: {"jax": "1", "numpy": "3"}}):
        with pytest.raises(WorkerMismatchError, match=message):
            raise error


def test_a_worker_that_does_not_come():
    for error in meet([(0, 3), (1, 3)], seconds=1.0):
        with pytest.raises(ClusterError, match=r"Worker\(s\) 2 of 3 did not come within 1 s\. (.*\n)+  host pid 1  process 1 of 3"):
            raise error


def test_nobody_at_the_address():
    (error,) = meet([(1, 2)], seconds=0.5)
    with pytest.raises(UnreachableError, match=r"Worker 1 found nobody at the coordinator's address 127.* within 0\.5 s"):
        raise error


def test_a_port_that_is_taken():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        (error,) = meet([(0, 2)], port=other.getsockname()[1])
    with pytest.raises(ClusterError, match=r"Process 0 cannot listen at 127\.0\.0\.1:\d+: .*choose another one"):
        raise error


def test_somebody_else_answers_at_the_address():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()

        def serve():
            connection, _ = other.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\n")

        server = threading.Thread(target=serve)
        server.start()
        (error,) = meet([(1, 2)], port=other.getsockname()[1])
        server.join()
    with pytest.raises(ClusterError, match="answered by something that is no process 0 of this job"):
        raise error


def test_strangers_are_shown_out():
    """What is no claim is dropped, and so are claims of workers that leave before all have come."""
    port = free_port()
    result = []
    chief = threading.Thread(target=lambda: result.extend(meet([(0, 2)], port=port)))
    chief.start()
    almost = json.dumps({"magic": "replicant-roll-call-1", "process_id": True}).encode()
    lines = [b"GET / HTTP/1.1\r\n\r\n\n", b"[]\n", almost + b"\n"]
    for line in lines:
        while True:
            try:
                stranger = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
                break
            except ConnectionRefusedError:
                continue  # not listening yet
        with stranger:
            stranger.sendall(line)
            stranger.settimeout(SECONDS)
            assert stranger.recv(10) == b""  # closed
    assert meet([(1, 2)], port=port) == [("host pid 0", "host pid 0")]
    chief.join()
    assert result == [("host pid 0", "host pid 0")]
