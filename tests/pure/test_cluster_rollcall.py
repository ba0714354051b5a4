"""The roll call over real sockets: every worker hears the same, and none waits for ever."""

import concurrent.futures
import contextlib
import json
import os
import re
import resource
import socket
import threading
import time
import warnings

import hypothesis
import pytest

from replicant.cluster import Membership, detect
from replicant.cluster.meeting import _chair
from replicant.cluster.meeting._claims import Claim, proof_of_answer, proof_of_claim
from replicant.cluster.meeting._job import JobName, job_key, job_of, shortened
from replicant.cluster.meeting._member import call_roll
from replicant.cluster.wire._json_lines import parse_message
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
        (
            [(0, 2), (1, 3)],
            r"disagree on how many of them there are: \[2, 3\].\n  host pid 0  process 0 of 2\n  host pid 1  process 1 of 3",
        ),
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
    with pytest.raises(
        ClusterError, match=r"Process 0 cannot listen at 127\.0\.0\.1:\d+: .*choose another port.*both have the process id 0"
    ):
        raise error


def call_as_process_0(coordinator, bind, seconds):
    try:
        return call_roll(Membership(0, 2, coordinator, bind), "elsewhere pid 9", {"jax": "1"}, seconds)
    except ClusterError as error:
        return error


def test_two_hosts_with_process_id_0():
    address, not_here = f"127.0.0.1:{free_port()}", "192.0.2.1:1"  # an address that is kept for documentation
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        rival = pool.submit(call_as_process_0, address, not_here, SECONDS)
        begun = time.monotonic()
        first = call_as_process_0(address, address, SECONDS)
        assert time.monotonic() - begun < SECONDS / 2
    for error in (first, rival.result()):
        with pytest.raises(ClusterError, match=r"^Two workers have the process id 0: each needs its own\.\n"):
            raise error


def test_an_address_that_is_not_this_hosts():
    error = call_as_process_0(f"127.0.0.1:{free_port()}", "192.0.2.1:1", 0.2)
    host = re.escape(socket.gethostname())
    message = (
        rf"^Process 0 cannot listen at 192\.0\.2\.1:1, which is not an address of this host \({host}\)\. If the coordinator is "
        r"another host, this process must not have the process id \(TF_CONFIG's index\) 0: each worker needs its own\."
    )
    with pytest.raises(ClusterError, match=message):
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
    with pytest.raises(ClusterError, match="is not process 0 of this job"):
        raise error


