"""From what happens to workers to what is done: tables."""

import pytest

from replicant.launch.console._clock import Clock
from replicant.launch.record._progress import Progress, slowest, status_line, straggler
from replicant.launch.team._policy import Decision, Failure, Kind, decide, describe, exit_code, first_cause, is_short, of_exit

KILLED = Failure(2, Kind.SIGNAL, 137, "SIGKILL")
RAISED = Failure(1, Kind.RAISED, 1, "ValueError: no")
RUNTIME = Failure(0, Kind.RAISED, 1, "JaxRuntimeError: Gloo all-reduce failed")
LOST = Failure(0, Kind.LOST, 1, "WorkerLostError: worker 2 is gone")
PREEMPTED = Failure(1, Kind.PREEMPTED, 143)
ASKED = Failure(-1, Kind.ASKED, 130, "Ctrl-C")

EXITS = [
    (0, None, None, None),
    (3, None, Kind.EXIT, 3),
    (143, None, Kind.PREEMPTED, 143),
    (-15, None, Kind.SIGNAL, 143),  # ended by SIGTERM, which is no program that was asked to leave and has saved
    (-9, None, Kind.SIGNAL, 137),
    (-11, None, Kind.SIGNAL, 139),
    (-40, None, Kind.SIGNAL, 168),
    (0, "ValueError: no", Kind.RAISED, 1),
    (1, "WorkerLostError: gone", Kind.LOST, 1),
]


@pytest.mark.parametrize(("code", "reported", "kind", "shell"), EXITS)
def test_what_an_exit_code_means(code: int, reported: str | None, kind: Kind | None, shell: int | None) -> None:
    failure = of_exit(0, code, 143, reported)
    assert (failure and failure.kind, failure and failure.code) == (kind, shell)


CAUSES = [
    ([KILLED], [], KILLED),
    ([LOST, KILLED], [], KILLED),  # what a worker says of others' ends is no cause, even if it comes first
    ([RUNTIME, LOST, RAISED], [], RAISED),
    ([RUNTIME, LOST], [], RUNTIME),  # may be out of memory
    ([RAISED, KILLED], [], RAISED),  # the first of two causes
    ([PREEMPTED, LOST], [], PREEMPTED),
    ([LOST, PREEMPTED, KILLED], [], KILLED),
    ([ASKED, KILLED], [], ASKED),
    ([LOST], [2], Failure(2, Kind.LEFT, 1, other=str(LOST))),
    ([KILLED], [1], KILLED),
]


@pytest.mark.parametrize(("failures", "left", "cause"), CAUSES)
def test_the_first_cause(failures: list[Failure], left: list[int], cause: Failure) -> None:
    assert first_cause(failures, left) == cause


DECISIONS = [
    # cause, (restarts so far, of, lived, short lives) -> restart, code, counts, pause
    (KILLED, (0, 0, 100.0, 0), (False, 137, True, 0.0)),
    (KILLED, (0, 1, 100.0, 0), (True, 137, True, 0.0)),
    (KILLED, (1, 1, 100.0, 0), (False, 137, True, 0.0)),
    (KILLED, (0, 5, 1.0, 0), (True, 137, True, 0.0)),  # the first time at once
    (KILLED, (1, 5, 1.0, 1), (True, 137, True, 2.0)),
    (KILLED, (4, 5, 1.0, 4), (True, 137, True, 16.0)),
    (KILLED, (4, 99, 1.0, 60), (True, 137, True, 60.0)),
    (KILLED, (1500, 9999, 1.0, 1500), (True, 137, True, 60.0)),
    (KILLED, (4, 5, 100.0, 4), (True, 137, True, 0.0)),
    (PREEMPTED, (1, 1, 100.0, 0), (True, 143, False, 0.0)),
    (PREEMPTED, (1, 1, 1.0, 3), (True, 143, False, 8.0)),
    (PREEMPTED, (0, 0, 100.0, 0), (False, 143, True, 0.0)),
    (ASKED, (0, 5, 100.0, 0), (False, 130, True, 0.0)),
]


@pytest.mark.parametrize(("cause", "numbers", "expected"), DECISIONS)
def test_the_decision(cause: Failure, numbers: tuple[int, int, float, int], expected: tuple[object, ...]) -> None:
    found = decide(cause, *numbers)
    assert (found.restart, found.code, found.counts, found.pause) == expected


def test_why_there_is_no_restart() -> None:
    assert decide(KILLED, 0, 0, 9.0, 0).reason == "--max-restarts is 0"
    assert decide(KILLED, 3, 3, 9.0, 0).reason == "all 3 restart(s) of --max-restarts are used up"
    assert Decision(restart=False, code=1).reason == ""


