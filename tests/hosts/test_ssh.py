"""``replicant launch --hosts``: workers that ssh starts on other hosts, what becomes of them, and that none is left."""

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from _bench import Bench, send_signal, wait_until
from _sshd import connect, need_sshd

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("_hosts_program.py")
HEARTBEAT = 6
GRACE_SECONDS = 8.0  # on a busy machine
SECONDS = 90.0


class Launched:
    """A launcher on the first host, whose workers are on all of them."""

    def __init__(self, bench: Bench, tmp_path: Path, *arguments: str, hosts: str = "node-a,node-b"):
        self.bench, self.folder, self.log = bench, tmp_path / "job", tmp_path / "launcher"
        self.folder.mkdir()
        command = [sys.executable, "-m", "replicant", "launch", "--hosts", hosts, "--heartbeat", str(HEARTBEAT), "--start", "60"]
        self.launcher = bench.hosts[0].start([*command, "--log-dir", str(tmp_path / "logs"), *arguments], self.log)

    def end(self) -> tuple[int | None, str]:
        """How the launcher has ended, and what it has printed."""
        wait_until(lambda: self.launcher.poll() is not None, SECONDS)
        return self.launcher.poll(), self.log.read_text()

    def wait_for(self, count: int, generation: int = 0) -> None:
        """Wait until so many workers of a generation run."""
        wait_until(lambda: len(list(self.folder.glob(f"{generation}-*"))) == count or self.launcher.poll() is not None, SECONDS)
        assert len(list(self.folder.glob(f"{generation}-*"))) == count, self.log.read_text()

    def workers_on(self, host: int) -> int:
        """The number of processes of workers and agents on a host."""
        lines = 'for file in /proc/[0-9]*/cmdline; do tr "\\0" " " < $file; done 2>/dev/null || true'
        found = self.bench.hosts[host].run("sh", "-c", lines)
        return found.count("_hosts_program.py ") + found.count("._agent import main")


@pytest.fixture
def launch(make_bench: Callable[..., Bench], tmp_path: Path) -> Callable[..., Launched]:
    """``launch(*arguments, hosts=...)`` starts a job on hosts that ssh reaches."""
    need_sshd()

    def start(*arguments: str, hosts: str = "node-a,node-b") -> Launched:
        count = len(hosts.split(","))
        bench = make_bench(count)
        connect(bench, tmp_path / "ssh", range(1, count))
        return Launched(bench, tmp_path, *arguments, hosts=hosts)

    return start


def test_every_host_runs_its_workers(launch: Callable[..., Launched], tmp_path: Path) -> None:
    job = launch(str(PROGRAM), str(tmp_path / "job"), "ends", hosts="node-a:2,node-b:1,node-c:2")
    code, text = job.end()
    assert code == 0, text
    places = ["node-a", "node-a", "node-b", "node-c", "node-c"]
    expected = [f"[{rank}] rank {rank} of 5 on {host}, generation 0" for rank, host in enumerate(places)]
    assert sorted(text.splitlines()) == expected
    logs = [(tmp_path / "logs" / f"rank-{rank}.log").read_text().splitlines()[1:] for rank in range(5)]
    assert logs == [[line.removeprefix(f"[{rank}] ")] for rank, line in enumerate(expected)]
    assert wait_until(lambda: not any(map(job.workers_on, range(3))), 10)


def test_a_failed_worker_is_started_again_with_all_others(launch: Callable[..., Launched], tmp_path: Path) -> None:
    code, text = launch("--max-restarts", "1", str(PROGRAM), str(tmp_path / "job"), "fails", "1").end()
    assert code == 0, text
    assert "rank 1 (host node-b, pid " in text
    assert "ended with exit code 7" in text
    assert "[1] rank 1 of 2 on node-b, generation 1" in text


def test_an_exit_code_is_passed_on(launch: Callable[..., Launched], tmp_path: Path) -> None:
    code, text = launch(str(PROGRAM), str(tmp_path / "job"), "fails", "1").end()
    assert (code, "[1] it fails" in text) == (7, True), text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_its_launcher(launch: Callable[..., Launched], tmp_path: Path, number: int) -> None:
    job = launch(str(PROGRAM), str(tmp_path / "job"), "waits")
    job.wait_for(2)
    assert job.workers_on(1) > 0
    send_signal(job.launcher, number)
    began = time.monotonic()
    wait_until(lambda: not job.workers_on(0) and not job.workers_on(1), HEARTBEAT + GRACE_SECONDS)
    assert (job.workers_on(0), job.workers_on(1)) == (0, 0), (time.monotonic() - began, job.log.read_text())
    code, text = job.end()
    assert code == (130 if number == signal.SIGINT else -9), text


@pytest.mark.parametrize(("host", "what"), [(0, "BatchMode=yes"), (1, "._agent import main")], ids=["ssh", "the agent"])
def test_a_killed_connection_ends_its_workers(launch: Callable[..., Launched], tmp_path: Path, host: int, what: str) -> None:
    job = launch(str(PROGRAM), str(tmp_path / "job"), "waits")
    job.wait_for(2)
    job.bench.hosts[host].run("sh", "-c", f"kill -9 $(grep -la '{what}' /proc/[0-9]*/cmdline | cut -d/ -f3 | grep -vx $$) || true")
    code, text = job.end()
    assert code == 137, text
    assert "rank 1 (host node-b, pid " in text
    assert "is lost with its host: the connection to node-b is lost" in text
    assert wait_until(lambda: not job.workers_on(1), GRACE_SECONDS)


