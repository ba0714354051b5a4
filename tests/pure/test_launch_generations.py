"""Who forms the next generation of an elastic job: tables of what happens, and what is ordered then."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from replicant.launch._settings import Settings
from replicant.launch.record._progress import Progress
from replicant.launch.team._elastic_commands import End, Form, GiveUp, Order, Say, Start, Tell
from replicant.launch.team._generations import Generations, State
from replicant.launch.team._policy import Failure, Kind

START = 60.0
Event = Callable[["Job", float], list[Order]]


@dataclasses.dataclass
class Job:
    """Generations, and the progress that they are told of."""

    machine: Generations
    progress: dict[int, Progress]


def job(workers: int = 3, least: int = 1, restarts: int = 2, come: tuple[int, ...] | None = None, steps: int = 10) -> Job:
    """A job whose workers have connected to the supervisor, unless `come` says which, and made so many steps of a second each."""
    settings = Settings(("x",), num_workers=workers, elastic=(least, workers), max_restarts=9, start=START)
    progress = {rank: Progress() for rank in range(workers)}
    machine = Generations(settings, progress, 0, restarts)
    for rank in range(workers) if come is None else come:
        progress[rank].hello(0.0, "host")
        assert machine.hear(0.0, rank, "hello", 0) == []
        for step in range(steps + 1):
            beat(progress[rank], step, step - steps)
    return Job(machine, progress)


def given(**options: Any) -> Callable[[], Job]:
    return lambda: job(**options)


def beat(progress: Progress, step: int, now: float, phase: str = "step") -> None:
    progress.beat(now, {"step": step, "at": now, "waited": 0.0, "phase": phase})


# What happens.


def says(kind: str, rank: int, generation: int | None = None) -> Event:
    return lambda job, now: job.machine.hear(now, rank, kind, generation)


def fails(failure: Failure) -> Event:
    return lambda job, now: job.machine.fail(now, failure)


def ends(rank: int) -> Event:
    return lambda job, now: job.machine.finish(now, rank)


def looks(job: Job, now: float) -> list[Order]:
    return job.machine.look(now)


def beats(rank: int, step: int, phase: str = "step") -> Event:
    def event(job: Job, now: float) -> list[Order]:
        beat(job.progress[rank], step, now, phase)
        return []

    return event


def is_new(*ranks: int) -> Event:
    """These processes have just been started: they have made no step."""

    def event(job: Job, now: float) -> list[Order]:
        job.progress.update({rank: Progress() for rank in ranks})
        return []

    return event


def restarts(count: int) -> Event:
    def event(job: Job, now: float) -> list[Order]:
        assert job.machine.restarts_left == count
        return []

    return event


def is_in(state: State, *ranks: int) -> Event:
    def event(job: Job, now: float) -> list[Order]:
        assert [job.machine.state(rank) for rank in ranks] == [state] * len(ranks)
        return []

    return event


# What is ordered.


def killed(rank: int) -> Failure:
    return Failure(rank, Kind.SIGNAL, 137, "SIGKILL")


def late(rank: int) -> Failure:
    return Failure(rank, Kind.LATE, 124, "60 s")


def held(rank: int, seconds: int) -> Failure:
    return Failure(rank, Kind.HELD, 124, f"{seconds} s")


FINISHED = "finished before the workers could form a new group"
FROZEN = Failure(1, Kind.FROZEN, 124, "30 s")
PREEMPTED = Failure(1, Kind.PREEMPTED, 143)


def tell(kind: str, *ranks: int) -> list[Order]:
    return [Tell(rank, kind) for rank in ranks]


def forms(generation: int, members: list[int], *what: Failure | str, told: tuple[int, ...] | None = None) -> list[Order]:
    """The orders that form a generation. `told` are the members that can be told at once."""
    lost = [End(each.rank) for each in what if isinstance(each, Failure)]
    then = f"Generation {generation} goes on with {len(members)} worker(s): {members}."
    orders = tell("form", *(members if told is None else told))
    return [*lost, Form(generation, tuple(members)), *orders, Say(what, then, in_logs=True)]


def dropped(failure: Failure) -> list[Order]:
    return [Say((failure,), "It was about to join the others, which go on."), End(failure.rank)]


def all_connect(now: float, generation: int, *ranks: int) -> list[Any]:
    """Rows in which workers meet and connect."""
    first, last = ranks[:-1], ranks[-1]
    return [
        *((now, says("here", rank, generation), []) for rank in first),
        (now, says("here", last, generation), tell("connect", *ranks)),
        *((now + 1.0, says("connected", rank, generation), []) for rank in ranks),
    ]


def all_form(now: float, generation: int, *ranks: int) -> list[Any]:
    """Rows in which workers leave their steps and are told to go on."""
    *first, last = ranks
    rows = [(now, says("formed", rank, generation), []) for rank in first]
    return [*rows, (now, says("formed", last, generation), tell("go", *sorted(ranks)))]


ONE_LOST = [(10.0, fails(killed(1)), []), (10.3, looks, forms(1, [0, 2], killed(1))), *all_form(10.4, 1, 0, 2)]
ONE_BACK = [
    *ONE_LOST,
    (10.5, looks, [Start(1)]),
    (12.0, says("hello", 1), []),
    (13.0, says("ready", 1), []),
    (13.1, looks, forms(2, [0, 1, 2], "rank 1 has come")),
]
ONE_TOLD = [(10.0, fails(killed(2)), []), (10.3, looks, forms(1, [0, 1], killed(2)))]

TABLE = {
    # Losses.
    "a worker is lost, and its replacement joins": (
        given(),
        [
            *all_connect(1.0, 0, 0, 1, 2),
            (10.0, fails(killed(1)), []),
            (10.2, looks, []),  # others may be lost at the same time
            (10.3, looks, forms(1, [0, 2], killed(1))),
            *all_form(10.4, 1, 0, 2),
            *all_connect(11.0, 1, 0, 2),
            (12.5, looks, [Start(1)]),
            (12.6, is_in(State.STARTING, 1), []),
            (15.0, says("hello", 1), []),
            (16.0, says("ready", 1), []),
            (16.1, looks, forms(2, [0, 1, 2], "rank 1 has come")),
            *all_form(16.2, 2, 1, 2, 0),
            *all_connect(17.0, 2, 0, 1, 2),
            (18.5, is_in(State.WORKS, 0, 1, 2), []),
            (99.0, looks, []),
        ],
    ),
    "a worker is killed before its hello": (
        given(come=(2,)),
        [
            (1.0, fails(killed(0)), []),
            (1.3, looks, forms(1, [1, 2], killed(0), told=(2,))),
            (1.4, says("hello", 1), tell("form", 1)),
            (1.5, says("hello", 1), []),
            *all_form(2.0, 1, 2, 1),
            (3.3, looks, []),  # it has made no step: its replacement waits for 2 s
            (3.4, looks, [Start(0)]),
        ],
    ),
    "a worker is killed while others are here": (
        given(),
        [
            (1.0, says("here", 0, 0), []),
            (1.1, says("here", 1, 0), []),
            (1.2, fails(killed(1)), []),
            (1.3, says("here", 2, 0), []),  # nobody connects to a worker that is lost
            (1.5, looks, forms(1, [0, 2], killed(1))),
        ],
    ),
    "a worker is killed while all connect": (
        given(),
        [
            *all_connect(1.0, 0, 0, 1, 2)[:3],
            (1.5, says("connected", 0, 0), []),
            (1.6, fails(killed(1)), []),
            (1.9, looks, forms(1, [0, 2], killed(1))),
            (1.9, is_in(State.LEAVING, 0), []),
            (1.9, is_in(State.BREAKING_OFF, 2), []),
            (1.9, says("connected", 2, 0), []),  # in the old generation
            (2.0, says("formed", 0, 1), []),
            (8.0, says("formed", 2, 1), tell("go", 0, 2)),
        ],
    ),
    "a worker that connects does not break off": (
        given(),
        [
            *all_connect(1.0, 0, 0, 1, 2)[:3],
            (1.6, fails(killed(1)), []),
            (1.9, looks, forms(1, [0, 2], killed(1))),
            (2.0, says("formed", 0, 1), []),
            (16.8, looks, [Start(1)]),
            (17.0, looks, []),
            (17.3, looks, forms(2, [0], held(2, 15))),
        ],
    ),
    "a worker is frozen": (
        given(),
        [
            (10.0, says("waiting", 0, 0), []),
            (12.0, fails(FROZEN), []),
            (12.1, fails(FROZEN), []),  # the supervisor goes on noticing it
            (12.25, looks, forms(1, [0, 2], FROZEN)),
            (12.3, restarts(1), []),
        ],
    ),
    "two workers are killed at once": (
        given(workers=4),
        [
            (10.0, fails(killed(1)), []),
            (10.15, fails(killed(3)), []),
            (10.3, looks, []),
            (10.4, looks, forms(1, [0, 2], killed(1), killed(3))),
            (10.5, looks, [Start(1), Start(3)]),
            (10.6, restarts(0), []),
        ],
    ),
    "a worker is killed while the others form a group": (
        given(),
        [
            *ONE_TOLD,
            (10.4, says("formed", 0, 1), []),
            (10.5, fails(killed(1)), []),
            (10.6, looks, [Start(2)]),
            (10.8, looks, forms(2, [0], killed(1))),
            (10.9, says("formed", 0, 1), []),  # of the generation before
            *all_form(11.0, 2, 0),
        ],
    ),
    "the last worker is gone": (given(workers=1), [(10.0, fails(killed(0)), []), (10.3, looks, [End(0), GiveUp((killed(0),))])]),
    "the last member is gone, and its replacement is not ready": (
        given(workers=2),
        [
            (10.0, fails(killed(1)), []),
            (10.3, looks, forms(1, [0], killed(1))),
            (10.4, looks, [Start(1)]),
            (11.0, fails(killed(0)), []),
            (11.3, looks, [End(0), GiveUp((killed(0),))]),
        ],
    ),
    "the last member is gone, and a replacement is ready": (
        given(workers=2),
        [
            (10.0, fails(killed(1)), []),
            (10.3, looks, forms(1, [0], killed(1))),
            (10.4, looks, [Start(1)]),
            (11.0, says("hello", 1), []),
            (11.1, fails(killed(0)), []),
            (11.2, says("ready", 1), []),
            (11.4, looks, forms(2, [1], killed(0), "rank 1 has come")),
        ],
    ),
    "there are as few workers as may be": (
        given(least=2, restarts=0),
        [
            (10.0, fails(killed(1)), []),
            (10.3, looks, forms(1, [0, 2], killed(1))),
            *all_form(10.4, 1, 0, 2),
            (11.0, fails(killed(0)), []),
            (11.3, looks, [End(0), GiveUp((killed(0),))]),
        ],
    ),
    "there are fewer than may be, for two reasons": (
        given(least=2),
        [
            (10.0, fails(killed(1)), []),
            (10.0, fails(killed(0)), []),
            (10.3, looks, [End(1), End(0), GiveUp((killed(1), killed(0)))]),
        ],
    ),
    # Restarts.
    "the restarts are spent": (
        given(restarts=1),
        [
            *ONE_LOST,
            (10.5, looks, [Start(1)]),
            (11.0, fails(killed(1)), dropped(killed(1))),
            (11.1, restarts(0), []),
            (99.0, looks, []),
            (99.1, is_in(State.OUT, 1), []),
        ],
    ),
    "a worker that was preempted costs no restart": (
        given(restarts=0),
        [(10.0, fails(PREEMPTED), []), (10.3, looks, forms(1, [0, 2], PREEMPTED)), (10.4, looks, [Start(1)])],
    ),
    "replacements that make no step wait longer and longer": (
        given(workers=2, restarts=9),
        [
            (10.0, fails(killed(1)), []),
            (10.3, looks, forms(1, [0], killed(1))),
            (10.4, looks, [Start(1)]),
            (10.4, is_new(1), []),
            (11.0, fails(killed(1)), dropped(killed(1))),
            (15.0, looks, []),
            (15.1, looks, [Start(1)]),
            (16.0, fails(killed(1)), dropped(killed(1))),
            (24.0, looks, []),
            (24.1, looks, [Start(1)]),
        ],
    ),
    "one process costs one restart, whatever comes of it late": (
        given(),
        [
            *ONE_LOST,
            (10.45, fails(killed(1)), []),  # what it said before it was killed is read now
            (10.45, says("ready", 1), []),
            (10.45, says("waiting", 1, 1), []),
            (10.46, restarts(1), []),
            (10.5, looks, [Start(1)]),
        ],
    ),
    # Replacements.
    "there are never more workers than at the beginning": (
        given(workers=2),
        [
            *((1.0, says("ready", rank), []) for rank in (0, 1)),
            (1.1, looks, []),
            (10.0, fails(killed(1)), []),
            (10.3, looks, forms(1, [0], killed(1))),
            (10.4, looks, [Start(1)]),
            (11.0, says("ready", 1), []),
            (11.1, looks, forms(2, [0, 1], "rank 1 has come", told=(0,))),
            (11.2, says("ready", 1), []),
            (11.3, looks, []),
        ],
    ),
    "a replacement comes too late": (
        given(restarts=1),
        [*ONE_LOST, (10.5, looks, [Start(1)]), (70.5, looks, []), (70.6, looks, dropped(late(1))), (99.0, looks, [])],
    ),
    "a replacement ends by itself": (
        given(),
        [*ONE_LOST, (10.5, looks, [Start(1)]), (11.0, ends(1), []), (99.0, looks, []), (99.0, restarts(1), [])],
    ),
    "a replacement that was ready fails": (
        given(restarts=1),
        [
            *ONE_LOST,
            (10.5, looks, [Start(1)]),
            (12.0, says("ready", 1), []),
            (12.0, fails(killed(1)), dropped(killed(1))),
            (12.1, looks, []),  # and the others are left alone
        ],
    ),
    "a replacement waits until the others are connected": (
        given(),
        [
            *ONE_LOST,
            *all_connect(11.0, 1, 0, 2)[:2],
            (11.1, looks, [Start(1)]),
            (12.0, says("hello", 1), []),
            (13.0, says("ready", 1), []),
            (14.0, looks, []),
            (14.0, says("connected", 0, 1), []),
            (15.0, looks, []),
            (15.0, says("connected", 2, 1), []),
            (15.1, looks, forms(2, [0, 1, 2], "rank 1 has come")),
        ],
    ),
    "a replacement does not wait for ever until the others are connected": (
        given(),
        [
            *ONE_LOST,
            *all_connect(11.0, 1, 0, 2)[:2],
            (11.1, looks, [Start(1)]),
            (12.0, says("hello", 1), []),
            (13.0, says("ready", 1), []),
            (25.9, looks, []),
            (26.0, looks, forms(2, [0, 1, 2], "rank 1 has come")),
        ],
    ),
    "a replacement comes when the training is done": (
        given(),
        [*ONE_LOST, (10.5, looks, [Start(1)]), (11.0, ends(0), []), (11.1, says("ready", 1), [End(1)]), (99.0, looks, [])],
    ),
    "the training is done before a replacement comes": (
        given(workers=4, restarts=3),
        [
            (10.0, fails(killed(1)), []),
            (10.1, fails(killed(2)), []),
            (10.4, looks, forms(1, [0, 3], killed(1), killed(2))),
            *all_form(10.4, 1, 0, 3),
            (10.5, looks, [Start(1), Start(2)]),
            (10.5, is_new(1, 2), []),
            (10.6, fails(killed(2)), dropped(killed(2))),
            (11.0, ends(0), []),
            (11.1, looks, []),
            (11.2, ends(3), []),
            (11.3, looks, [End(1)]),
            (99.0, looks, []),
        ],
    ),
    # Workers that others wait for.
    "a worker misses another one, and nobody is lost": (
        given(),
        [
            (10.0, says("waiting", 2, 0), []),
            (12.0, says("waiting", 0, 0), []),
            (15.0, looks, []),
            (15.1, looks, tell("none", 0, 2)),
            (99.0, looks, []),
        ],
    ),
    "a worker misses another one, which is lost": (
        given(),
        [
            (10.0, says("waiting", 2, 0), []),
            (14.9, fails(killed(1)), []),
            (15.05, looks, []),
            (15.2, looks, forms(1, [0, 2], killed(1))),
            (15.3, says("waiting", 0, 0), []),  # in the generation before
            (21.0, looks, [Start(1)]),
            (22.0, looks, []),
        ],
    ),
    "a worker does not come to connect": (
        given(),
        [
            (1.0, says("here", 0, 0), []),
            (5.0, says("here", 2, 0), []),
            (61.0, looks, []),
            (61.1, looks, []),
            (61.1, is_in(State.LOST, 1), []),
            (61.4, looks, forms(1, [0, 2], late(1))),
        ],
    ),
    "a worker does not leave its step": (
        given(),
        [
            *ONE_TOLD,
            (10.4, says("formed", 0, 1), []),
            (28.2, looks, [Start(2)]),
            (28.4, looks, []),
            (28.7, looks, forms(2, [0], held(1, 18))),  # three of its steps, of a second each
        ],
    ),
    "a worker that saves may take longer": (
        given(),
        [
            *ONE_TOLD,
            (10.4, says("formed", 0, 1), []),
            (10.4, beats(1, 10, "saving"), []),
            (10.5, looks, [Start(2)]),
            (70.2, looks, []),
            (70.3, says("formed", 1, 1), tell("go", 0, 1)),
        ],
    ),
    "only the worker that holds the others is ended": (
        given(workers=4),
        [
            (9.0, beats(0, 12), []),
            (9.1, beats(1, 12), []),
            (10.0, fails(killed(3)), []),
            (10.3, looks, forms(1, [0, 1, 2], killed(3))),
            (10.4, looks, [Start(3)]),
            (28.2, looks, []),  # 0 and 1 are ahead, and wait inside of an exchange for 2
            (28.4, looks, []),
            (28.4, is_in(State.LOST, 2), []),
            (28.7, looks, forms(2, [0, 1], held(2, 18))),
            *all_form(28.8, 2, 0, 1),
        ],
    ),
    "a straggler in the first exchange may compile": (
        given(steps=0),
        [
            *all_connect(1.0, 0, 0, 1, 2),
            *ONE_TOLD,
            (10.4, says("formed", 0, 1), []),
            (15.0, looks, [Start(2)]),
            (70.2, looks, []),
            (70.3, says("formed", 1, 1), tell("go", 0, 1)),
        ],
    ),
    "a straggler in the first exchange is ended, and who waited for it gets another chance": (
        given(steps=0, restarts=0),
        [
            (9.0, beats(1, 1), []),
            *ONE_TOLD,
            (70.2, looks, []),
            (70.4, looks, []),
            (70.7, looks, forms(2, [1], late(0))),
            (85.6, looks, []),
            (85.8, looks, []),
            (86.1, looks, [End(1), GiveUp((late(1),))]),
        ],
    ),
    "a new order gives nobody more time to compile": (
        given(workers=4, steps=0, restarts=0),
        [
            (10.0, fails(killed(3)), []),
            (10.3, looks, forms(1, [0, 1, 2], killed(3))),
            *((10.4, says("formed", rank, 1), []) for rank in (0, 2)),
            (40.0, fails(killed(2)), []),
            (40.3, looks, forms(2, [0, 1], killed(2))),
            (40.4, says("formed", 0, 2), []),
            (70.2, looks, []),
            (70.4, looks, []),
            (70.7, looks, forms(3, [0], late(1))),
        ],
    ),
    "a worker that was told before its hello does not come": (
        given(come=(1,), restarts=0),
        [
            (1.0, fails(killed(0)), []),
            (1.3, looks, forms(1, [1, 2], killed(0), told=(1,))),
            (1.4, says("formed", 1, 1), []),
            (61.2, looks, []),
            (61.4, looks, []),
            (61.7, looks, forms(2, [1], late(2))),
        ],
    ),
    "a replacement may take its time to join": (
        given(),
        [
            *ONE_BACK,
            (13.2, says("formed", 0, 2), []),
            (13.2, says("formed", 2, 2), []),
            (73.0, looks, []),
            (73.2, looks, []),
            (73.5, looks, forms(3, [0, 2], late(1))),
        ],
    ),
    # Workers that have ended.
    "all workers end": (given(), [*((10.0, ends(rank), []) for rank in (1, 0, 2)), (10.1, looks, []), (99.0, looks, [])]),
    "a worker ends before the others connect": (
        given(),
        [
            (1.0, says("here", 0, 0), []),
            (2.0, ends(1), []),
            (2.1, looks, forms(1, [0, 2], "The others have ended")),
            *all_form(2.2, 1, 0, 2),
        ],
    ),
    "a worker that was to go on ends": (
        given(),
        [
            *ONE_TOLD,
            (10.4, says("formed", 1, 1), []),
            (10.5, ends(1), []),
            (10.6, looks, [Start(2), *forms(2, [0], "The others have ended")]),
        ],
    ),
    "a worker has finished before it was told": (
        given(),
        [
            *ONE_TOLD,
            (10.4, ends(1), [Say((f"rank 1 {FINISHED}",))]),
            (10.5, looks, forms(2, [0], "The others have ended")),
            (10.6, ends(0), [Say((f"rank 0 {FINISHED}",))]),
            (99.0, looks, []),
        ],
    ),
    "a worker has finished before a replacement could join": (
        given(),
        [
            *ONE_BACK,
            (
                13.2,
                ends(2),
                [Say((f"rank 2 {FINISHED}", "[1] are no longer needed")), End(1)],
            ),
            (13.3, looks, forms(3, [0], "The others have ended")),
        ],
    ),
    "the chief has finished before a replacement could join": (
        given(),
        [
            *ONE_BACK,
            (13.2, fails(killed(2)), []),
            (
                13.2,
                ends(0),
                [Say((f"rank 0 {FINISHED}", "[1, 2] are no longer needed")), End(1), End(2)],
            ),
            (99.0, looks, []),
            (99.1, is_in(State.DONE, 0), []),
        ],
    ),
}


@pytest.mark.parametrize(("start", "rows"), TABLE.values(), ids=TABLE)
def test_what_is_ordered(start: Callable[[], Job], rows: list[tuple[float, Event, list[Order]]]) -> None:
    played = start()
    for number, (now, event, expected) in enumerate(rows):
        assert event(played, now) == expected, f"row {number}, at {now} s"


def test_the_deadlines_of_a_whole_job_hold_for_members_that_form_no_group() -> None:
    machine = job().machine
    assert not any(machine.has_own_deadlines(rank) for rank in range(3))
    machine.fail(10.0, killed(1))
    machine.look(10.3)
    assert all(machine.has_own_deadlines(rank) for rank in range(3))
    for rank in (0, 2):
        machine.hear(10.4, rank, "formed", 1)
    assert [machine.has_own_deadlines(rank) for rank in range(3)] == [False, True, False]


def test_a_job_may_lose_any_number_of_replacements() -> None:
    played = job(workers=2)
    played.machine.fail(10.0, PREEMPTED)
    played.machine.look(20.0)
    assert played.machine.hear(20.0, 0, "formed", 1) == tell("go", 0)
    is_new(1)(played, 20.0)
    for now in range(100, 110_000, 100):
        assert played.machine.look(now) == [Start(1)]  # after at most a minute
        assert played.machine.fail(now + 1.0, PREEMPTED) == dropped(PREEMPTED)
    assert played.machine.restarts_left == 2
