"""The connection between workers and supervisor: who may speak, and what strangers can do."""

import errno
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import replicant
from replicant.cluster.wire import _supervisor
from replicant.cluster.wire._handshake import proof
from replicant.cluster.wire._supervisor import SUPERVISOR, WORKER, Heartbeat
from replicant.errors import ArgumentTypeError, ClusterError, WorkerLostError, WorkersChangedError
from replicant.launch.console._console import Console, LogTail
from replicant.launch.team._connections import Channel
from replicant.strategies._elastic import _obey

SECONDS = 60.0


@pytest.fixture
def channel() -> Iterator[Channel]:
    with Channel(0.05) as made:
        made.is_expected = lambda rank, generation, pid: (rank, generation, pid) == (1, 3, os.getpid())
        yield made


def poll_until(channel: Channel, found: Callable[[list[tuple[int, dict[str, Any]]]], bool]) -> list[tuple[int, dict[str, Any]]]:
    deadline, messages = time.monotonic() + SECONDS, []
    while not found(messages):
        assert time.monotonic() < deadline, messages
        messages += channel.poll(0.05)
    return messages


def connected(channel: Channel, rank: int = 1, key: str | None = None) -> Heartbeat:
    """A worker's end; it needs the other one to answer meanwhile."""
    made: list[Any] = []

    def connect() -> None:
        try:
            made.append(Heartbeat(channel.address, channel.key if key is None else key, rank, 3))
        except ClusterError as error:
            made.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    deadline = time.monotonic() + SECONDS
    while thread.is_alive() and time.monotonic() < deadline:
        for _ in channel.poll(0.02):
            pass
    thread.join()
    if isinstance(made[0], ClusterError):
        raise made[0]
    return made[0]


def test_a_worker_that_is_cut_off_says_so_once() -> None:
    with Channel(0.05, silence=10.0) as channel:
        channel.is_expected = lambda rank, generation, pid: (rank, generation, pid) == (1, 3, os.getpid())
        worker, reasons = connected(channel), list[str]()
        worker.when_cut_off(reasons.append)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; `tests/hosts` has supervisors on other hosts
            assert worker._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0  # on one machine there is no cut
        for _ in range(2):
            worker._lose(TimeoutError(errno.ETIMEDOUT, "as the kernel says it"))
        assert reasons == [f"nothing that it sends has reached the supervisor at {channel.address} for 9 s"]
        worker.when_cut_off(reasons.append)  # too late, and told nevertheless
        assert reasons == reasons[:1] * 2


def test_a_thread_that_finds_the_connection_closed_first_hides_no_cut(channel: Channel) -> None:
    """The kernel says ETIMEDOUT to one thread, and EPIPE to all others, which may be faster."""
    worker, reasons = connected(channel), list[str]()
    worker.when_cut_off(reasons.append)
    worker._lose(BrokenPipeError(errno.EPIPE, "as the kernel says it"))
    assert (worker.is_connected, reasons) == (False, [])
    worker._lose(TimeoutError(errno.ETIMEDOUT, "as the kernel says it"))
    assert [reason.partition(" at ")[0] for reason in reasons] == ["nothing that it sends has reached the supervisor"]


def test_a_supervisor_that_ends_cuts_nobody_off(channel: Channel) -> None:
    worker, reasons = connected(channel), list[str]()
    worker.when_cut_off(reasons.append)
    channel.close()
    assert worker.take_order(SECONDS) is None
    assert (worker.cut_off, reasons) == ("", [])


def test_beats_reports_and_orders(channel: Channel) -> None:
    worker = connected(channel)
    worker.beat(None)
    worker.beat(41)
    messages = poll_until(channel, lambda found: any(message.get("step") == 41 for _, message in found))
    assert {rank for rank, _ in messages} == {1}
    worker.say(kind="failed", text="ValueError: no", step=41)
    poll_until(channel, lambda found: any(message["kind"] == "failed" for _, message in found))
    assert channel.send(1, {"kind": "stop"})
    assert not channel.send(0, {"kind": "stop"})
    assert worker.take_order(SECONDS) == {"kind": "stop"}
    channel.close()
    assert worker.take_order(SECONDS) is None
    assert not worker.is_connected


