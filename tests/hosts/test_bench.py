"""The bench itself: hosts have names and addresses of their own, a cut cuts, delays are those asked for, and nothing is left."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from _bench import Bench, wait_until

SERVER = """
import socket, threading
listener = socket.create_server(("0.0.0.0", 7000))
def echo(connection):
    while data := connection.recv(1 << 16):
        connection.sendall(data)
while True:
    threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()
"""
CLIENT = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 7000), timeout=float(sys.argv[2])) as connection:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for _ in range(int(sys.argv[4])):
        began = time.monotonic()
        connection.sendall(bytes(int(sys.argv[3])))
        left = int(sys.argv[3])
        while left:
            left -= len(connection.recv(1 << 16))
        times.append(time.monotonic() - began)
print(min(times))
"""


def serve(bench: Bench, number: int, tmp_path: Path) -> None:
    log = tmp_path / "server"
    bench.hosts[number].start([sys.executable, "-I", "-S", "-c", SERVER], log)
    assert wait_until(lambda: ":1B58" in bench.hosts[number].run("cat", "/proc/net/tcp"), 20), log.read_text()


def ask(bench: Bench, source: int, target: str, *, seconds: float = 5.0, size: int = 1, times: int = 1) -> float:
    """The shortest time of a message to a server and back."""
    return float(
        bench.hosts[source].run(sys.executable, "-I", "-S", "-c", CLIENT, target, str(seconds), str(size), str(times), seconds=60)
    )


def is_answered(bench: Bench, source: int, target: str) -> bool:
    try:
        return ask(bench, source, target, seconds=0.5) > 0
    except AssertionError as error:
        if not re.search("TimeoutError|No route to host", str(error)):
            raise
        return False


def test_hosts_have_names_addresses_and_processes_of_their_own(make_bench: Callable[..., Bench], tmp_path: Path) -> None:
    bench = make_bench(3)
    assert [host.run("hostname").strip() for host in bench.hosts] == ["node-a", "node-b", "node-c"]
    assert [host.address for host in bench.hosts] == ["10.231.8.1", "10.231.8.2", "10.231.8.3"]
    first = bench.hosts[0]
    assert [first.run("getent", "hosts", name).split()[0] for name in ("node-a", "node-b")] == ["127.0.1.1", "10.231.8.2"]
    assert first.run("ip", "-o", "link").count("\n") == 2  # loopback, and the device to the switch: no way out
    assert "default" not in first.run("ip", "route")
    first.start(["sleep", "99"], tmp_path / "sleep")
    assert wait_until(lambda: "sleep" in first.run("sh", "-c", "cat /proc/[0-9]*/comm"), 5)
    assert "sleep" not in bench.hosts[1].run("sh", "-c", "cat /proc/[0-9]*/comm")


def test_a_cut_cuts_and_heals(make_bench: Callable[..., Bench], tmp_path: Path) -> None:
    bench = make_bench(3)
    serve(bench, 1, tmp_path)
    assert is_answered(bench, 0, "node-b")
    bench.cut(0)
    assert [is_answered(bench, 0, "node-b"), is_answered(bench, 2, "node-b")] == [False, True]
    bench.heal()
    assert is_answered(bench, 0, "node-b")


@pytest.mark.parametrize("direction", ["out", "back"])
def test_a_cut_of_one_direction(make_bench: Callable[..., Bench], tmp_path: Path, direction: str) -> None:
    bench = make_bench(2)
    serve(bench, 1, tmp_path)
    assert is_answered(bench, 0, "node-b")  # both know each other's Ethernet address now
    bench.cut(0, out=direction == "out", back=direction == "back")
    whole, cut = (bench.link(1, 0), bench.link(0, 1)) if direction == "out" else (bench.link(0, 1), bench.link(1, 0))
    time.sleep(0.1)  # for frames on their way
    passed = whole.passed, cut.passed
    assert not is_answered(bench, 0, "node-b")
    assert cut.passed == passed[1]
    if direction == "back":
        assert whole.passed > passed[0]  # the question arrives, and the answer does not


def test_delay_and_rate_are_about_those_asked_for(make_bench: Callable[..., Bench], tmp_path: Path) -> None:
    bench = make_bench(2)
    serve(bench, 1, tmp_path)
    assert ask(bench, 0, "node-b", times=5) < 0.05
    for link in bench.links:
        link.delay = 0.05
    assert 0.1 <= ask(bench, 0, "node-b", times=5) < 0.3
    for link in bench.links:
        link.delay, link.rate = 0.0, 8e6
    assert 0.2 <= ask(bench, 0, "node-b", size=200_000, times=3) < 2.0


def test_lost_frames_are_sent_again(make_bench: Callable[..., Bench], tmp_path: Path) -> None:
    bench = make_bench(2, seed=1)
    serve(bench, 1, tmp_path)
    bench.link(0, 1).loss = 0.1
    sent = bench.link(0, 1).passed
    assert ask(bench, 0, "node-b", size=500_000, seconds=30) > 0
    assert bench.link(0, 1).passed - sent > 300


def test_a_host_without_power_says_nothing(make_bench: Callable[..., Bench], tmp_path: Path) -> None:
    bench = make_bench(2)
    serve(bench, 1, tmp_path)
    client = "import socket; c = socket.create_connection(('node-b', 7000)); print('there', flush=True); print(c.recv(1))"
    log = tmp_path / "client"
    waiting = bench.hosts[0].start([sys.executable, "-I", "-S", "-c", client], log)
    assert wait_until(lambda: log.read_text() == "there\n", 10)
    bench.lose_power(1)
    assert [process.poll() is None for process in bench.hosts[1].processes] == [False]
    time.sleep(0.5)
    assert waiting.poll() is None  # neither an end nor a reset has come


LEAKS = """
import sys, time
sys.path[:0] = sys.argv[3:]
from pathlib import Path
from _bench import Bench
bench = Bench(2, Path(sys.argv[1]))
for host in bench.hosts:
    host.start(["sleep", sys.argv[2]], Path(sys.argv[1], host.name))
print("ready", flush=True)
time.sleep(600)
"""


SLEEP = f"98765.{os.getpid()}"


def sleepers() -> list[str]:
    """The processes of this test's hosts that sleep."""
    found = subprocess.run(["ps", "-eo", "args"], check=True, capture_output=True, text=True, timeout=20).stdout
    return [line for line in found.splitlines() if line == f"sleep {SLEEP}"]


@pytest.mark.usefixtures("_hosts_allowed")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_bench_whose_process_dies(tmp_path: Path, number: int) -> None:
    here = Path(__file__).parent
    command = [sys.executable, "-c", LEAKS, str(tmp_path), SLEEP, str(here), str(here.parent / "processes")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout.readline() == b"ready\n"
        assert wait_until(lambda: len(sleepers()) == 2, 10), sleepers()
        os.kill(process.pid, number)
        process.wait(20)
    assert wait_until(lambda: not sleepers(), 10), sleepers()
