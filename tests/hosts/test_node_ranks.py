"""``replicant launch --node-rank``: nodes that come to node 0 by themselves, what becomes of them, and who is kept out."""

import dataclasses
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from _bench import Bench, send_signal, wait_until

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("_hosts_program.py")
HEARTBEAT = 6
GRACE_SECONDS = 8.0  # on a busy machine
SECONDS = 90.0
KEY = "0123456789abcdef" * 4


@dataclasses.dataclass
class Node:
    """One node's launcher."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def end(self) -> tuple[int | None, str]:
        """How it has ended, and what it has printed."""
        wait_until(lambda: self.process.poll() is not None, SECONDS)
        return self.process.poll(), self.text

    @property
    def text(self) -> str:
        return self.log.read_text()

    def kill(self, number: int) -> None:
        """Send it a signal."""
        send_signal(self.process, number)

    def wait_for(self, text: str) -> None:
        """Wait until it has printed a text."""
        wait_until(lambda: text in self.text or self.process.poll() is not None, SECONDS)
        assert text in self.text, self.text


class Nodes:
    """A job of nodes that are started one by one."""

    def __init__(self, bench: Bench, folder: Path):
        self.bench, self.folder = bench, folder / "job"
        self.folder.mkdir()
        self._logs, self._number = folder, 0

    def start(self, rank: int, *arguments: str, nodes: int = 2, host: int | None = None, key: str | None = KEY) -> Node:
        self._number += 1
        log = self._logs / f"launcher-{self._number}"
        command = [sys.executable, "-m", "replicant", "launch", "--nodes", str(nodes), "--node-rank", str(rank)]
        command += ["--address", f"{self.bench.hosts[0].address}:2900", "--heartbeat", str(HEARTBEAT), "--start", "60"]
        environ = {} if key is None else {"REPLICANT_JOB_KEY": key}
        return Node(self.bench.hosts[rank if host is None else host].start([*command, *arguments], log, environ), log)

    def program(self, *what: str) -> list[str]:
        return [str(PROGRAM), str(self.folder), *what]

    def wait_for(self, count: int, generation: int = 0) -> None:
        """Wait until so many workers of a generation run."""
        there = lambda: len(list(self.folder.glob(f"{generation}-*"))) >= count  # noqa: E731
        assert wait_until(there, SECONDS), [path.read_text() for path in self._logs.glob("launcher-*")]

    def workers_on(self, host: int) -> int:
        """The number of processes of workers on a host. A launcher has the program in its command line, too."""
        lines = 'for file in /proc/[0-9]*/cmdline; do tr "\\0\\n" "  " < $file; echo; done 2>/dev/null || true'
        found = self.bench.hosts[host].run("sh", "-c", lines).splitlines()
        return sum("_hosts_program.py" in line and "launch --nodes" not in line for line in found)


@pytest.fixture
def make_nodes(make_bench: Callable[..., Bench], tmp_path: Path) -> Callable[[int], Nodes]:
    return lambda count: Nodes(make_bench(count), tmp_path)


def test_ranks_follow_the_nodes(make_nodes: Callable[[int], Nodes]) -> None:
    job = make_nodes(3)
    last = job.start(2, "--workers", "1", *job.program("ends"), nodes=3)
    last.wait_for("node 2 (node-c) does not reach node 0 at 10.231.8.1:2900 yet: a host answers, but nobody listens at this port.")
    first = job.start(0, "--workers", "2", *job.program("ends"), nodes=3)
    middle = job.start(1, "--workers", "2", *job.program("ends"), nodes=3)
    assert [node.end()[0] for node in (first, middle, last)] == [0, 0, 0], first.text
    places = ["node-a", "node-a", "node-b", "node-b", "node-c"]
    printed = sorted(line for line in first.text.splitlines() if line.startswith("["))
    assert printed == [f"[{rank}] rank {rank} of 5 on {host}, generation 0" for rank, host in enumerate(places)]


def test_an_exit_code_reaches_all_nodes(make_nodes: Callable[[int], Nodes]) -> None:
    job = make_nodes(2)
    nodes = [job.start(rank, *job.program("fails", "1")) for rank in range(2)]
    assert [node.end()[0] for node in nodes] == [7, 7]
    assert "rank 1 (host node-b, pid " in nodes[0].text
    assert "node 1 (node-b): the job has ended with exit code 7." in nodes[1].text


@pytest.mark.parametrize("host", [0, 1])
def test_ctrl_c_on_any_node_ends_the_job(make_nodes: Callable[[int], Nodes], host: int) -> None:
    job = make_nodes(2)
    nodes = [job.start(rank, *job.program("waits")) for rank in range(2)]
    job.wait_for(2)
    nodes[host].kill(signal.SIGINT)
    assert [node.end()[0] for node in nodes] == [130, 130], [node.text for node in nodes]
    assert [job.workers_on(each) for each in range(2)] == [0, 0]


def test_nodes_end_when_node_0_is_killed(make_nodes: Callable[[int], Nodes]) -> None:
    job = make_nodes(2)
    nodes = [job.start(rank, *job.program("waits")) for rank in range(2)]
    job.wait_for(2)
    nodes[0].kill(signal.SIGKILL)
    code, text = nodes[1].end()
    assert code == 1, text
    assert "node 1 (node-b) has lost node 0 at 10.231.8.1:2900: the connection is lost" in text
    assert "Its workers have been ended." in text
    assert wait_until(lambda: not any(map(job.workers_on, range(2))), GRACE_SECONDS)


def test_a_cut_ends_both_sides(make_nodes: Callable[[int], Nodes]) -> None:
    job = make_nodes(2)
    nodes = [job.start(rank, *job.program("waits")) for rank in range(2)]
    job.wait_for(2)
    job.bench.cut(1, out=False)  # node 1 is heard, and hears nothing
    wait_until(lambda: all(node.process.poll() is not None for node in nodes), HEARTBEAT + 2 * GRACE_SECONDS)
    assert [node.process.poll() for node in nodes] == [137, 1], [node.text for node in nodes]
    assert "is lost with its host: " in nodes[0].text
    assert "node 1 (node-b)" in nodes[0].text
    assert "has lost node 0 at 10.231.8.1:2900: the launcher has heard nothing of it for " in nodes[1].text
    assert [job.workers_on(each) for each in range(2)] == [0, 0]


def test_a_node_that_was_cut_off_comes_back(make_nodes: Callable[[int], Nodes]) -> None:
    job = make_nodes(2)
    nodes = [job.start(rank, "--max-restarts", "1", *job.program("waits")) for rank in range(2)]
    job.wait_for(2)
    job.bench.cut(1)
    nodes[1].wait_for("It tries to come back for 60 s (--start).")
    nodes[0].wait_for("waiting for node 1 (node-b) to be there again")
    job.bench.heal()
    job.wait_for(2, generation=1)


def test_a_node_that_is_started_again_comes_back(make_nodes: Callable[[int], Nodes]) -> None:
    job = make_nodes(2)
    nodes = [job.start(rank, "--max-restarts", "1", *job.program("waits")) for rank in range(2)]
    job.wait_for(2)
    nodes[1].kill(signal.SIGKILL)
    nodes[0].wait_for("waiting for node 1 (node-b) to be there again")
    job.start(1, "--max-restarts", "1", *job.program("waits"))
    job.wait_for(2, generation=1)


def test_without_a_key_no_node_starts(make_nodes: Callable[[int], Nodes]) -> None:
    job = make_nodes(1)
    for key, message in [(None, "REPLICANT_JOB_KEY is not set."), ("short", "REPLICANT_JOB_KEY has 5 characters")]:
        code, text = job.start(0, *job.program("ends"), key=key).end()
        assert (code, message in text) == (1, True), text


STRANGER = """
import json, socket, sys
with socket.create_connection((sys.argv[1], 2900), timeout=20) as connection:
    print(sorted(json.loads(connection.makefile().readline())))
    connection.sendall(sys.argv[2].encode() + b"\\n")
    try:
        print(connection.makefile().read())
    except ConnectionResetError:
        pass  # it has not read everything