def test_an_order_ends_the_step_of_an_elastic_program(channel: Channel) -> None:
    worker = connected(channel)
    assert channel.send(1, {"kind": "form", "generation": 4})
    deadline = time.monotonic() + SECONDS
    while worker.order is None and time.monotonic() < deadline:
        time.sleep(0.01)
    worker.beat(None)
    worker.is_elastic = True
    with pytest.raises(
        WorkersChangedError, match=r"The workers form a new group: replicant\.run_elastic goes on with those that are there\."
    ):
        worker.beat(None)
    assert worker.take_order(SECONDS) == {"kind": "form", "generation": 4}
    worker.beat(None)
    assert worker.take_order(0.01) is None
    channel.close()


class _Unanswered:
    """A connection on which no order comes."""

    def __init__(self, is_connected: bool):
        self.is_connected = is_connected

    def take_order(self, timeout_seconds: float) -> None:
        del timeout_seconds


def test_a_worker_whom_nobody_tells_what_to_do() -> None:
    for is_connected, reason in ((True, "the other workers did not come in time"), (False, "the supervisor is gone")):
        with pytest.raises(WorkerLostError, match=f"This worker was to join a new generation, but {reason}"):
            _obey(_Unanswered(is_connected), None)  # type: ignore[arg-type]
        with pytest.raises(WorkerLostError, match=f"This worker was to join a new generation, but {reason}") as raised:
            _obey(_Unanswered(is_connected), ValueError("old"))  # type: ignore[arg-type]
        assert str(raised.value.__cause__) == "old"


def test_run_elastic_takes_a_function() -> None:
    with pytest.raises(ArgumentTypeError, match=r"run_elastic: train must be a function that takes no arguments; got 3\."):
        replicant.run_elastic(3)  # type: ignore[arg-type]
    assert replicant.run_elastic(lambda: 5) == 5


def test_a_wrong_key_and_an_unexpected_rank_are_turned_away(channel: Channel) -> None:
    message = r"turned this worker away: its key, or its rank, generation and process number, are not of this job\."
    with pytest.raises(ClusterError, match=message):
        connected(channel, key="guessed")
    with pytest.raises(ClusterError, match=message):
        connected(channel, rank=0)


@pytest.mark.parametrize(
    "line",
    [
        b'{"nonce": "\\ud800"}\n',
        b'{"kind": "hello", "rank": 1, "generation": 3, "pid": 1, "nonce": "1", "proof": "\\udfff"}\n',
        b'{"kind": ["hello"], "nonce": "1"}\n',
        b"GET / HTTP/1.1\r\n\r\n",
        b"[]\n",
        b"null\n",
        b"\xff\n",
        b"x" * 200_000,
        b'{"kind": "beat", "step": 9}\n',
    ],
)
def test_strangers_are_dropped(channel: Channel, line: bytes) -> None:
    host, port = channel.address.split(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.settimeout(0.05)
        stranger.sendall(line)
        deadline, heard = time.monotonic() + SECONDS, []
        while time.monotonic() < deadline:
            heard += channel.poll(0.02)
            try:
                if not stranger.recv(4096):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("the stranger is still connected")
        assert heard == []


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "beat", "step": 10**400, "at": 1.0, "waited": 0.0},
        {"kind": "beat", "step": 1 << 60, "at": 1.0, "waited": 0.0},
        {"kind": "beat", "step": 1, "at": 1e300, "waited": 0.0},
        {"kind": "beat", "step": True, "at": 1.0, "waited": 0.0},
        {"kind": "beat", "step": 1, "at": 1.0, "waited": None},
        {"kind": "saved", "step": 1, "seconds": "1", "path": "a"},
        {"kind": "saved", "step": 1, "seconds": 1, "path": ["a"]},
        {"kind": "here", "generation": [3]},
        {"kind": ["beat"]},
        {"kind": {"a": [[[[]]]]}},
        {"step": 1},
    ],
    ids=str,
)
def test_a_worker_that_says_what_no_worker_says_is_dropped(channel: Channel, line: dict[str, Any]) -> None:
    worker = connected(channel)
    heard = list(channel.poll(0.1))
    worker.say(**line)
    heard += poll_until(channel, lambda found: any(message["kind"] == "closed" for _, message in found))
    assert {message["kind"] for _, message in heard} <= {"beat", "closed"}
    assert not channel.send(1, {"kind": "stop"})


