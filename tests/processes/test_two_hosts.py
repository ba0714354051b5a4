"""Two hosts, each with its own network and /etc/hosts: workers find each other whatever a host's own name stands for."""

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from _group import clean_environment

PROGRAM = Path(__file__).with_name("_two_hosts.py")
NUMBERS = ("10.231.7.1", "10.231.7.2")
PORT = 2222  # each host has all ports for itself
SECONDS = 120


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True, timeout=20)


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a cable between them, and folders for files that they have instead of those in /etc."""
    if shutil.which("ip") is None:
        pytest.skip("needs the command ip, to make network namespaces")
    names = (f"replicant-a-{os.getpid()}", f"replicant-b-{os.getpid()}")
    try:
        for name in names:
            ip("netns", "add", name)
            Path("/etc/netns", name).mkdir(parents=True)
    except (subprocess.CalledProcessError, OSError) as error:
        clean_up(names)
        pytest.skip(f"needs the right to make network namespaces: {error}")
    try:
        ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
        for name, number in zip(names, NUMBERS, strict=True):
            ip("-n", name, "address", "add", f"{number}/24", "dev", "cable")
            for device in ("cable", "lo"):
                ip("-n", name, "link", "set", device, "up")
        yield names
    finally:
        clean_up(names)


def clean_up(names: tuple[str, str]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True, timeout=20)
        shutil.rmtree(Path("/etc/netns", name), ignore_errors=True)
    if Path("/etc/netns").is_dir() and not any(Path("/etc/netns").iterdir()):
        Path("/etc/netns").rmdir()


def give_names(name: str, lines: list[str]) -> None:
    """What /etc/hosts says on a host; nobody else is asked."""
    folder = Path("/etc/netns", name)
    (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
    (folder / "nsswitch.conf").write_text("hosts: files\n")
    (folder / "resolv.conf").write_text("")


def run_workers(hosts: tuple[str, str], folder: Path, variables: dict[str, str]) -> list[tuple[int, str, object]]:
    """Exit status, errors and answer of a worker on each host."""
    workers = []
    for rank, name in enumerate(hosts):
        environ = clean_environment() | {
            "JAX_PROCESS_ID": str(rank),
            "JAX_NUM_PROCESSES": "2",
            "KERAS_BACKEND": "jax",
            "JAX_PLATFORMS": "cpu",
            "REPLICANT_COMPILATION_CACHE": "0",
            "REPLICANT_START_TIMEOUT": "60",
            "ANSWER": str(folder / f"{rank}.json"),
        }
        command = ["ip", "netns", "exec", name, sys.executable, str(PROGRAM)]
        workers.append(subprocess.Popen(command, env=environ | variables, stderr=subprocess.PIPE, text=True))
    try:
        errors = [worker.communicate(timeout=SECONDS)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    paths = [folder / f"{rank}.json" for rank in range(2)]
    answers = [json.loads(path.read_text()) if path.exists() else None for path in paths]
    return [(worker.returncode, error, answer) for worker, error, answer in zip(workers, errors, answers, strict=True)]


OWN = socket.gethostname()
CASES = {
    # Debian's installer writes this.
    "own name is loopback": ([f"127.0.1.1 {OWN}"], [f"127.0.1.1 {OWN}"], {"JAX_COORDINATOR_ADDRESS": f"{NUMBERS[0]}:{PORT}"}),
    "own name is unknown": ([], [], {"JAX_COORDINATOR_ADDRESS": f"{NUMBERS[0]}:{PORT}"}),
    "coordinator's name is loopback on its own host": (
        ["127.0.1.1 first"],
        [f"{NUMBERS[0]} first"],
        {"JAX_COORDINATOR_ADDRESS": f"first:{PORT}", "JAX_COORDINATOR_BIND_ADDRESS": f"0.0.0.0:{PORT}"},
    ),
}


@pytest.mark.cases("own name is loopback")
@pytest.mark.parametrize(("first", "second", "variables"), CASES.values(), ids=CASES)
@pytest.mark.long_cases("own name is loopback")
def test_workers_of_two_hosts_exchange(
    hosts: tuple[str, str], tmp_path: Path, first: list[str], second: list[str], variables: dict[str, str]
) -> None:
    give_names(hosts[0], first)
    give_names(hosts[1], second)
    for status, error, answer in run_workers(hosts, tmp_path, variables):
        assert status == 0, error[-3000:]
        assert answer == [3.0, 3.0, 3.0]


STEPS = Path(__file__).with_name("_two_hosts_steps.py")
HEARTBEAT_SECONDS = 5
NOBODYS_ADDRESS = "02:00:00:00:00:99"
NUM_CUTS = 20  # in full


def set_cable(hosts: tuple[str, str], *, whole: bool) -> None:
    """Cut the cable without a word to either end (what is sent has no receiver), or mend it."""
    for name, other in zip(hosts, reversed(NUMBERS), strict=True):
        ip("-n", name, "neigh", "replace", other, "lladdr", NOBODYS_ADDRESS, "nud", "permanent", "dev", "cable")
        if whole:
            ip("-n", name, "neigh", "del", other, "dev", "cable")  # it asks for the address again


def start_worker(name: str, rank: int, folder: Path) -> subprocess.Popen[str]:
    environ = clean_environment() | {
        "JAX_PROCESS_ID": str(rank),
        "JAX_NUM_PROCESSES": "2",
        "JAX_COORDINATOR_ADDRESS": f"{NUMBERS[0]}:{PORT}",
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "REPLICANT_COMPILATION_CACHE": str(folder.parent / "programs"),
        "REPLICANT_START_TIMEOUT": "60",
        "REPLICANT_HEARTBEAT_TIMEOUT": str(HEARTBEAT_SECONDS),
        "PROGRESS": str(folder / f"{rank}.progress"),
    }
    command = ["ip", "netns", "exec", name, sys.executable, str(STEPS)]
    with (folder / f"{rank}.err").open("w") as err:
        return subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=err, text=True)


def wait_until(is_true, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.05)
    return is_true()


def cut(hosts: tuple[str, str], folder: Path, after_seconds: float, for_seconds: float | None) -> str:
    """Cut the cable so many seconds after the workers have met, and mend it after others or never. What became of the workers."""
    folder.mkdir()
    set_cable(hosts, whole=True)
    for name, number in zip(hosts, NUMBERS, strict=True):
        give_names(name, [f"{number} {OWN}"])
    workers = [start_worker(name, rank, folder) for rank, name in enumerate(hosts)]
    progress = [folder / f"{rank}.progress" for rank in range(2)]
    errors = [folder / f"{rank}.err" for rank in range(2)]
    try:
        wait_until(lambda: all(path.exists() for path in progress) or any(w.poll() is not None for w in workers), SECONDS)
        assert all(path.exists() for path in progress), [path.read_text() for path in errors]
        time.sleep(after_seconds)
        set_cable(hosts, whole=False)
        limit = time.monotonic() + HEARTBEAT_SECONDS + 5
        if for_seconds is not None:
            time.sleep(for_seconds)
            set_cable(hosts, whole=True)
            before = [path.read_text() for path in progress]
            if wait_until(
                lambda: all(path.read_text() != old for path, old in zip(progress, before, strict=True)), limit - time.monotonic()
            ):
                assert [worker.poll() for worker in workers] == [None, None]
                return "both went on"
        assert wait_until(lambda: all(worker.poll() is not None for worker in workers), limit - time.monotonic()), [
            (worker.poll(), path.read_text()) for worker, path in zip(workers, errors, strict=True)
        ]
        for rank, (worker, path) in enumerate(zip(workers, errors, strict=True)):
            text = path.read_text()
            assert worker.returncode not in (0, -6), text  # -6: an abort
            assert "WorkerLostError" in text or f"Worker {rank} of 2 ends" in text, text
            assert f"worker {1 - rank} ({OWN}" in text or NUMBERS[1 - rank] in text, text
            assert "*** Check failure stack trace" not in text, text
            assert "Fatal Python error" not in text, text
        return "both ended"
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


@pytest.mark.long
def test_a_cable_that_is_cut_ends_both_workers(hosts: tuple[str, str], tmp_path: Path) -> None:
    assert cut(hosts, tmp_path / "cut", 1.0, None) == "both ended"


@pytest.mark.long
def test_a_cable_that_is_mended_soon_costs_nothing(hosts: tuple[str, str], tmp_path: Path) -> None:
    assert cut(hosts, tmp_path / "cut", 1.0, 1.0) == "both went on"


@pytest.mark.slow
def test_a_cable_that_is_cut_at_any_moment(hosts: tuple[str, str], chaos: Any, tmp_path: Path, capsys: Any) -> None:
    for number in range(chaos.num_runs(NUM_CUTS)):
        rng = random.Random(f"{chaos.seed} {number}")
        after_seconds = rng.uniform(0, 4)
        for_seconds = rng.choice(
            [None, rng.uniform(0, HEARTBEAT_SECONDS - 1), rng.uniform(HEARTBEAT_SECONDS, HEARTBEAT_SECONDS + 4)]
        )
        said = cut(hosts, tmp_path / str(number), after_seconds, for_seconds)
        with capsys.disabled():
            print(f"\nseed {chaos.seed}, cut {number}: after {after_seconds:.1f} s, for {for_seconds} s: {said}")
