"""Strangers on this machine: docs/security.md names every port that a job opens, and nothing that is sent there does harm."""

import contextlib
import importlib.util
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from replicant.cluster.wire import _supervisor
from replicant.cluster.wire._supervisor import Heartbeat
from replicant.coordinator.wire import _channel
from replicant.errors import ClusterError, LostProcessError
from replicant.launch.team._connections import Channel

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # test folders are no packages

from _group import clean_environment, free_port  # noqa: E402
from _sockets import family, listeners  # noqa: E402
from _strangers import flood, harass, message, resident, scribble  # noqa: E402

pytestmark = pytest.mark.long

PAGE = HERE.parents[1] / "docs" / "security.md"
SECONDS = 240.0
MESSAGES = 20_000  # of strangers, to each listener
GLOO_MESSAGES = 500  # to each port of gloo's, which keeps a descriptor for each, and aborts when there are no more
MEMORY = 50.0  # MB that a process may need more after them
TRAINING, SERVERS = [str(HERE / "_waiting_training.py")], [str(HERE / "_waiting_servers.py")]
LAUNCH = [sys.executable, "-m", "replicant", "launch", "--workers", "2"]


class Job:
    """The processes of a job that waits in the middle, and how many of them do."""

    def __init__(self, folder: Path, waiting: int):
        self.folder, self.waiting = folder, waiting
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, command: list[str], **more: str) -> None:
        with (self.folder / "output").open("ab") as output:
            environ = (
                clean_environment() | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "REPLICANT_COMPILATION_CACHE": "0"} | more
            )
            self.processes.append(subprocess.Popen(command, env=environ, stdout=output, stderr=output))

    def wait_until(self, condition) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.said()
            assert all(process.poll() is None for process in self.processes), self.said()
            time.sleep(0.05)

    def wait_in_the_middle(self) -> None:
        self.wait_until(lambda: len(list(self.folder.glob("waits-*"))) == self.waiting)

    def found(self) -> dict[int, list[tuple[str, int]]]:
        """Who listens where."""
        return {pid: places for process in self.processes for pid, places in listeners(family(process.pid)).items() if places}

    def end_well(self) -> None:
        """What the job has added up is right, whatever strangers did."""
        (self.folder / "go").touch()
        for process in self.processes:
            assert process.wait(SECONDS) == 0, self.said()
        totals = [path.read_text() for path in self.folder.glob("total-*")]
        assert totals == ["1128.0"] * self.waiting

    @contextlib.contextmanager
    def memory_stays(self) -> Iterator[None]:
        """No process that listens needs much more memory after what happens meanwhile."""
        before = {pid: resident(pid) for pid in self.found()}
        yield
        more = {pid: (_command(pid).split("\0")[2], round(resident(pid) - size, 1)) for pid, size in before.items()}
        print(f"memory in MB: {[*more.values()]}")
        assert max(each for _, each in more.values()) < MEMORY, more

    def said(self) -> str:
        return (self.folder / "output").read_text(errors="replace")[-4000:]


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    made = Job(tmp_path, request.param)
    yield made
    for process in made.processes:
        for pid in reversed(family(process.pid)):
            if pid != process.pid:
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    continue
        process.kill()
        process.wait()


def rows(job: str) -> Counter[tuple[str, str]]:
    """What the page says of a job: who listens, and at which address if all of the job is on one machine."""
    lines = PAGE.read_text().partition("## Every listener")[2].partition("\n## ")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return Counter((each[1], re.search(r"`([^`]+)`", each[3])[1]) for each in cells[2:] if each[0] == job and each[2] != "nothing")


def greets(port: int) -> bool:
    """Whether whoever listens at a port speaks first, and says a number that it has drawn."""
    with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
        try:
            return b'"nonce": "' in connection.recv(4096)
        except TimeoutError:
            return False


def attack(job: Job, seed: int, ports: list[int], gloo: Sequence[int] = ()) -> None:
    """What strangers can do at these ports, to one after the other, and less of it at those of gloo."""
    with job.memory_stays():
        for number, port in enumerate([*ports, *gloo]):
            began = time.monotonic()
            count = GLOO_MESSAGES if port in gloo else MESSAGES
            try:
                harass(port, count, seed + number)
                if port not in gloo:
                    flood(port)
            except AssertionError as error:
                raise AssertionError(f"{error}; {job.found()}:\n{job.said()}") from error
            print(f"port {port}: {count} messages, {time.monotonic() - began:.1f} s")


