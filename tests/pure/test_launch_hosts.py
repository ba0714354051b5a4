"""The messages between a launcher and its agents, what hosts must agree in, and files of hosts."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replicant.errors import ArgumentError, ClusterError, ConfigurationError
from replicant.launch import Settings
from replicant.launch.engines._hosts import parse_hosts, read_hosts_file
from replicant.launch.hosts import Joining, NodeRanks, SshHosts, _agent, _join, key_of_nodes
from replicant.launch.hosts._agent import Agent
from replicant.launch.hosts._facts import differences, facts_here, same_machines
from replicant.launch.hosts._hosts import raise_all
from replicant.launch.hosts._remote import Link
from replicant.launch.hosts._ssh import own_address
from replicant.launch.hosts._wire import AGENT, LAUNCHER, Wire, wire_key, workers_key

KEY = "0123456789abcdef"


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection, whose descriptors the test gives away."""
    return socket.socketpair()


def wire(end: socket.socket, side: str, key: str = KEY) -> Wire:
    descriptor = end.detach()
    return Wire(descriptor, descriptor, key, side)


def test_messages_arrive_in_both_directions(ends: Any) -> None:
    launcher, agent = wire(ends[0], LAUNCHER), wire(ends[1], AGENT)
    launcher.send(kind="a", text="ü\n")
    launcher.send(kind="b")
    agent.send(kind="c")
    assert agent.receive() == [{"kind": "a", "text": "ü\n"}, {"kind": "b"}]
    assert launcher.receive() == [{"kind": "c"}]
    assert (launcher.is_open, agent.is_open) == (True, True)
    launcher.close()
    assert (agent.receive(), agent.is_open, agent.problem) == ([], False, "")
    agent.send(kind="nobody reads this")
    agent.close()


def test_what_a_host_prints_at_the_login_is_no_message(ends: Any) -> None:
    launcher, agent = wire(ends[0], LAUNCHER), ends[1]
    agent.sendall(b"Welcome\n\xff\n" + b"0" * 32 + b' {"kind": "x"}\nno end of the line\n')
    other = wire(agent, AGENT)
    other.send(kind="a")
    assert launcher.receive() == [{"kind": "a"}]
    assert launcher.noise == [b"Welcome", b"\xff", b"0" * 32 + b' {"kind": "x"}', b"no end of the line"]
    for each in (launcher, other):
        each.close()


SIGNED = wire_key(KEY, "1")


@pytest.mark.parametrize("what", ["repeated", "reflected", "other key", "left out", "bare"])
def test_a_line_that_the_other_end_has_not_sent_closes_the_wire(ends: Any, what: str) -> None:
    peek, write = socket.socketpair()
    source = wire(write, LAUNCHER if what == "reflected" else AGENT, "other" if what == "other key" else KEY)
    source.send(kind="a")
    source.send(kind="b")
    source.send(kind="c")
    first, second, third = peek.recv(4096).splitlines(keepends=True)
    launcher, agent = wire(ends[0], LAUNCHER), ends[1]
    honest_read, honest_write = socket.socketpair()
    honest = wire(honest_write, AGENT)
    honest.send(kind="a")
    agent.sendall(honest_read.recv(4096))
    assert launcher.receive() == [{"kind": "a"}]
    agent.sendall(
        {"repeated": first, "reflected": second, "other key": second, "left out": third, "bare": b'{"kind": "b"}\n'}[what]
    )
    assert launcher.receive() == []
    assert (launcher.is_open, launcher.problem) == (False, "a line came that is not signed with the key of this connection")
    for each in (launcher, honest, source):
        each.close()
    for each in (peek, honest_read, agent):
        each.close()


def test_a_line_without_an_end_closes_the_wire(ends: Any) -> None:
    launcher, agent = wire(ends[0], LAUNCHER), ends[1]
    agent.setblocking(False)
    while launcher.is_open:
        with contextlib.suppress(BlockingIOError):
            agent.send(b"x" * 65536)
        launcher.receive()
    assert launcher.problem == "it has sent a line without an end"
    launcher.close()
    agent.close()