def listening(port):
    """A connection to somebody who may not listen yet."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        except ConnectionRefusedError:
            continue


def told(port, line):
    """What a stranger is told who says that, after the greeting, until it is shown out."""
    with listening(port) as stranger:
        stranger.sendall(line)
        with stranger.makefile("rb") as lines:
            assert json.loads(lines.readline())["magic"] == "replicant-roll-call-3"
            try:
                return lines.read()
            except ConnectionResetError:  # not all was read that it said
                return b""


CLAIM = {
    "magic": "replicant-roll-call-3",
    "process_id": 1,
    "num_processes": 2,
    "who": "somebody",
    "facts": {"jax": "1"},
    "job": {"told": "", "found": "", "script": ""},
}
HOSTILE = {
    "HTTP": b"GET / HTTP/1.1\r\n\r\n\n",
    "a list": b"[]\n",
    "nested lists": b"[" * 50_000,
    "nested lists in a line": b"[" * 1000 + b"\n",
    "nested objects": b'{"a":' * 10_000 + b"\n",
    "a long line": b" " * 1025 + b"\n",
    "no UTF-8": b'{"magic": "\xff"}\n',
    "a NUL": b"\0\n",
    "thousands of digits": b'{"magic": "replicant-roll-call-3", "process_id": ' + b"9" * 900 + b"}\n",
    "two lines": json.dumps(CLAIM).encode() + b"\n{}\n",
    **{
        f"{name}: {value}": json.dumps(CLAIM | {name: value}).encode() + b"\n"
        for name, value in [
            ("process_id", []),
            ("process_id", True),
            ("process_id", -1),
            ("process_id", 2),
            ("process_id", 1.0),
            ("process_id", float("nan")),
            ("num_processes", 10**400),
            ("num_processes", 0),
            ("num_processes", None),
            ("who", 3),
            ("facts", ["jax"]),
            ("facts", {"jax": 1}),
            ("job", {}),
            ("job", "a"),
            ("job", {"told": [], "found": "", "script": ""}),
            ("magic", {}),
            ("who", "\ud800"),
            ("nonce", "\ud800"),
            ("proof", "\udfff"),
        ]
    },
    **{f"no {name}": json.dumps({k: v for k, v in CLAIM.items() if k != name}).encode() + b"\n" for name in CLAIM},
}


@pytest.fixture
def waiting_chief():
    """Process 0 of 2, which waits for the other one: its port, and where its answer will be."""
    port, result = free_port(), []
    thread = threading.Thread(target=lambda: result.extend(meet([(0, 2)], port=port)))
    thread.start()
    yield port, result
    thread.join(SECONDS)
    assert result == [("host pid 0", "host pid 0")]


@pytest.fixture
def chief(waiting_chief):
    """The port of such a process 0; at the end the other worker comes, and both are a group."""
    yield waiting_chief[0]
    assert meet([(1, 2)], port=waiting_chief[0]) == [("host pid 0", "host pid 0")]


@pytest.mark.parametrize("name", HOSTILE)
def test_strangers_are_shown_out(chief, name):
    """What is no claim is dropped without a word, and so are claims of workers that leave before all have come."""
    assert told(chief, HOSTILE[name]) == b""


def test_a_worker_with_another_version_of_the_roll_call(chief):
    answer = json.loads(told(chief, json.dumps({"magic": "replicant-roll-call-1"}).encode() + b"\n"))
    assert answer == {"error": "Process 0 runs another version of Replicant: install the same on all workers.", "mismatch": True}


def test_strangers_who_say_nothing_keep_nobody_out(waiting_chief):
    """More of them than are let in; and one that says a letter now and then, one that hears nothing more."""
    chief, _ = waiting_chief
    silent = [listening(chief) for _ in range(600)]
    silent[-1].sendall(b"{")
    silent[-2].shutdown(socket.SHUT_WR)
    time.sleep(0.2)
    silent[-1].sendall(b'"')
    for connection in silent[:-300]:  # the first ones have made way
        connection.settimeout(SECONDS)
        with connection.makefile("rb") as lines:
            assert lines.readline().startswith(b'{"magic": ')
            assert lines.read() == b""
    assert meet([(1, 2)], port=chief) == [("host pid 0", "host pid 0")], "while the last ones are there still"
    for connection in silent:
        connection.close()


def test_no_descriptors_are_left(chief):
    """Nobody can be let in: process 0 neither ends nor spins, and goes on once there are some again."""
    listening(chief).close()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.dup(0)
    os.close(probe)
    waiting = [socket.socket() for _ in range(20)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(connection.fileno() for connection in waiting) + 1, hard))
    full = []
    try:
        with contextlib.suppress(OSError):  # all there are
            while True:
                full.append(os.dup(0))
        for connection in waiting:
            connection.connect(("127.0.0.1", chief))
        before = time.process_time()
        time.sleep(1.0)
        assert time.process_time() - before < 0.5, "it waits; a whole processor would be 1 s"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in full:
            os.close(number)
        for connection in waiting:
            connection.close()


def test_a_lack_of_descriptors_is_told_of_where_somebody_is_missing():
    made = _chair.Chair(f"127.0.0.1:{free_port()}", Claim(0, 2, "host pid 0", {}))
    with made:
        made._door.has_been_exhausted = True
        message = r"did not come within 0\.01 s.*(\n.*)+\nProcess 0 ran out of file descriptors meanwhile: raise the limit"
        with pytest.raises(ClusterError, match=message):
            made.preside(0.01)


# Jobs.

SLURM = [JobName("", "Slurm: 7.0", "train.py"), JobName("", "Slurm: 8.0", "train.py")]


def call(number, port, job=JobName(), key="", *, seconds=SECONDS, count=2):  # noqa: B008 - not changed
    """What one worker gets, or the error's text."""
    address = f"127.0.0.1:{port}"
    membership = Membership(number, count, address, address)
    try:
        return call_roll(membership, f"{job or 'host'} {number}", {"jax": "1"}, seconds, job=job, key=key)
    except (ClusterError, WorkerMismatchError) as error:
        return str(error)


