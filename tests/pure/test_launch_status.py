"""How a running job is: from the events of its run log, and as a page that only this machine's user can read."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from replicant.cli import main
from replicant.cli._status import launcher_of
from replicant.errors import ArgumentError, ConfigurationError
from replicant.launch._settings import Settings
from replicant.launch.record._run_log import RunLog, process_start
from replicant.launch.show._status import Status, program_of
from replicant.launch.show._status_server import Live, StatusServer
from replicant.launch.show._status_text import json_of, page_of, text_of


def event(t, kind, **facts):
    return {"t": 1000.0 + t, "kind": kind, **facts}


def steps(t, **workers):
    return event(t, "steps", workers={rank.removeprefix("r"): each for rank, each in workers.items()})


JOB = event(0, "job", command=["/bin/python", "/home/me/train.py", "--token", "secret"], workers=2)
BEGUN = [
    JOB,
    event(0, "start", rank=0, generation=0, pid=10),
    event(0, "start", rank=1, generation=0, pid=11),
    event(2, "came", rank=0, host="a"),
    event(2, "came", rank=1, host="b"),
]
TRAINING = [
    *BEGUN,
    steps(10, r0=[0, 0.0, "step"], r1=[0, 0.0, "step"]),
    steps(20, r0=[20, 5.0, "step"], r1=[20, 0.0, "step"]),
    event(21, "saved", rank=0, step=20, seconds=0.5, path="/secret/run/1"),
]


def view(events, t):
    status = Status(events[0])
    for each in events[1:]:
        status.take(each)
    return status.view(1000.0 + t)


RUNNING = """\
train.py: running for 25.0 s, generation 0, 2 of 2 worker(s) alive
  step 20, 2 steps/s
  last checkpoint: step 20, 4.0 s ago
  slowest: rank 1 (0.5000 s of its own per step; the others 0.2500 s)

rank  host  pid  does  step  steps/s  own s/step  last step
   0  a      10  step    20        2      0.2500  5.0 s ago
   1  b      11  step    20        2      0.5000  5.0 s ago