def test_an_end_that_does_not_read_closes_the_wire(ends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicant.launch.hosts._wire.SEND_SECONDS", 0.3)
    launcher = wire(ends[0], LAUNCHER)
    launcher.send_now(kind="long", text="x" * 10_000_000)
    assert (launcher.is_open, launcher.problem) == (False, "it has read nothing for 0.3 s")
    launcher.close()
    ends[1].close()


def test_keys_differ_by_purpose() -> None:
    keys = [wire_key(KEY, "1"), wire_key(KEY, "2"), wire_key(KEY, "1", "2"), workers_key(KEY, "1"), workers_key("other", "1")]
    assert len(set(keys)) == 5
    assert KEY not in "".join(keys)


def test_an_agent_starts_nothing_before_it_knows_what(ends: Any) -> None:
    launcher, agent = wire(ends[0], LAUNCHER), wire(ends[1], AGENT)
    runs = Agent(agent, "key", patience=5.0)
    place = {"rank": 0, "num_workers": 1, "generation": 0, "coordinator": None, "supervisor": "127.0.0.1:1"}
    launcher.send(kind="signal", worker=9, number=9)  # of a worker that it does not have
    launcher.send(kind="start", worker=3, place=place, local=[0, 1], more={})
    launcher.send(kind="end", code=4)
    assert runs.serve() == ""
    assert (runs.end or {})["code"] == 4
    said = {message["kind"]: message for message in launcher.receive()}
    assert said["cannot"] == {"kind": "cannot", "worker": 3, "problem": "The launcher has not said what to run."}
    assert said["facts"]["packages"]["jax"] == facts_here()["packages"]["jax"]
    for each in (launcher, agent):
        each.close()


def test_an_agent_that_is_not_heard_ends(ends: Any) -> None:
    launcher, agent = wire(ends[0], LAUNCHER), wire(ends[1], AGENT)
    assert Agent(agent, "key", patience=0.5).serve().startswith("the launcher has heard nothing of it for ")
    for each in (launcher, agent):
        each.close()


HERE = {"host": "a", "python": "3.13.1", "executable": "p", "packages": {"replicant-jax": "1.0", "keras": None}, "ahead": 0.0}


@pytest.mark.parametrize(
    ("there", "found"),
    [
        ({}, []),
        ({"python": "3.13.9", "ahead": 60.0}, []),
        (
            {"python": "3.12.1", "packages": {}},
            [("b runs Python 3.12.1 (p), but a runs Python 3.13.1. All hosts need the same minor version: install it there, and "
             "Replicant with it.")],
        ),
        (
            {"packages": {"replicant-jax": "0.9"}},
            ["b has replicant-jax 0.9, but a has replicant-jax 1.0. Install the same on b: p -m pip install replicant-jax==1.0"],
        ),
        (
            {"packages": {}},
            ["b has no replicant-jax, but a has replicant-jax 1.0. Install the same on b: p -m pip install replicant-jax==1.0"],
        ),
        ({"packages": {"replicant-jax": "1.0", "keras": "3.12"}}, ["b has keras 3.12, but a has no keras. Install it on a."]),
        (
            {"ahead": -100.2},
            [("The clock of b is 100 s behind that of a. At most 60 s are allowed (--max-clock-skew), because files on shared "
             "folders and lines of logs carry times. Let both hosts take their time from the network: timedatectl set-ntp true")],
        ),
    ],
)  # fmt: skip
def test_hosts_must_agree(there: dict[str, Any], found: list[str]) -> None:
    assert differences(HERE, {**HERE, "host": "b", **there}, 60.0) == found


def test_a_file_of_hosts(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# our hosts\n\nnode-a\n  node-b:2  # two GPUs\nme@node-c   slots=4\n10.0.0.4\n")
    found = read_hosts_file(path)
    assert found == ["node-a", "node-b:2", "me@node-c:4", "10.0.0.4"]
    assert parse_hosts(found) == {"node-a": 1, "node-b": 2, "me@node-c": 4, "10.0.0.4": 1}
    path.write_bytes(b"\xef\xbb\xbfnode-a\r\n\r\nnode-b slots=2\t# two\r\n#node-c\r\nnode-d")  # as editors of Windows write it
    assert read_hosts_file(path) == ["node-a", "node-b:2", "node-d"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\nb c\n", r"line 2: 'b c' is not a host\. Write HOST, HOST:N or HOST slots=N, with N from 1 to 9999\."),
        ("", r"names no host\."),
        ("a,b\n", r"line 1: 'a,b' is not a host"),
        ("[fd00::1]\n", r"line 1: '\[fd00::1\]' is not a host"),
        ("a slots = 2\n", r"line 1: 'a slots = 2' is not a host"),
        ("a slots=0\n", r"line 1: 'a slots=0' is not a host"),
        ("a:2 slots=2\n", r"line 1: 'a:2 slots=2' is not a host"),
        ("# nobody\n", r"names no host\. Write one host in each line\."),
        (b"\xff\xfe", r"cannot be read: .*utf-8"),
    ],
)
def test_files_that_are_no_list_of_hosts(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = tmp_path / "hosts"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ArgumentError, match=message):
        read_hosts_file(path)


def test_a_folder_is_no_file_of_hosts(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"cannot be read: .*Is a directory"):
        read_hosts_file(tmp_path)


def test_two_names_of_one_host() -> None:
    mine = facts_here()
    assert mine["machine"]
    assert same_machines([("a", mine), ("b", mine | {"machine": "other"})]) == []
    assert same_machines([("a", mine | {"machine": ""}), ("b", mine | {"machine": ""}), ("c", {})]) == []
    assert same_machines([("a", mine), ("b", {"machine": "x"}), ("c", mine), ("d", mine)]) == [
        "a and c and d are the same host. Write it once, with the number of all its workers, as in a:3."
    ]


def test_an_agent_without_a_key_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_agent, "_KEY_SECONDS", 0.2)
    reader, writer = os.pipe()
    os.write(writer, b'{"key": "no end')
    with pytest.raises(SystemExit, match=r"replicant launch: the agent got no key within 0\.2 s\."):
        _agent._first_line(reader)
    os.close(writer)
    with pytest.raises(SystemExit, match=r"the agent was started without a key\. `replicant launch --hosts` starts it\."):
        _agent._first_line(reader)
    os.close(reader)


