"""``replicant launch`` with real processes that do all that processes do."""

import dataclasses
import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from replicant.errors import ConfigurationError
from replicant.launch import Settings, Supervisor
from replicant.launch.console import _clock
from replicant.launch.team import _generations, _service

SCRIPT = Path(__file__).with_name("_launched.py")
SECONDS = 120.0  # for what happens at once, on a machine that does much else


@dataclasses.dataclass
class Result:
    code: int
    out: list[str]
    err: str
    logs: list[bytes]


def launch(folder: Path, what: str, *arguments: str, workers: int = 2, out: Any = None, err: Any = None, **settings: Any) -> Result:
    """Run a job in this process."""
    shown, said = out or io.StringIO(), err or io.StringIO()
    made = Settings((str(SCRIPT), what, *arguments), num_workers=workers, log_dir=folder / "logs", **settings)
    environ = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    code = Supervisor(made, shown, said, environ).run()
    logs = [(folder / "logs" / f"rank-{rank}.log").read_bytes() for rank in range(workers)]
    return Result(code, shown.getvalue().splitlines(), said.getvalue(), logs)


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":  # ended; whoever inherited it has yet to look
            return
        time.sleep(0.02)
    pytest.fail(f"process {pid} is still there")


def test_output_goes_to_one_log_per_rank_and_to_the_console(tmp_path: Path) -> None:
    result = launch(tmp_path, "output", "--rate", "1", workers=3)
    assert (result.code, result.err) == (0, "")
    expected = [f"out of {{}} of 3: {['--rate', '1']}", "err", "a line without an end"]
    for rank in range(3):
        lines = [text.format(rank) for text in expected]
        assert sorted(line for line in result.out if line.startswith(f"[{rank}] ")) == sorted(f"[{rank}] {line}" for line in lines)
        head, *rest = result.logs[rank].decode().splitlines()
        assert re.fullmatch(rf"replicant launch: generation 0, rank {rank} of 3, \d{{4}}-\S+", head)
        assert sorted(rest) == sorted(lines)


def test_logs_are_added_to_and_a_temporary_one_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        result = launch(tmp_path, "output", workers=1)
    assert result.logs[0].count(b"generation 0") == 2
    assert len(result.out) == 3, "the log of the job before is not shown"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert Supervisor(Settings((str(SCRIPT), "output")), io.StringIO(), io.StringIO()).run() == 0
    assert not list(tmp_path.glob("replicant-launch-*"))
    err = io.StringIO()
    assert Supervisor(Settings((str(SCRIPT), "nothing")), io.StringIO(), err).run() == 1
    (kept,) = tmp_path.glob("replicant-launch-*")
    assert f"Logs: {kept}" in err.getvalue()
    assert b"KeyError: 'nothing'" in (kept / "rank-0.log").read_bytes()


def test_output_of_any_kind(tmp_path: Path) -> None:
    long = launch(tmp_path / "long", "no_newline")
    assert long.logs[0].endswith(b"x" * 100_000)
    assert sorted(map(len, long.out)) == [100_000 % 65536 + 4] * 2 + [65536 + 4] * 2
    binary = launch(tmp_path / "binary", "binary", workers=1)
    assert binary.logs[0].endswith(bytes(range(256)) + b"\nold\rnew\n")
    assert binary.out[-1] == "[0] new"
    assert binary.out[-2].startswith("[0] \N{REPLACEMENT CHARACTER}")
    assert launch(tmp_path / "closed", "closed").code == 0


def test_the_first_failing_worker_gives_the_exit_code(tmp_path: Path) -> None:
    result = launch(tmp_path, "exit_7", workers=3)
    assert result.code == 7
    log = tmp_path / "logs" / "rank-1.log"
    assert re.fullmatch(
        rf"replicant launch: rank 1 \(host {re.escape(os.uname().nodename)}, pid \d+\) ended with exit code 7; it had run no step "
        rf"yet; its log: {re.escape(str(log))}\. The job ends with exit code 7 \(--max-restarts is 0\)\. Logs: .*\n",
        result.err,
    )
    for log_text in result.logs:
        assert b"ended with exit code 7" in log_text, "every log says why the job has ended"