def test_both_sides_of_a_cut_end(launch: Callable[..., Launched], tmp_path: Path) -> None:
    job = launch(str(PROGRAM), str(tmp_path / "job"), "waits", hosts="node-a,node-b,node-c")
    job.wait_for(3)
    job.bench.cut(1)
    code, text = job.end()
    assert code == 137, text
    assert "is lost with its host: nothing was heard from node-b for 6 s" in text
    wait_until(lambda: not any(map(job.workers_on, range(3))), GRACE_SECONDS)
    assert [job.workers_on(host) for host in range(3)] == [0, 0, 0]


def test_a_short_cut_is_survived(launch: Callable[..., Launched], tmp_path: Path) -> None:
    job = launch("--heartbeat", "20", str(PROGRAM), str(tmp_path / "job"), "waits")
    job.wait_for(2)
    job.bench.cut(1)
    time.sleep(4)
    job.bench.heal()
    time.sleep(3)
    assert job.launcher.poll() is None, job.log.read_text()
    assert job.workers_on(1) > 0


def test_a_host_that_is_healed_comes_back(launch: Callable[..., Launched], tmp_path: Path) -> None:
    job = launch("--max-restarts", "1", str(PROGRAM), str(tmp_path / "job"), "waits")
    job.wait_for(2)
    job.bench.cut(1)
    assert wait_until(lambda: "waiting for node-b to be there again" in job.log.read_text(), SECONDS), job.log.read_text()
    assert wait_until(lambda: not job.workers_on(1), GRACE_SECONDS)
    job.bench.heal()
    job.wait_for(2, generation=1)


def test_a_dead_host_ends_the_job_with_its_name(launch: Callable[..., Launched], tmp_path: Path) -> None:
    job = launch("--max-restarts", "3", "--start", "25", str(PROGRAM), str(tmp_path / "job"), "waits")
    job.wait_for(2)
    job.bench.lose_power(1)
    code, text = job.end()
    assert code == 1, text
    assert "node-b did not come back within 25 s (--start): ssh cannot log in to node-b" in text


def test_what_a_host_prints_at_the_login_does_no_harm(make_bench: Callable[..., Bench], tmp_path: Path) -> None:
    need_sshd()
    bench = make_bench(2, folder="noisy")
    connect(bench, tmp_path / "noisy-ssh", [1])
    (tmp_path / "noisy-ssh" / "home-node-b" / ".ssh" / "rc").write_text("echo Welcome; echo to node-b >&2; printf 'no end'\n")
    assert bench.hosts[0].run("ssh", "node-b", "true") == "Welcome\nno end"
    job = Launched(bench, tmp_path, str(PROGRAM), str(tmp_path / "job"), "ends")
    code, text = job.end()
    assert code == 0, text
    assert "[1] rank 1 of 2 on node-b, generation 0" in text


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("/nowhere/python", "node-b has no /nowhere/python: "),
        ("/bin/false", "the agent on node-b has ended with exit code 1: "),
        ("{hangs}", "node-b gave no answer within 10 s"),
        ("{old}", "node-b cannot load Replicant with {old} (Python 3"),
    ],
)
def test_interpreters_that_run_no_agent(launch: Callable[..., Launched], tmp_path: Path, python: str, message: str) -> None:
    scripts = {name: tmp_path / name for name in ("hangs", "old")}
    scripts["hangs"].write_text("#!/bin/sh\nsleep 100\n")
    scripts["old"].write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    for script in scripts.values():
        script.chmod(0o755)
    names = {name: str(script) for name, script in scripts.items()}
    job = launch("--start", "10", "--python", python.format(**names), str(PROGRAM), str(tmp_path / "job"), "ends")
    code, text = job.end()
    assert code == 1, text
    assert message.format(**names) in text
    assert not list(job.folder.iterdir())


def test_the_key_is_in_no_command_line_and_no_environment(launch: Callable[..., Launched], tmp_path: Path) -> None:
    job = launch(str(PROGRAM), str(tmp_path / "job"), "waits")
    job.wait_for(2)
    for host in job.bench.hosts:
        key = host.run(
            "sh", "-c", "cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep REPLICANT_SUPERVISOR_KEY= | cut -d= -f2 | sort -u"
        )
        assert len(key.split()) == 1  # that of the workers, which their environment has, as on one machine
        everything = host.run("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert key.strip() not in everything


def test_ctrl_c_while_a_lost_host_is_awaited(launch: Callable[..., Launched], tmp_path: Path) -> None:
    """ssh waits for an answer of the host, for 30 s. The user does not."""
    job = launch("--max-restarts", "1", str(PROGRAM), str(tmp_path / "job"), "waits")
    job.wait_for(2)
    for link in job.bench.links:
        link.firewall = lambda source, target: False
    assert wait_until(lambda: "waiting for node-b to be there again" in job.log.read_text(), SECONDS), job.log.read_text()
    time.sleep(2)  # ssh is trying
    send_signal(job.launcher, signal.SIGINT)
    assert wait_until(lambda: job.launcher.poll() is not None, 2 * GRACE_SECONDS), job.log.read_text()
    assert job.end()[0] == 130
    assert "BatchMode=yes" not in job.bench.hosts[0].run("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")


def test_two_names_of_one_host(launch: Callable[..., Launched], tmp_path: Path) -> None:
    job = launch(str(PROGRAM), str(tmp_path / "job"), "ends", hosts="node-b,10.231.8.2")
    code, text = job.end()
    assert code == 1, text
    assert "node-b and 10.231.8.2 are the same host. Write it once, with the number of all its workers, as in node-b:2." in text
    assert not list(job.folder.iterdir())
