"""A worker that fails, dies, hangs, leaves or does something else: the others end soon, with an error that names it."""

import re
import signal
import sys
import time
from pathlib import Path

import pytest

import replicant

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # test folders are no packages

import _group  # noqa: E402

TRACE = "Traceback"


def run(tmp_path, mode, *, num_workers=2, **environ):
    variables = {"MODE": mode, "REPLICANT_START_TIMEOUT": "120", **environ}
    return _group.Group(HERE / "_worker_failing.py", num_workers, tmp_path, environ=variables)


@pytest.mark.long
def test_a_worker_that_raises_ends_all_with_its_error(tmp_path):
    workers = run(tmp_path, "raise", num_workers=3).wait()
    assert [worker.status for worker in workers] == [1, 1, 1]
    assert "ValueError: the file of this worker is broken" in workers[2].err
    for worker in workers[:2]:
        assert re.search(r"worker 2 \(.* pid \d+\)  failed: ValueError: the file of this worker is broken", worker.err), worker.err


@pytest.mark.slow
def test_process_0_that_raises_is_heard_too(tmp_path):
    workers = run(tmp_path, "raise", WRONG="0").wait()
    assert [worker.status for worker in workers] == [1, 1]
    assert re.search(r"worker 0 \(.*\)  failed: ValueError: the file of this worker is broken", workers[1].err), workers[1].err


# Two workers of one host read arrays of 2 MB from each other's memory.
@pytest.mark.parametrize("large", ["0", "524288"])
@pytest.mark.long
def test_a_worker_that_is_killed(tmp_path, large):
    workers = run(tmp_path, "kill", REPLICANT_HEARTBEAT_TIMEOUT="10", LARGE=large).wait()
    assert [worker.status for worker in workers] == [1, -9]
    assert "WorkerLostError: Worker 0 of 2 computed together with the others, and cannot go on" in workers[0].err


@pytest.mark.slow
def test_process_0_that_is_killed(tmp_path):
    """The others lose what they speak over."""
    workers = run(tmp_path, "kill", num_workers=3, WRONG="0").wait()
    assert workers[0].status == -9
    for rank, worker in enumerate(workers[1:], 1):
        check_orphan(worker, rank, 3)


ORPHAN_SECONDS = 10.0  # of which it takes 5


def check_orphan(worker, rank, num_workers):
    assert worker.status == 1, worker.err  # -6: an abort
    said = re.search(rf"(WorkerLostError: |replicant: )Worker {rank} of {num_workers} .*", worker.err, re.DOTALL)
    assert said, worker.err
    gone = r"worker 0 \(.* pid \d+\)  runs the coordination service, which does not answer: the connection to \S+ was closed: "
    assert re.search(gone, said[0]), worker.err
    for dump in ("*** Check failure stack trace", "Fatal Python error", "FATAL: exception", "terminate called"):
        assert dump not in worker.err, worker.err


@pytest.mark.parametrize(
    "where",
    ["exchange", *(pytest.param(each, marks=pytest.mark.slow) for each in ("step", "steps", "between steps", "python", "save"))],
)
@pytest.mark.long
def test_process_0_is_killed_while_another_worker_is_in_the_middle_of_something(tmp_path, where):
    group = _group.Group(
        HERE / "_worker_orphaned.py", 2, tmp_path, environ={"WHERE": where, "KILLED": "0", "FOLDER": str(tmp_path)}
    )
    group.wait_for_line(0, "now")
    group.wait_for_line(1, "now")
    time.sleep(1.0)
    group.workers[0].kill()
    killed = time.monotonic()
    workers = group.wait()
    assert time.monotonic() - killed < ORPHAN_SECONDS
    assert [worker.status for worker in workers] == [-9, 1], workers[1].err
    check_orphan(workers[1], 1, 2)


@pytest.mark.slow
def test_process_0_is_killed_while_another_worker_starts_its_devices(tmp_path):
    group = _group.Group(HERE / "_worker_orphaned.py", 2, tmp_path, environ={"WHERE": "devices", "KILLED": "0"})
    group.wait_for_line(0, "now")
    group.workers[0].kill()
    killed = time.monotonic()
    orphan = group.wait()[1]
    assert time.monotonic() - killed < ORPHAN_SECONDS
    assert orphan.status == 1, orphan.err
    said = r"WorkerLostError: This worker could not start its devices together with the others: the connection to \S+ was "
    assert re.search(said, orphan.err), orphan.err
    assert "*** Check failure stack trace" not in orphan.err


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_worker_is_killed_while_another_one_connects(tmp_path, killed):
    environ = {"WHERE": "connect", "KILLED": str(killed), "REPLICANT_START_TIMEOUT": "10"}
    group = _group.Group(HERE / "_worker_orphaned.py", 2, tmp_path, environ=environ)
    group.wait_for_line(killed, "now")
    group.workers[killed].kill()
    other = group.wait()[1 - killed]
    assert other.status == 1, other.err  # -6: an abort
    said = rf"UnreachableError: Process {1 - killed} could not connect to JAX's coordination service at .*One has ended meanwhile"
    assert re.search(said, other.err), other.err
    assert "*** Check failure stack trace" not in other.err