def test_a_killed_worker_and_a_second_life(tmp_path: Path) -> None:
    result = launch(tmp_path / "again", "killed_once", max_restarts=1)
    assert (result.code, sorted(result.out)) == (0, ["[0] second life", "[1] second life"])
    assert "was ended by SIGKILL; " in result.err
    assert "Starting all workers again as generation 1 (restart 1 of 1)." in result.err
    assert [log.count(b"generation 1, rank") for log in result.logs] == [1, 1]
    result = launch(tmp_path / "once", "killed_once")
    assert result.code == 137
    assert "The job ends with exit code 137 (--max-restarts is 0)" in result.err


def test_restarts_are_counted_and_preemptions_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicant.launch.team._policy._MAX_PAUSE", 0.1)
    result = launch(tmp_path / "fails", "exit_7", max_restarts=2)
    assert result.code == 7
    assert "generation 2 (restart 2 of 2)" in result.err
    assert "(all 2 restart(s) of --max-restarts are used up)" in result.err
    result = launch(tmp_path / "leaves", "preempted", max_restarts=1)
    assert result.code == 0
    assert "was asked to leave (exit code 143)" in result.err
    assert "in 0.1 s as generation 2 (not counted as a restart)" in result.err


def test_who_ignores_sigterm_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    result = launch(tmp_path, "ignores", workers=3, grace=0.3)
    assert (result.code, "rank 1 " in result.err) == (3, True)


def test_children_of_workers_end_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert launch(tmp_path, "family").code == 0
    for rank in range(2):
        wait_until_gone(int((tmp_path / f"child-{rank}").read_text()))


@pytest.mark.long
def test_nothing_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "replicant", "launch", "--workers", "2", "--log-dir", "logs", str(SCRIPT), "family", "stay"]
    with subprocess.Popen(command, cwd=tmp_path) as process:
        deadline = time.monotonic() + SECONDS
        files = [tmp_path / f"child-{rank}" for rank in range(2)]
        while not all(file.exists() and file.read_text() for file in files):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        children = [int(file.read_text()) for file in files]
        parents = [int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1]) for child in children]
        process.kill()
    for pid in (*parents, *children):
        wait_until_gone(pid)


@pytest.mark.slow
def test_a_worker_that_is_frozen_after_its_program_has_ended_is_ended(tmp_path: Path) -> None:
    started = time.monotonic()
    result = launch(tmp_path, "frozen_at_its_end", workers=2, heartbeat=1.0, finish=300.0)
    assert result.code == 0
    assert time.monotonic() - started < 40
    assert re.fullmatch(
        r"replicant launch: rank 1 \(host \S+, pid \d+\) had reached the end of its program, but its process sent no heartbeat "
        r"for 11 s and was killed\. It counts as ended without an error\.\n",
        result.err,
    )


@pytest.mark.long
def test_a_frozen_worker_is_named_and_replaced(tmp_path: Path) -> None:
    result = launch(tmp_path, "frozen", workers=3, heartbeat=3.0, max_restarts=1)
    assert result.code == 0
    assert re.search(r"rank 1 \(.*\) sent no heartbeat for 3 s, and was killed; its last step: 5; its log: ", result.err)


def test_what_a_worker_raises_is_told(tmp_path: Path) -> None:
    result = launch(tmp_path, "raises", workers=3)
    assert result.code == 1
    assert re.search(r"rank 1 \(.*\) failed: ValueError: no good; its last step: 5; its log: ", result.err)


@pytest.mark.long
def test_a_worker_that_leaves_early(tmp_path: Path) -> None:
    result = launch(tmp_path / "lost", "loses")
    assert result.code == 1
    assert "rank 1 (" in result.err
    assert "ended its program (exit code 0) before the others, which cannot go on without it" in result.err
    result = launch(tmp_path / "stuck", "stuck", finish=1.0)
    assert result.code == 124
    assert re.search(r"rank 0 \(.*\) ran no step for 1 s after rank 1 had ended its program; ", result.err)


def test_a_worker_that_comes_late(tmp_path: Path) -> None:
    result = launch(tmp_path, "late", start=1.0)
    assert result.code == 124
    assert "did not come within 1 s after the first worker; it had run no step yet" in result.err


@pytest.mark.long
def test_a_job_that_stands_still(tmp_path: Path) -> None:
    result = launch(tmp_path, "stalled", stall=1.0)
    assert (result.code, "ran no step for 1 s; " in result.err) == (124, True)


class Listener(io.StringIO):
    """Makes a file once it has heard something."""

    def __init__(self, word: str, file: Path):
        super().__init__()
        self.word, self.file = word, file

    def write(self, text: str) -> int:
        if self.word in text:
            self.file.touch()
        return super().write(text)