def meet_after(stranger, own, key="", keys=("", "")):
    """Process 0 of `own` job, then the stranger as process 1, then the real process 1. What each gets."""
    port = free_port()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        chief = pool.submit(call, 0, port, own, keys[0])
        strange = pool.submit(call, 1, port, stranger, key).result(SECONDS)
        worker = call(1, port, own, keys[0])
        return strange, worker, chief.result(SECONDS)


@pytest.mark.parametrize(
    ("own", "stranger", "why"),
    [
        (*SLURM, "this worker's job is Slurm: 8.0, process 0's is Slurm: 7.0"),
        (JobName("a"), JobName("b"), "this worker's job is 'b', process 0's is 'a'"),
        (JobName("a"), SLURM[0], "this worker's job is Slurm: 7.0, process 0's is 'a'"),
        (JobName("a"), JobName(), "this worker's job is one without a name, process 0's is 'a'"),
        (JobName(), JobName("b"), "this worker's job is 'b', process 0's is one without a name"),
    ],
)
def test_a_worker_of_another_job_is_told_so_and_the_others_go_on(own, stranger, why):
    strange, worker, chief = meet_after(stranger, own)
    assert strange.startswith("Process 0 (")
    assert f"for one of another job: {why}. If these are two jobs, give each its" in strange
    assert worker == chief == (f"{own} 0", f"{own} 1")


@pytest.mark.parametrize(
    "jobs",
    [
        [JobName(), JobName("", "Slurm: 7.0")],
        [JobName("", "torchrun: 1"), JobName("", "Slurm: 7.0")],
        [JobName("a", "Slurm: 7.0", "chief.py"), JobName("a", "Slurm: 8.0", "worker.py")],
    ],
    ids=["one has no name", "names of two launchers", "told so"],
)
def test_a_name_that_says_nothing_stops_nobody(jobs):
    port = free_port()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        both = list(pool.map(call, range(2), [port] * 2, jobs))
    assert both == [(f"{jobs[0]} 0", f"{jobs[1]} 1")] * 2


def test_other_scripts_are_one_job_unless_they_contradict_each_other():
    """The name of a script is a hint: workers of one job may run two, and who comes twice is the one with the other script."""
    own, other = JobName(script="chief.py"), JobName(script="worker.py")
    port = free_port()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        chief, worker = pool.submit(silently, 0, port, own), pool.submit(call, 1, port, other)
        assert chief.result(SECONDS)[0] == worker.result(SECONDS) == ("one without a name 0", "one without a name 1")
    (warning,) = chief.result()[1]
    assert warning.startswith(
        "Worker 1 (one without a name 1) runs worker.py, and process 0 runs chief.py. If they belong to one job, set"
    )