"""


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ('{"nonce": "1", "proof": "2"}', '{"refused": "its REPLICANT_JOB_KEY is not that of this job"}'),
        ("GET / HTTP/1.0", ""),
        ("[" * 5000, ""),
        ('{"nonce": 1, "proof": null}', '{"refused": "its REPLICANT_JOB_KEY is not that of this job"}'),
    ],
    ids=["a wrong proof", "no node", "a long line", "other types"],
)
def test_a_stranger_is_kept_out_and_seen(make_nodes: Callable[[int], Nodes], line: str, answer: str) -> None:
    job = make_nodes(3)
    first = job.start(0, *job.program("ends"))
    first.wait_for("node 0 waits at")
    said = job.bench.hosts[2].run(sys.executable, "-I", "-S", "-c", STRANGER, job.bench.hosts[0].address, line)
    assert said.strip() == f"['nonce']\n{answer}".strip()
    first.wait_for("somebody at 10.231.8.3 has connected without the key of this job (REPLICANT_JOB_KEY), and was turned away.")
    other = job.start(1, *job.program("ends"))
    assert (first.end()[0], other.end()[0]) == (0, 0), first.text


OTHER_SERVICE = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], 2900))
print("listens", flush=True)
while True:
    connection = listener.accept()[0]
    connection.sendall(sys.argv[2].encode())
    kept = connection if sys.argv[3] == "stays" else connection.close()
"""