"""


def test_a_running_job():
    assert text_of(view(TRAINING, 25)) == RUNNING


def test_the_rate_of_a_job_that_makes_no_step_falls():
    assert view(TRAINING, 25).rate == 2
    assert view(TRAINING, 120).rate == 0.2


@pytest.mark.parametrize(
    ("events", "t", "launcher", "first"),
    [
        ([JOB], 1, "runs", "train.py: running for 1.0 s, generation 0, 0 of 0 worker(s) alive"),
        (BEGUN, 3, "runs", "train.py: running for 3.0 s, generation 0, 2 of 2 worker(s) alive"),
        (BEGUN, -9, "runs", "train.py: running for 2.0 s, generation 0, 2 of 2 worker(s) alive"),  # the clock was set back
        (BEGUN, 3, "is gone", "train.py: its launcher is gone, without having ended the job; the last news is shown"),
        (
            BEGUN,
            3,
            "on the host x",
            "train.py: running, if its launcher does (on the host x), for 3.0 s, generation 0, 2 of 2 worker(s) alive",
        ),
        (
            [*TRAINING, event(22, "ended", rank=1, code=0)],
            22,
            "runs",
            "train.py: running for 22.0 s, generation 0, 1 of 2 worker(s) alive",
        ),
        ([*TRAINING, event(30, "done", code=0)], 99, "runs", "train.py: ended well after 30.0 s"),
        ([*TRAINING, event(30, "done", code=3)], 99, "runs", "train.py: ended with exit code 3 after 30.0 s"),
    ],
)
def test_what_is_said_first(events, t, launcher, first):
    assert text_of(view(events, t), launcher).splitlines()[0] == first


def test_a_failure_and_a_new_process():
    failed = [
        *TRAINING,
        event(26, "ended", rank=1, code=-9),
        event(26, "failed", rank=1, what="...secret...", step=20, cause="signal"),
    ]
    now = view(failed, 30)
    assert [(each.state, each.is_alive) for each in now.workers] == [("step", True), ("failed: signal", False)]
    assert (now.failures, now.last_failure) == (1, (1, "signal", 4.0))
    assert "  1 failure(s); the last, 4.0 s ago of rank 1: signal\n" in text_of(now)
    again = view([*failed, event(31, "start", rank=1, generation=1, pid=12)], 32)
    assert [(each.state, each.pid, each.step, each.processes) for each in again.workers] == [
        ("step", 10, 20, 1),
        ("starting", 12, 0, 2),
    ]
    assert again.generation == 1
    asked = view([*TRAINING, event(26, "failed", rank=-1, what="SIGINT", cause="asked")], 30)
    assert "  1 failure(s); the last, 4.0 s ago: asked\n" in text_of(asked)


def test_nothing_but_the_status_is_shown():
    events = [*TRAINING, event(26, "failed", rank=1, what="failed: ValueError: secret", step=20, cause="raised")]
    for shown in (text_of(view(events, 30)), page_of(view(events, 30)), json_of(view(events, 30))):
        assert "train.py" in shown
        assert "secret" not in shown


def test_names_are_no_html():
    events = [
        event(0, "job", command=["python", "<img src=x onerror=alert(1)>"]),
        event(0, "start", rank=0, generation=0, pid=1),
        event(1, "came", rank=0, host="<script>" + "h" * 10_000),
        steps(2, r0=[1, 0.0, "<b>"]),
    ]
    page = page_of(view(events, 3))
    assert "<img" not in page
    assert "<script" not in page
    assert "<b>" not in page
    assert len(page) < 10_000


def test_the_name_of_the_program():
    assert program_of({}) == "?"
    assert program_of({"command": ["python"]}) == "?"
    assert program_of({"command": ["python", "-m"]}) == "-m"


# Reading the log.


def test_the_command(tmp_path, capsys):
    log = RunLog(tmp_path / "run.jsonl", print)
    log.begin(["python", "train.py"], 2, None)
    log.write("start", rank=0, generation=0, pid=1)
    assert main(["launch", "--status", str(tmp_path)]) == 0
    assert re.match(r"train\.py: running for .* s, generation 0, 1 of 1 worker\(s\) alive\n", capsys.readouterr().out)
    log.write("done", code=2)
    assert main(["launch", "--status", str(tmp_path / "run.jsonl")]) == 1
    assert capsys.readouterr().out.startswith("train.py: ended with exit code 2 after ")
    RunLog(tmp_path / "run.jsonl", print).begin(["python", "other.py"], 1, None)
    log.write("done", code=0)  # of the first job, which ran at the same time
    assert main(["launch", "--status", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("other.py: running")


def test_a_launcher_that_is_gone(tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    RunLog(path, print).begin(["python", "train.py"], 1, None)
    first = json.loads(path.read_text())
    assert launcher_of(first) == "runs"
    assert launcher_of(first | {"began": "1"}) == "is gone"  # its number was given to another process
    assert launcher_of(first | {"host": "elsewhere"}) == "on the host elsewhere"
    assert launcher_of({key: first[key] for key in ("host", "pid")}) == "which this log does not say"
    path.write_text(json.dumps(first | {"began": "1"}) + "\n")
    assert main(["launch", "--status", str(path)]) == 1
    assert "its launcher is gone" in capsys.readouterr().out
    assert process_start(2**22 + 1) is None
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process_start(process.pid) is None  # a zombie


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--status", "none"], "--status 'none' cannot be read: No such file or directory. Name the --log-dir of a job."),
        (["--status", "empty"], "--status 'empty': this is not a run log of `replicant launch`: no job begins in it."),
        (
            ["--status", "empty", "train.py"],
            (
                "--status shows how a job is and starts none, so it takes no SCRIPT. Got 'train.py'. To start "
                "a job that has a status page, write --status-port."
            ),
        ),
        ([], "there is no SCRIPT to run. Write replicant launch [options] SCRIPT [ARGUMENTS ...]."),
        (["--status-port", "65536", "empty"], "--status-port must be from 0 to 65535. Got 65536."),
        (
            ["--engine", "slurm", "--status-port", "0", "empty"],
            "--status-port is not for --engine slurm. It is for --engine local and ray.",
        ),
    ],
)
def test_what_cannot_be_shown_is_told(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").touch()
    assert main(["launch", *arguments]) == 1
    assert capsys.readouterr().err == f"replicant launch: {message}\n"


# The page.


@contextlib.contextmanager
def served(events=TRAINING):
    live = Live()
    for each in events:
        live.hear(each)
    with StatusServer(0, live.pages()) as server:
        yield server


def ask(server, request, *, close=True):
    """Send bytes, and return the status of the answer and the answer. An answer of no bytes has the status 0."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as own:
        own.sendall(request)
        if close:
            own.shutdown(socket.SHUT_WR)
        parts = []
        with contextlib.suppress(ConnectionResetError):
            while part := own.recv(65536):
                parts.append(part)
    answer = b"".join(parts).decode()
    return int(answer.split()[1]) if answer else 0, answer


def test_the_page_and_its_json():
    with served() as server:
        with urllib.request.urlopen(server.url, timeout=30) as answer:
            page, headers = answer.read().decode(), answer.headers
        assert "<h1>train.py: running for" in page
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
        assert "Access-Control-Allow-Origin" not in headers
        with urllib.request.urlopen(server.url + "status.json", timeout=30) as answer:
            found = json.load(answer)
        assert (found["program"], found["code"], [each["step"] for each in found["workers"]]) == ("train.py", None, [20, 20])
        with urllib.request.urlopen(server.url.replace("127.0.0.1", "localhost"), timeout=30) as answer:
            assert answer.status == 200
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(server.url, timeout=30)