def silently(*args, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return call(*args, **options), [str(each.message) for each in caught]


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({"number": 0, "count": 3}, "Two workers have the process id 0"),
        ({"number": 1, "count": 5}, "The workers disagree on how many of them there are"),
        (
            {"number": 1, "count": 3, "facts": {"jax": "2"}},
            "The workers run different versions",
        ),
    ],
)
def test_a_contradiction_is_the_fault_of_whoever_runs_another_script(claim, message):
    port, own = free_port(), JobName(script="a.py")
    line = CLAIM | {"process_id": claim["number"], "num_processes": claim["count"], "facts": claim.get("facts", {"jax": "1"})}
    line["job"] = {"told": "", "found": "", "script": "b.py"}
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        chief = pool.submit(call, 0, port, own, count=3)
        error = json.loads(told(port, json.dumps(line).encode() + b"\n"))["error"]
        assert f"this worker runs b.py, process 0 runs a.py, and {message}" in error
        early = connected_claim(port, CLAIM | {"num_processes": 3, "job": line["job"]})  # has the place of the real worker 1
        first = pool.submit(call, 1, port, own, count=3)
        with early, early.makefile("rb") as lines:
            assert "and another worker has its process id" in json.loads(lines.readline())["error"]
        second = pool.submit(call, 2, port, own, count=3)
        expected = tuple(f"one without a name {number}" for number in range(3))
        assert [each.result(SECONDS) for each in (chief, first, second)] == [expected] * 3


def connected_claim(port, claim):
    connection = listening(port)
    connection.sendall(json.dumps(claim).encode() + b"\n")
    with connection.makefile("rb") as lines:
        lines.readline()
    time.sleep(0.5)  # until it is seated
    return connection


# Keys.


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (("k" * 32, ""), "process 0 has a REPLICANT_JOB_KEY and this worker has none: give all workers the same one"),
        (("k" * 32, "l" * 32), "this worker's REPLICANT_JOB_KEY differs from that of process 0"),
        (("", "l" * 32), "this worker has a REPLICANT_JOB_KEY and process 0 has none: give all workers the same one"),
    ],
    ids=["none", "another", "here alone"],
)
def test_a_worker_with_another_key_is_turned_away(keys, message):
    strange, worker, chief = meet_after(JobName(), JobName(), keys[1], (keys[0], ""))
    assert message in strange
    assert worker == chief == ("one without a name 0", "one without a name 1")


def test_a_proof_fits_one_connection_and_one_claim():
    claim = Claim(1, 2, "host", {})
    proofs = {
        proof_of_claim("k" * 32, claim, "a", "b"),
        proof_of_claim("k" * 32, claim, "c", "b"),
        proof_of_claim("k" * 32, Claim(1, 3, "host", {}), "a", "b"),
        proof_of_claim("l" * 32, claim, "a", "b"),
        proof_of_answer("k" * 32, claim.as_dict(), "a", "b"),
    }
    assert len(proofs) == 5


def test_an_answer_without_the_key_is_not_believed():
    key = "k" * 32
    with socket.create_server(("127.0.0.1", 0)) as other:

        def serve():
            connection, _ = other.accept()
            with connection:
                connection.sendall(b'{"magic": "replicant-roll-call-3", "nonce": "1"}\n')
                connection.recv(2000)
                connection.sendall(b'{"who": ["a", "b"], "seal": "s", "proof": "guessed"}\n')

        thread = threading.Thread(target=serve)
        thread.start()
        answer = call(1, other.getsockname()[1], key=key)
        thread.join()
    assert (
        "does not know this worker's REPLICANT_JOB_KEY: give all workers the same one. If they have the same one, something else"
        in answer
    )


def test_a_key_that_can_be_guessed():
    with pytest.raises(
        ClusterError, match=r"REPLICANT_JOB_KEY has 6 characters, but a key needs at least 16\. Make one with `openssl rand"
    ):
        job_key({"REPLICANT_JOB_KEY": "secret"})
    assert (job_key({}), job_key({"REPLICANT_JOB_KEY": "k" * 16})) == ("", "k" * 16)