def test_lives_that_are_short() -> None:
    assert (is_short(9.0), is_short(11.0)) == (True, False)


def test_exit_codes_as_a_shell_shows_them() -> None:
    assert [exit_code(code) for code in (0, 1, -2, -9, -15)] == [0, 1, 130, 137, 143]


DESCRIPTIONS = [
    (KILLED, "was ended by SIGKILL"),
    (Failure(2, Kind.EXIT, 3), "ended with exit code 3"),
    (Failure(2, Kind.RAISED, 1, "ValueError: {}"), "failed: ValueError: {}"),
    (Failure(2, Kind.FROZEN, 124, "30 s"), "sent no heartbeat for 30 s, and was killed"),
    (Failure(2, Kind.LATE, 124, "300 s"), "did not come within 300 s after the first worker"),
    (Failure(2, Kind.STUCK, 124, "300 s", "rank 1"), "ran no step for 300 s after rank 1 had ended its program"),
    (Failure(2, Kind.STALLED, 124, "60 s"), "ran no step for 60 s"),
    (Failure(2, Kind.LEFT, 1), "ended its program (exit code 0) before the others, which cannot go on without it"),
    (Failure(2, Kind.PREEMPTED, 143), "was asked to leave (exit code 143)"),
    (Failure(2, Kind.LOST, 1, "WorkerLostError: x"), "could not go on without another worker: WorkerLostError: x"),
]


@pytest.mark.parametrize(("failure", "text"), DESCRIPTIONS)
def test_descriptions_name_rank_host_step_and_log(failure: Failure, text: str) -> None:
    facts = {"host": "node1", "pid": 7, "step": 40, "log": "run/rank-2.log"}
    assert describe(failure, facts) == f"rank 2 (host node1, pid 7) {text}; its last step: 40; its log: run/rank-2.log"
    assert "; it had run no step yet; " in describe(failure, {**facts, "step": 0})


def beats(*marks: tuple[int, float, float]) -> Progress:
    progress = Progress()
    progress.hello(0.0, "node1")
    for step, at, waited in marks:
        progress.beat(at, {"step": step, "at": at, "waited": waited, "phase": "step"})
    return progress


def test_rates_and_stragglers() -> None:
    quick, slow = beats((10, 1.0, 0.5), (20, 2.0, 1.4)), beats((10, 1.0, 0.1), (20, 2.0, 0.2))
    assert quick.steps_per_second == pytest.approx(10.0)
    assert quick.own_seconds == pytest.approx(0.01)
    assert slow.own_seconds == pytest.approx(0.09)
    assert slowest({0: quick, 1: slow}) == (1, pytest.approx(0.09))
    assert straggler({0: quick, 1: slow}) == (1, pytest.approx(0.09), pytest.approx(0.01))
    assert straggler({0: quick, 1: quick}) is None
    assert straggler({0: quick}) is None
    assert straggler({0: quick, 1: Progress()}) is None
    tiny = beats((10, 1.0, 0.998), (20, 2.0, 1.997))
    assert straggler({0: tiny, 1: beats((10, 1.0, 0.5), (20, 2.0, 1.45))}) is None, "5 ms are no reason for a warning"


def test_the_status_line() -> None:
    assert status_line(0, {0: Progress(), 1: Progress()}) == "generation 0, 2 worker(s), starting"
    line = status_line(3, {0: beats((10, 1.0, 0.5), (20, 2.0, 1.4)), 1: beats((10, 1.0, 0.1), (20, 2.0, 0.2)), 2: Progress()})
    assert line == "generation 3, 3 worker(s), step 0, steps/s 10 10 -, slowest: rank 1 (0.09 s of its own per step)"


@pytest.mark.parametrize("message", [{}, {"step": "1", "at": 1.0, "waited": 0.0}, {"step": 1, "at": None, "waited": 0.0}])
def test_what_is_no_beat_is_no_heartbeat(message: dict[str, object]) -> None:
    progress = beats((10, 1.0, 0.5))
    progress.beat(9.0, message)
    assert (progress.seen, progress.step) == (1.0, 10)


def test_time_in_which_nobody_looked_counts_for_nobody() -> None:
    times = iter([100.0, 101.0, 106.0, 111.5, 112.0, 172.0, 172.5])  # one tick of 5.5 s, and one of a minute
    clock = Clock(lambda: next(times))
    assert [clock.read() for _ in range(6)] == [101.0, 106.0, 106.0, 106.5, 106.5, 107.0]