@pytest.mark.long
def test_a_slow_worker_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = launch(tmp_path, "slow", err=Listener("is slow", tmp_path / "said"))
    assert result.code == 0
    assert re.search(r"rank 1 \(host .*\) is slow: it takes [\d.]+ s of its own per step, the others [\d.]+ s\.", result.err)


@pytest.mark.parametrize(
    ("what", "code", "name"), [("interrupted", 130, "Ctrl-C"), ("terminated", 143, "SIGTERM"), ("saves", 85, "SIGTERM")]
)
def test_being_asked_to_end(what: str, code: int, name: str, tmp_path: Path) -> None:
    result = launch(tmp_path, what, max_restarts=3)
    assert result.code == code
    assert f"{name}: ending the workers within 30 s (again: at once)." in result.err
    assert f"{name}: all workers have ended; exit code {code}." in result.err
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_being_asked_twice(tmp_path: Path) -> None:
    result = launch(tmp_path, "hung_up_twice", grace=SECONDS)
    assert result.code == 129


class Slow(io.StringIO):
    """A terminal that is stopped for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.has_stopped = False

    def flush(self) -> None:
        if not self.has_stopped:
            self.has_stopped = True
            time.sleep(3.5)


@pytest.mark.long
def test_a_supervisor_that_was_stopped_blames_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_clock, "AWAY_SECONDS", 1.0)
    out = Slow()
    assert launch(tmp_path, "patient", heartbeat=2.5, out=out).code == 0
    assert out.has_stopped


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"Port {port} of 127\.0\.0\.1 cannot be used: Address already in use\. Give"):
            launch(tmp_path, "output", port=port)
    assert launch(tmp_path, "output", port=port).code == 0


def test_a_command_that_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"Worker 0 could not be started: .*Argument list too long"):
        launch(tmp_path, "output", "x" * 2_000_000)


def test_a_jaxlib_without_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    import jaxlib._jax

    monkeypatch.delattr(jaxlib._jax, "get_distributed_runtime_service")
    with pytest.raises(
        ConfigurationError, match=r"jaxlib .* has no coordination service where this release looks for it .* tested"
    ):
        _service.CoordinationService(2, 10.0)


def done(result: Result) -> list[str]:
    """Generation, rank and number of workers that each worker has ended with, after its number."""
    return sorted(line for line in result.out if " done " in line)


@pytest.mark.long
def test_elastic_workers_go_on_and_take_in_a_replacement(tmp_path: Path) -> None:
    result = launch(tmp_path, "elastic", "whole", workers=3, elastic=(2, 3), max_restarts=1)
    assert (result.code, done(result)) == (0, ["[0] done 2 0 3", "[1] done 2 1 3", "[2] done 2 2 3"])
    assert re.search(r"rank 1 \(.*\) ended with exit code 3; .* Generation 1 goes on with 2 worker\(s\): \[0, 2\]\.", result.err)
    assert "rank 1 has come. Generation 2 goes on with 3 worker(s): [0, 1, 2]." in result.err
    assert all(b"Generation 1 goes on with 2 worker(s)" in log for log in result.logs)


@pytest.mark.parametrize("what", ["killed", "frozen", "deluded", "replacement-dies"])
@pytest.mark.long_cases("frozen")
def test_elastic_workers_go_on_with_fewer(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_generations, "_NOBODY_SECONDS", 0.3)
    monkeypatch.chdir(tmp_path)
    result = launch(
        tmp_path, "elastic", what, workers=3, elastic=(2, 3), max_restarts=int(what == "replacement-dies"), heartbeat=3.0
    )
    assert (result.code, done(result)) == (0, ["[0] done 1 0 2", "[2] done 1 1 2"])
    how = {"frozen": "sent no heartbeat for 3 s", "deluded": "ended with exit code 4"}.get(what, "ended with exit code 3")
    assert how in result.err
    if what == "replacement-dies":
        assert "ended with exit code 9; it had run no step yet; " in result.err
        assert "It was about to join the others, which go on." in result.err


@pytest.mark.long
def test_too_few_elastic_workers_start_again(tmp_path: Path) -> None:
    result = launch(tmp_path, "elastic", workers=2, elastic=(2, 2), max_restarts=1)
    assert (result.code, done(result)) == (0, ["[0] done 1 0 2", "[1] done 1 1 2"])
    assert "Starting all workers again as generation 1 (restart 1 of 1)." in result.err