def test_what_no_utf8_can_hold_arrives_with_question_marks(channel: Channel) -> None:
    worker = connected(channel)
    worker.say(kind="failed", text="no file a\udcff", step=1)
    heard = poll_until(channel, lambda found: any(message["kind"] == "failed" for _, message in found))
    assert [message["text"] for _, message in heard if message["kind"] == "failed"] == ["no file a?"]


def test_a_proof_cannot_be_used_again(channel: Channel) -> None:
    """What was said once does not fit another connection's number."""
    old = {"kind": "hello", "rank": 1, "generation": 3, "pid": os.getpid(), "nonce": "n"}
    old["proof"] = proof(channel.key, WORKER, "the number of another connection", "n")
    assert not channel._admit(next(iter([_Fake()])), old)  # type: ignore[arg-type]
    assert proof(channel.key, WORKER, "a", "b") != proof(channel.key, SUPERVISOR, "a", "b")


class _Fake:
    nonce = "this connection's"

    def say(self, message: dict[str, Any]) -> bool:
        assert [*message] == ["refused"]
        return True


def test_something_else_at_the_supervisors_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b'{"nonce": "1"}\n')
                connection.recv(4096)
                connection.sendall(json.dumps({"proof": "wrong", "interval": 1}).encode() + b"\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ClusterError, match=f"What listens at REPLICANT_SUPERVISOR={address} does not know the key"):
            Heartbeat(address, "key", 0, 0)
        thread.join()
    with pytest.raises(ClusterError, match=rf"cannot reach its supervisor at REPLICANT_SUPERVISOR={address}: .* still running\?"):
        Heartbeat(address, "key", 0, 0)


@pytest.mark.parametrize("says", [b'{"nonce": "\\ud800"}\n', b'{"nonce": "1"}\n{"proof": "\\ud800"}\n'])
def test_a_stranger_at_the_supervisors_address_with_half_a_character(says: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(says)
                connection.recv(4096)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ClusterError, match=f"What listens at REPLICANT_SUPERVISOR={address} does not answer like a supervisor"):
            Heartbeat(address, "key", 0, 0)
        thread.join()


def test_nothing_happens_in_processes_that_were_not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_supervisor, "_is_started", False)
    assert _supervisor.start({}) is None
    _supervisor.beat()
    _supervisor.phase("saving")
    _supervisor.report("nothing")
    _supervisor.waited(1.0)


def test_a_log_that_is_cut_and_one_without_an_end(tmp_path: Any) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"old\n")
    tail = LogTail(path)
    assert list(tail.lines()) == []
    with path.open("ab") as file:
        file.write(b"one\ntw")
    assert list(tail.lines()) == [b"one"]
    with path.open("ab") as file:
        file.write(b"o")
    assert list(tail.all_lines()) == [b"two"]
    path.write_bytes(b"new\n")
    assert list(tail.lines()) == [b"new"]
    tail.close()


def test_a_status_line_on_terminals_only(capsys: pytest.CaptureFixture[str]) -> None:
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out, terminal, plain = io.StringIO(), Terminal(), io.StringIO()
    for err in (terminal, plain):
        console = Console(out, err)
        console.status("one")
        console.status("one")
        console.line(0, b"line")
        console.status("two")
        console.status("")
    assert terminal.getvalue() == "one\r\x1b[Ktwo\r\x1b[K"
    assert plain.getvalue() == ""
    assert out.getvalue() == "[0] line\n" * 2


def test_a_console_that_nobody_reads() -> None:
    import io

    reader, writer = os.pipe()
    os.close(reader)
    err = io.StringIO()
    with os.fdopen(writer, "w") as out:
        console = Console(out, err)
        for _ in range(3):
            console.line(0, b"line")
            console.flush()
    assert err.getvalue() == "replicant launch: nobody reads the output any more. The job goes on and writes its logs.\n"