def test_it_listens_on_loopback_only():
    with served() as server:
        assert server._listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("request_line", "headers", "status"),
    [
        ("GET / HTTP/1.1", ["Host: 127.0.0.1:{port}"], 200),
        ("GET / HTTP/1.0", ["hOST:LOCALHOST:{port} "], 200),
        ("GET / HTTP/1.1", ["Host: evil.example"], 403),  # its name was made to lead to 127.0.0.1
        ("GET / HTTP/1.1", ["Host: evil.example:{port}"], 403),
        ("GET / HTTP/1.1", ["Host: 127.0.0.1:{port}.evil.example"], 403),
        ("GET / HTTP/1.1", ["Host: 127.0.0.1"], 403),
        ("GET / HTTP/1.1", ["Host: 127.0.0.1:{port}", "Host: evil.example"], 403),
        ("GET / HTTP/1.1", ["Host: "], 403),
        ("GET / HTTP/1.1", [], 403),
        ("POST / HTTP/1.1", ["Host: 127.0.0.1:{port}", "Content-Length: 0"], 405),
        ("DELETE / HTTP/1.1", ["Host: 127.0.0.1:{port}"], 405),
        ("HEAD / HTTP/1.1", ["Host: 127.0.0.1:{port}"], 405),
        ("GET /../etc/passwd HTTP/1.1", ["Host: 127.0.0.1:{port}"], 404),
        ("GET http://127.0.0.1:{port}/ HTTP/1.1", ["Host: 127.0.0.1:{port}"], 404),
        ("GET /?x=<script> HTTP/1.1", ["Host: 127.0.0.1:{port}"], 404),
        ("GET / HTTP/3", ["Host: 127.0.0.1:{port}"], 400),
        ("GET  / HTTP/1.1", ["Host: 127.0.0.1:{port}"], 400),
        ("GET /", [], 400),
        ("", [], 400),
        ("GET / HTTP/1.1", ["Host: 127.0.0.1:{port}", "X: " + "x" * 20_000], 400),
        ("GET / HTTP/1.1", ["Host: \xff"], 400),
        ("GET / HTTP/1.1", ["Host: 127.0.0.1:{port}", " .evil.example"], 400),  # folded over two lines
        ("GET / HTTP/1.1", ["Host:", "\t127.0.0.1:{port}"], 400),
        ("GET / HTTP/1.1", ["Host : 127.0.0.1:{port}"], 400),
        ("GET / HTTP/1.1", ["Host: 127.0.0.1:{port}", "X: 1\nHost: evil.example"], 400),
        ("GET / HTTP/1.1", ["Host: 127.0.0.1:{port}", "X: 1\rY: 2"], 400),
        ("GET / HTTP/1.1", ["Host: 127.0.0.1:{port}", "X: \0"], 400),
        ("GET / HTTP/1.1", ["Host: 127.0.0.1:{port}", "no header"], 400),
        ("GET / HTTP/1.1", ["Host: 127.0.0.1:{port}", "Accept:", "X-Y:\ta b \t"], 200),
    ],
)
def test_what_is_answered(request_line, headers, status):
    with served() as server:
        request = "\r\n".join([request_line, *headers, "", ""]).format(port=server.port).encode("latin-1")
        found, answer = ask(server, request)
        assert found in (status, *([0] if len(request) > 8192 else []))  # the system may drop the answer to what was not read
        assert "<script>" not in answer
        assert ask(server, f"GET / HTTP/1.1\r\nHost: {server.url[7:-1]}\r\n\r\n".encode())[0] == 200


@pytest.mark.long
def test_clients_that_say_nothing_or_do_not_read_are_sent_away(monkeypatch):
    monkeypatch.setattr("replicant.launch.show._status_server._CLIENT_SECONDS", 0.5)
    with served() as server:
        silent = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(40)]
        assert {each.recv(65536) for each in silent} == {b""}
        for each in silent:
            each.close()
        for _ in range(3):
            drip = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            with contextlib.suppress(OSError):
                for _ in range(100):
                    drip.sendall(b"G")
                    time.sleep(0.02)
                pytest.fail("a client that sends one byte at a time was kept")
            drip.close()
        assert ask(server, f"GET / HTTP/1.1\r\nHost: {server.url[7:-1]}\r\n\r\n".encode())[0] == 200


def test_a_port_that_is_in_use_is_told():
    with served() as server, pytest.raises(ConfigurationError) as error:
        StatusServer(server.port, {})
    assert str(error.value) == (
        f"--status-port {server.port}: port {server.port} of 127.0.0.1 cannot be used: Address already in use. Give another one, "
        "or 0 for a free one."
    )


def test_a_client_does_not_keep_the_job_from_ending():
    with served() as server:
        own = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    assert own.recv(10) == b""
    own.close()


def test_settings():
    assert Settings(("a.py",), status_port=0).status_port == 0
    with pytest.raises(ArgumentError, match=r"^--status-port must be from 0 to 65535\. Got -1\.$"):
        Settings(("a.py",), status_port=-1)