def test_a_node_0_that_drips_is_given_up(ends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, and the line never ends."""
    monkeypatch.setattr(_join, "_HANDSHAKE_SECONDS", 0.5)
    mine, theirs = ends
    over = threading.Event()

    def drip() -> None:
        while not over.wait(0.1):
            theirs.send(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        with pytest.raises(ConnectionAbortedError, match="it does not finish a line"):
            Joining(Settings(("x.py",)), 1, 2, ("a", 1), KEY)._shake_hands(mine)
    finally:
        over.set()
        thread.join()
    mine.close()
    theirs.close()


@pytest.mark.parametrize("says", [b'{"nonce": "\\ud800"}\n', b'{"nonce": "1"}\n{"proof": "\\ud800"}\n'])
def test_a_node_0_with_half_a_character(ends: Any, says: bytes) -> None:
    mine, theirs = ends
    theirs.sendall(says)
    with pytest.raises(ClusterError, match=r"what listens at a:1 does not answer like node 0 of `replicant launch`, but with b'"):
        Joining(Settings(("x.py",)), 1, 2, ("a", 1), KEY)._shake_hands(mine)
    mine.close()
    theirs.close()


def test_what_comes_signed_and_cannot_be_read_closes_the_wire(ends: Any) -> None:
    launcher, agent = wire(ends[0], LAUNCHER), wire(ends[1], AGENT)
    agent.send(kind="a", path="a\udcff")  # names of files that are no UTF-8 stay as they are
    assert launcher.receive() == [{"kind": "a", "path": "a\udcff"}]
    agent.send(kind="b", count=10**400)
    assert launcher.receive() == []
    assert (launcher.is_open, launcher.problem) == (False, "a line came that has a number of more than 40 digits")
    for each in (launcher, agent):
        each.close()


def test_a_signed_line_that_is_no_object_closes_the_wire(ends: Any) -> None:
    launcher, agent = wire(ends[0], LAUNCHER), wire(ends[1], AGENT)
    agent._unsent = f"{agent._proof(AGENT, 0, '[1]')} [1]\n".encode()
    agent.flush()
    assert launcher.receive() == []
    assert (launcher.is_open, launcher.problem) == (False, "a line came that is not an object: [1]")
    for each in (launcher, agent):
        each.close()


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"kind": "beat", "stopped": []}, "KeyError('number')"),
        ({"kind": "beat", "number": 1, "stopped": [[]]}, "TypeError("),
        ({"kind": "facts", "worker": []}, "TypeError("),
        ({"no": "kind"}, "KeyError('kind')"),
    ],
)
def test_an_agent_that_says_what_makes_no_sense_is_lost(ends: Any, message: dict[str, Any], error: str) -> None:
    link, agent = Link("node 1 (b)", wire(ends[0], LAUNCHER), 60.0), wire(ends[1], AGENT)
    agent.send(**message)
    assert link.listen() == []
    assert link.lost.startswith(f"node 1 (b) has said what makes no sense ({error}")
    link.close()
    agent.close()


def test_own_addresses() -> None:
    assert own_address("127.0.0.1", "it", "Do that.") == "127.0.0.1"
    with pytest.raises(ConfigurationError, match=r"it, but 192\.0\.2\.1 is not an address of .* \(Cannot assign.*\)\. Do that\."):
        own_address("192.0.2.1", "it", "Do that.")
    with pytest.raises(ConfigurationError, match=r"it: it does not stand for an IPv4 address on .*\. Do that\."):
        own_address("::1", "it", "Do that.")


def test_all_problems_are_told() -> None:
    raise_all([])
    with pytest.raises(ConfigurationError, match=r"^one$"):
        raise_all(["one"])
    with pytest.raises(ConfigurationError, match=r"^the job cannot start on all of its hosts:\n  one\n  two$"):
        raise_all(["one", "two"])


def test_jobs_on_hosts_are_not_elastic() -> None:
    settings = Settings(("x.py",), num_workers=2, elastic=(1, 2))
    for make in (
        lambda: SshHosts(settings, {"a": 1}),
        lambda: NodeRanks(settings, 2, ("a", 1), KEY),
        lambda: Joining(settings, 1, 2, ("a", 1), KEY),
    ):
        with pytest.raises(ArgumentError, match=r"--elastic works only on one machine so far\."):
            make()


def test_ssh_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigurationError, match=r"--hosts needs the command ssh, which is not on PATH\."):
        SshHosts(Settings(("x.py",)), {"node-b": 1})
    SshHosts(Settings(("x.py",)), {"localhost": 1})  # needs none


def test_nodes_need_a_key() -> None:
    assert key_of_nodes({"REPLICANT_JOB_KEY": KEY}) == KEY
    with pytest.raises(ClusterError, match=r"REPLICANT_JOB_KEY is not set\..*openssl rand -hex 32"):
        key_of_nodes({})


def test_who_may_be_a_node(ends: Any) -> None:
    job = NodeRanks(Settings(("x.py",)), 3, ("127.0.0.1", 1), KEY)
    end = wire(ends[0], LAUNCHER)
    facts = {**facts_here(), "node": 1, "nodes": 3, "workers": 2, "process": "p", "host": "b"}
    assert job._let_in(facts, end) == ""
    assert job._let_in(facts, end) == ""  # the same one again
    assert job._let_in({**facts, "node": 2, "workers": 1}, end) == ""
    for change, problem in [
        ({"nodes": 4}, "node 1 (b) was started with --nodes 4, but node 0 with --nodes 3. All nodes need the same."),
        ({"process": "q"}, "there is a node 1 already, and node 1 (b) is a second one. Give each node a --node-rank of its own."),
        ({"workers": 3}, "node 1 (b) was started with --workers 3, but it had 2 before."),
        ({"node": None}, "it does not say which node it is"),
        ({"node": 0}, "it does not say which node it is"),
        ({"workers": "2"}, "it does not say which node it is"),
    ]:
        assert job._let_in({**facts, **change}, end) == problem
    assert "The clock of b is" in job._let_in({**facts, "clock": 0.0}, end)
    end.close()
    ends[1].close()