@pytest.mark.slow
@pytest.mark.parametrize("job", [2], indirect=True)
@pytest.mark.parametrize("elastic", [[], ["--elastic", "1:2"]], ids=["all or none", "elastic"])
def test_a_launched_job(job: Job, elastic: list[str], chaos) -> None:
    """The supervisor, JAX's coordination service and its store, the status page and gloo."""
    page = free_port()
    job.start([*LAUNCH, "--status-port", str(page), *elastic, *TRAINING, str(job.folder)])
    job.wait_in_the_middle()
    launcher, found = job.processes[0].pid, job.found()
    seen = Counter(("launcher" if pid == launcher else "each worker", host) for pid, places in found.items() for host, _ in places)
    seen["each worker", "127.0.0.1"] //= 2
    assert seen == rows("`replicant launch --elastic`" if elastic else "`replicant launch`") + rows(
        "`replicant launch --status-port`"
    )
    gloo = [port for pid, places in found.items() for _, port in places if pid != launcher]
    attack(job, chaos.seed, [port for _, port in found[launcher]], gloo)
    (service,) = [port for _, port in found[launcher] if port != page and not greets(port)]
    with job.memory_stays():
        scribble(service, MESSAGES, chaos.seed)
    assert "was reported by no worker of this job, and is ignored" in job.said()
    with urllib.request.urlopen(f"http://127.0.0.1:{page}/status.json", timeout=SECONDS) as answer:
        assert len(json.load(answer)["workers"]) == 2
    job.end_well()


@pytest.mark.slow
@pytest.mark.parametrize("job", [2], indirect=True)
def test_a_job_of_workers_that_were_told_of_each_other(job: Job, chaos) -> None:
    """The roll call is harassed while process 0 waits for the other worker, and everything else once they have met."""
    port = free_port()
    cluster = {"worker": [f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}"]}

    def begin(index: int) -> None:
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
        job.start([sys.executable, *TRAINING, str(job.folder)], TF_CONFIG=config, REPLICANT_JOB_KEY="k" * 32)

    begin(0)
    job.wait_until(job.found)
    assert list(job.found().values()) == [[("127.0.0.1", port)]]
    attack(job, chaos.seed, [port])
    begin(1)
    job.wait_in_the_middle()
    found, first = job.found(), job.processes[0].pid
    seen = Counter(("process 0" if number == port else "each worker", host) for places in found.values() for host, number in places)
    seen["each worker", "127.0.0.1"] //= 2
    assert seen == rows("workers that find each other")
    assert ("127.0.0.1", port) in found[first]
    attack(job, chaos.seed, [port], [number for places in found.values() for _, number in places if number != port])
    with job.memory_stays():
        scribble(port, MESSAGES, chaos.seed)
    assert "was reported by no worker of this job, and is ignored" in job.said()
    job.end_well()


@pytest.mark.slow
@pytest.mark.parametrize("job", [2], indirect=True)
def test_a_job_of_nodes(job: Job, chaos) -> None:
    """The lobby is harassed while node 0 waits for the other node, and once more when all are there."""
    port = free_port()

    def begin(node: int) -> None:
        where = ["--nodes", "2", "--node-rank", str(node), "--address", f"127.0.0.1:{port}", "--workers", "1"]
        job.start([*LAUNCH[:4], *where, *TRAINING, str(job.folder)], REPLICANT_JOB_KEY="k" * 32)

    begin(0)
    job.wait_until(lambda: ("127.0.0.1", port) in [place for places in job.found().values() for place in places])
    attack(job, chaos.seed, [port])
    begin(1)
    job.wait_in_the_middle()
    first = job.processes[0].pid
    places = job.found()[first]
    assert {("node 0", host) for host, _ in places} == {row for row in rows("`replicant launch --node-rank`") if row[0] == "node 0"}
    attack(job, chaos.seed, [number for _, number in places])
    job.end_well()


@pytest.mark.slow
@pytest.mark.parametrize("job", [2], indirect=True)
def test_a_worker_of_another_job_at_the_same_address(job: Job) -> None:
    """torchrun names its jobs: process 1 of job B comes first, is told whom it has met, and job A forms without it."""
    port = str(free_port())

    def environ(rank: int, run: str) -> dict[str, str]:
        found = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return found | {"TORCHELASTIC_RUN_ID": run, "TORCHELASTIC_RESTART_COUNT": "0"}

    command = [sys.executable, *TRAINING, str(job.folder)]
    job.start(command, **environ(0, "A"))
    job.wait_until(job.found)
    job.start(command, **environ(1, "B"))
    stranger = job.processes.pop()
    assert stranger.wait(SECONDS) == 1
    assert (
        "for one of another job: this worker's job is torchrun: B, process 0's is torchrun: A. If these are two jobs," in job.said()
    )
    job.start(command, **environ(1, "A"))
    job.wait_in_the_middle()
    job.end_well()


@pytest.mark.slow
@pytest.mark.parametrize("job", [1], indirect=True)
def test_a_job_with_parameter_servers(job: Job) -> None:
    """No port at all: there is nothing that a stranger could send anything to."""
    job.start([sys.executable, *SERVERS, str(job.folder), "local"])
    job.wait_in_the_middle()
    assert len(family(job.processes[0].pid)) >= 4
    assert Counter(job.found()) == rows("parameter servers")
    job.end_well()


_KNOCK = """
import sys
from ray._raylet import GcsClient
try:
    print(GcsClient(address=sys.argv[1]).internal_kv_keys(b"", namespace=None, timeout=5))
except Exception as error:
    print(type(error).__name__)
"""


@pytest.mark.slow
@pytest.mark.parametrize("job", [1], indirect=True)
def test_a_job_on_ray(job: Job) -> None:
    if importlib.util.find_spec("ray") is None:  # to import it here would change this process's environment
        pytest.skip("pip install 'replicant-jax[ps]': there is no Ray for this Python or this system")
    job.start([sys.executable, *SERVERS, str(job.folder), "ray"])
    job.wait_in_the_middle()
    found = job.found()
    assert {("Ray's processes", host) for places in found.values() for host, _ in places} == set(rows("parameter servers on Ray"))
    (gcs,) = [f"{host}:{port}" for pid, places in found.items() for host, port in places if "gcs_server" in _command(pid)]
    for environ in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "b" * 64}):
        knock = [sys.executable, "-c", _KNOCK, gcs]
        done = subprocess.run(knock, env=clean_environment() | environ, capture_output=True, text=True, timeout=SECONDS, check=True)
        assert done.stdout == "AuthenticationError\n"
    job.end_well()


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")