@pytest.mark.long
def test_who_was_turned_away_is_told_where_somebody_is_missing():
    port = free_port()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        chief = pool.submit(call, 0, port, SLURM[0], seconds=1.5)
        call(1, port, SLURM[1])
        text = chief.result(SECONDS)
    assert "Worker(s) 1 of 2 did not come within 1.5 s." in text
    assert "These were turned away:\n  Slurm: 8.0 1, as process 1 of 2: this worker's job is Slurm: 8.0, process 0's is" in text


POD = {"REPLICATED_JOB_NAME": "w"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (
            {
                "SLURM_JOB_ID": "7",
                "SLURM_STEP_ID": "0",
                "SLURM_PROCID": "{}",
                "SLURM_STEP_NUM_TASKS": "2",
                "SLURM_NODELIST": "n[1-2]",
            },
            "Slurm: 7.0",
        ),
        ({"RANK": "{}", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "r"}, "torchrun: r"),
        ({"OMPI_COMM_WORLD_RANK": "{}", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "prterun-n-7@1"}, "Open MPI: prterun-n-7@1"),
        (
            {"JOB_COMPLETION_INDEX": "{}", "JAX_NUM_PROCESSES": "2", "JOBSET_NAME": "s", "REPLICATED_JOB_NAME": "w"},
            "Kubernetes JobSet: s",
        ),
        ({"JAX_PROCESS_ID": "{}", "JAX_NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": "a:1", "SLURM_JOB_ID": "7"}, ""),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "{}"}, ""),
        ({"TF_CONFIG": '{{"cluster": {{"worker": ["a:1", "b:1"]}}, "task": {{"type": "worker", "index": {}}}}}'}, ""),
    ],
    ids=["Slurm", "torchrun", "Open MPI", "Kubernetes", "JAX", "TPU", "TF_CONFIG"],
)
def test_all_workers_of_a_job_find_the_same_name(monkeypatch, environ, expected):
    """Whatever differs between them: their number, their arguments, the folder of the script."""
    names = []
    for number in range(2):
        monkeypatch.setattr("sys.argv", [f"/home/{number}/train.py", f"--task_index={number}"])
        found = {name: text.format(number) if "{}" in text else text for name, text in environ.items()}
        names.append(job_of(detect(found).membership, found))
    assert names == [JobName("", expected, "train.py")] * 2
    assert job_of(Membership(0, 1), {"REPLICANT_JOB_ID": " mine "}).told == "mine"


@pytest.mark.parametrize(
    ("argv", "script"),
    [
        (["/a/pkg/__main__.py"], "pkg"),
        (["-c"], ""),
        ([""], ""),
        ([], ""),
        (["/v/ipykernel_launcher.py", "-f"], ""),
        (["x.py"], "x.py"),
    ],
)
def test_what_counts_as_a_script(monkeypatch, argv, script):
    monkeypatch.setattr("sys.argv", argv)
    assert job_of(Membership(0, 1), {}).script == script


@hypothesis.given(hypothesis.strategies.lists(hypothesis.strategies.text(max_size=300), min_size=4, max_size=4))
@pytest.mark.long
def test_a_claim_is_short_and_understood(texts):
    claim = Claim(1, 2, texts[0], {"jax": "0.11.0"}, JobName(*(shortened(text) for text in texts[1:])))
    hypothesis.assume(not any(set('"\\\\') & set(text) for text in texts))  # these need an escape; see below
    line = claim.line("k" * 32, "a" * 32, "b" * 32)
    assert len(line) <= 1024
    understood = Claim.parse(parse_message(line[:-1]))
    assert understood == Claim(1, 2, shortened(texts[0]), claim.facts, claim.job)
    assert understood.who.isprintable() or understood.who == ""


def test_a_claim_that_does_not_fit():
    with pytest.raises(
        ClusterError, match=r"This worker's claim has 1\d\d\d bytes, but process 0 reads at most 1024: .*shorter name"
    ):
        Claim(1, 2, '"' * 96, {}, JobName(*['"' * 96] * 3)).line("k" * 32, "a" * 32, "b" * 32)