@pytest.mark.parametrize(
    ("says", "then", "message"),
    [
        ("SSH-2.0-OpenSSH_9.2\r\n", "stays", "does not answer like node 0 of `replicant launch`, but with b'SSH-2.0-OpenSSH_9.2"),
        ('{"nonce": "1"}\n{"proof": "2", "run": "3", "patience": 6}\n', "stays", "does not know the key of this job"),
        ("", "closes", "within 8 s (--start): the connection ended (it was closed)"),
        ("", "stays", "within 8 s (--start): the connection ended (it says nothing, as node 0 would)"),
    ],
    ids=["ssh", "a forger", "closes", "is silent"],
)
def test_another_service_at_the_address(
    make_nodes: Callable[[int], Nodes], tmp_path: Path, says: str, then: str, message: str
) -> None:
    job = make_nodes(2)
    log = tmp_path / "service"
    job.bench.hosts[0].start([sys.executable, "-I", "-S", "-c", OTHER_SERVICE, "10.231.8.1", says, then], log)
    assert wait_until(lambda: "listens" in log.read_text(), 20)
    code, text = job.start(1, "--start", "8", *job.program("ends")).end()
    assert code == 1, text
    assert message in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--address", "node-a"],
            "--address node-a:29500: node-a stands for 127.0.1.1 on node-a, where no other host can reach it.",
        ),
        (["--address", "node-z"], "--address node-z:29500: it does not stand for an IPv4 address on node-a"),
    ],
    ids=["its own name", "unknown"],
)
def test_an_address_of_node_0_that_no_other_reaches(make_nodes: Callable[[int], Nodes], arguments: list[str], message: str) -> None:
    job = make_nodes(1)
    code, text = job.start(0, *arguments, *job.program("ends")).end()
    assert code == 1, text
    assert message in text


def test_a_port_that_is_taken(make_nodes: Callable[[int], Nodes]) -> None:
    job = make_nodes(1)
    first = job.start(0, *job.program("ends"))
    first.wait_for("node 0 waits at")
    code, text = job.start(0, *job.program("ends")).end()
    assert code == 1, text
    assert "--address 10.231.8.1:2900 cannot be used: Address already in use." in text