def test_the_page_is_complete() -> None:
    """Whatever unpickles in the source is in the page, by file."""
    source = HERE.parents[1] / "src" / "replicant"
    text = PAGE.read_text().partition("## Every unpickling")[2].partition("\n## ")[0]
    told = set(re.findall(r"`([\w/]+/_\w+\.py)`", text))
    files = {str(path.relative_to(source)) for path in source.rglob("*.py") if "pickle.loads" in path.read_text()}
    assert told == files
    assert not [
        path for path in source.rglob("*.py") if re.search(r"pickle\.load\(|allow_pickle=True|\bmarshal\b", path.read_text())
    ]


# In this process: what the job above does, seen from inside.


def test_a_supervisor_hears_nobody_else_and_a_worker_gets_in_meanwhile() -> None:
    heard, is_over = [], threading.Event()
    with Channel(0.05) as channel:
        channel.is_expected = lambda rank, generation, pid: (rank, generation, pid) == (1, 3, os.getpid())

        def poll() -> None:
            while not is_over.is_set():
                heard.extend(channel.poll(0.05))

        port = int(channel.address.rpartition(":")[2])
        threads = [threading.Thread(target=poll), threading.Thread(target=harass, args=(port, MESSAGES, 1))]
        for thread in threads:
            thread.start()
        try:
            time.sleep(0.2)
            worker = Heartbeat(channel.address, channel.key, 1, 3)
            threads[1].join()
            worker.beat(41)
            deadline = time.monotonic() + SECONDS
            while not any(said.get("step") == 41 for _, said in heard):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            is_over.set()
            threads[0].join()
        assert {rank for rank, _ in heard} == {1}
        assert len(channel._door._connections) == 1, "nobody else is left"


@pytest.mark.parametrize("first", [b"", b'{"nonce": "1"}\n'], ids=["before the greeting", "after it"])
def test_a_worker_whose_supervisor_is_somebody_else(monkeypatch: pytest.MonkeyPatch, first: bytes) -> None:
    """Whatever it says: a clear error, in time."""
    monkeypatch.setattr(_supervisor, "_CONNECT_SECONDS", 0.3)
    draw = random.Random(4)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    try:
                        connection.sendall(first)
                        if first:
                            connection.recv(4096)
                        connection.sendall(message(draw))
                        time.sleep(draw.choice([0.0, 0.0, 0.0, 0.5]))
                    except OSError:
                        continue

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            for _ in range(25):
                began = time.monotonic()
                with pytest.raises(ClusterError, match=r"does not answer like|does not know the key|turned this worker away"):
                    Heartbeat(address, "key", 0, 0)
                assert time.monotonic() - began < 5.0
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_broken_wire_is_a_lost_process() -> None:
    """Nobody can reach the socket pairs of parameter servers; if a process of ours writes nonsense, it counts as gone."""
    draw = random.Random(5)
    for _ in range(300):
        one, other = _channel.Channel.pair("one", "other")
        other.socket.setblocking(True)
        other.socket.sendall(draw.choice([message(draw)[:1000], _framed(draw)]))
        other.close()
        with pytest.raises((_channel.Closed, LostProcessError)):
            _receive_all(one)
        one.close()


def _receive_all(channel: _channel.Channel) -> None:
    while True:
        channel.receive(0.2, "reading nonsense")


def _framed(draw: random.Random) -> bytes:
    """A frame as it should be, around a body that is no pickle."""
    body = b"\xff" + draw.randbytes(draw.randrange(100))  # no opcode
    return _channel._HEAD.pack(len(body), draw.choice([0, 3])) + body