@pytest.mark.slow
@pytest.mark.parametrize("large", ["0", "524288"])
def test_a_worker_that_hangs_is_named(tmp_path, large):
    group = run(tmp_path, "stop", REPLICANT_HEARTBEAT_TIMEOUT="15", LARGE=large)
    group.wait_for_line(0, "three steps")
    group.workers[0].wait(_group.SECONDS)
    group.kill()
    (first, second) = group.wait()
    assert (first.status, second.status) == (1, -9)
    assert re.search(r"worker 1 \(.*\)  has sent no heartbeat for \d+ s", first.err), first.err


@pytest.mark.parametrize("large", ["0", pytest.param("524288", marks=pytest.mark.slow)])
@pytest.mark.long_cases("0")
def test_a_worker_that_leaves_early_is_named(tmp_path, large):
    workers = run(tmp_path, "leave", LARGE=large).wait()
    assert [worker.status for worker in workers] == [1, 0]
    assert re.search(r"worker 1 \(.*\)  has ended its program", workers[0].err), workers[0].err


@pytest.mark.parametrize("large", ["0", "524288"])
@pytest.mark.long
def test_a_worker_that_leaves_in_a_step_of_its_own_is_named(tmp_path, large):
    begun = time.monotonic()
    workers = run(tmp_path, "uneven", LARGE=large, FOLDER=str(tmp_path / "checkpoint")).wait()
    assert time.monotonic() - begun < 60  # it takes 7; the deadline of an exchange is 200
    assert workers[0].status == 1
    named = r"worker 1 \(.*\) (went on with the next step without it| has ended its program)"  # whichever is noticed first
    assert re.search(named, workers[0].err), workers[0].err


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        (
            "program",
            r"have traced different programs.*\n  worker 0 .*step: \d+ operations \(\w+\) on .*\n  worker 1 .*step: \d+ operations",
        ),
        pytest.param(
            "variables",
            r"about to use different variables.*\n  worker 0 .* 1 variable\(s\) to place; .*32\[2\]\n  worker 1 .*32\[3\]",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_workers_that_do_not_do_the_same_get_a_table(tmp_path, mode, message):
    for worker in run(tmp_path, mode).wait():
        assert worker.status == 1
        assert re.search(r"WorkerMismatchError: The workers .*" + message, worker.err), worker.err


@pytest.mark.long
def test_workers_of_which_one_is_asked_to_leave_save_after_the_same_step(tmp_path):
    folder = tmp_path / "checkpoints"
    group = _group.Group(HERE / "_worker_preempted.py", 2, tmp_path, environ={"FOLDER": str(folder)})
    group.wait_for_line(1, "three steps")
    group.workers[1].send_signal(signal.SIGTERM)
    first, second = group.wait()
    assert (first.status, second.status) == (143, 143), (first.err[-2000:], second.err[-2000:])
    assert "SIGTERM: everything is saved, leaving" in second.err
    assert "another worker was asked to leave: everything is saved, leaving" in first.err
    counter = replicant.Variable(0.0)
    replicant.Checkpoint(steps=counter).restore(replicant.latest_checkpoint(folder)).expect_partial()
    assert float(counter) == first.answer + 1 == second.answer + 1  # the last call left before it was noted


@pytest.mark.slow
def test_all_is_well_and_nothing_is_left(tmp_path):
    """The same program without a mistake; process 0 waits for the other."""
    workers = run(tmp_path, "ok").wait()
    assert [worker.status for worker in workers] == [0, 0]
    assert {worker.out.split()[-1] for worker in workers} == {"42.0"}
    assert not any(TRACE in worker.err for worker in workers)


@pytest.mark.slow
def test_workers_whose_models_or_data_differ_in_fit_get_a_table(tmp_path):
    """Both go on afterwards: nobody has begun to compute."""
    for answer in _group.Group(HERE / "_worker_mismatch.py", 2, tmp_path).ended_well():
        assert re.search(r"different variables.*\n  worker 0 .*4\].*\n  worker 1 .*5\]", answer["model"]), answer["model"]
        pattern = r"The workers' batches differ\. Give fit.*\n  worker 0 .*checksum \w{8}\n  worker 1 .*checksum \w{8}"
        assert re.search(pattern, answer["data"]), answer["data"]
        for case, last in (("later", 1), ("many", 255)):
            rows = rf"\n  worker 0 .*batches 0 to {last} of this loop: sum \w{{16}}\n  worker 1 .*batches 0 to {last} of"
            pattern = rf"The workers' batches differ\. Give fit.*{rows}"
            assert re.search(pattern, answer[case]), answer[case]
        pattern = r"different numbers of steps\. Call fit.*\n  worker 0 .*steps_per_epoch=None.*\n  worker 1 .*steps_per_epoch=1,"
        assert re.search(pattern, answer["steps"]), answer["steps"]
        pattern = r"different numbers of steps\. Call fit.*\n  worker 0 .*, 8 rows\)\n  worker 1 .*, 6 rows\)"
        assert re.search(pattern, answer["rows"]), answer["rows"]
        assert answer["nothing"] == "trained"
