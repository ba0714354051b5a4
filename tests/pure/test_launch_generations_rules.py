"""Rules for the generations of an elastic job that hold whatever happens and whenever: workers that obey, struck at random."""

import dataclasses
import math
import random
from collections.abc import Iterable
from typing import Any, Protocol

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from replicant.launch._settings import Settings
from replicant.launch.record._progress import Progress
from replicant.launch.team._elastic_commands import End, Form, GiveUp, Order, Say, Start, Tell
from replicant.launch.team._generations import Generations, State
from replicant.launch.team._policy import Failure, Kind

TICK = 0.25
START = 30.0
HEARTBEAT = 8.0  # after which a frozen worker is noticed
WORK = 20.0  # the seconds for which all members compute together until the training is done
EVENTS = ("hello", "here", "connected", "waiting", "formed", "ready", "fail", "finish", "look")
RESTS = (State.WORKS, State.CONNECTING, State.DONE, State.OUT)  # nobody waits: a worker that connects has a deadline of its own
LISTENS = (State.WORKS, State.HERE, State.CONNECTING, State.WAITING, State.LEAVING, State.BREAKING_OFF, State.FORMED)


def generations(num_workers: int, least: int, restarts: int) -> Generations:
    given_settings = Settings(("x",), num_workers=num_workers, elastic=(least, num_workers), max_restarts=9, start=START)
    return Generations(given_settings, {rank: Progress() for rank in range(num_workers)}, 0, restarts)


# Events in any order, whether workers would say so or not.


@settings(max_examples=300)
@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 3),
    st.lists(st.tuples(st.floats(0, 20), st.sampled_from(EVENTS), st.integers(0, 3), st.integers(0, 1)), max_size=60),
)
@pytest.mark.long
def test_nobody_waits_for_ever(num_workers: int, least: int, restarts: int, events: list[tuple[float, str, int, int]]) -> None:
    machine = generations(num_workers, min(least, num_workers), restarts)
    book, now = Book(machine, restarts), 100.0
    for seconds, kind, victim, back in events:
        now += seconds
        rank = victim % num_workers
        if kind == "look":
            orders = machine.look(now)
        elif kind == "finish":
            orders = machine.finish(now, rank)
        elif kind == "fail":
            orders = machine.fail(now, Failure(rank, Kind.SIGNAL, 137, "SIGKILL"))
        else:
            orders = machine.hear(now, rank, kind, machine.generation - back)
        book.check(orders)
    for _ in range(1200):  # and then nobody says anything any more
        now += 0.5
        book.check(machine.look(now))
    assert book.has_given_up or all(machine.state(rank) in RESTS for rank in range(num_workers))


class Book:
    """Notes what was ordered, and checks that it makes sense."""

    def __init__(self, machine: Generations, restarts: int):
        self._machine, self._restarts, self._generation = machine, restarts, 0
        self._num_ended = 0
        self._ended: set[int] = set()
        self.has_given_up = False

    def check(self, orders: Iterable[Order]) -> None:
        if self.has_given_up:
            return
        for order in orders:
            match order:
                case Start(rank):
                    self._ended.discard(rank)
                case End(rank):
                    assert rank not in self._ended, "a process is ended once"
                    self._ended.add(rank)
                    self._num_ended += 1
                case Form(generation, members):
                    assert generation == self._generation + 1
                    assert members
                    assert not self._ended.intersection(members)
                    self._generation = generation
                case Tell(rank):
                    assert self._machine.state(rank) in LISTENS, "who is told what to do is able to do it"
                case Say(what):
                    assert what
                case GiveUp(failures):
                    assert failures
                    self.has_given_up = True
        assert self._machine.generation == self._generation
        assert self._restarts - self._num_ended <= self._machine.restarts_left <= self._restarts, "a process costs one at most"


# Workers that do what they are told, some of which are struck.


class Engine(Protocol):
    """What decides: `Generations`, or what has it inside."""

    restarts_left: int

    def hear(self, now: float, rank: int, kind: object, generation: object = None) -> list[Any]: ...
    def fail(self, now: float, failure: Failure) -> list[Any]: ...
    def finish(self, now: float, rank: int) -> list[Any]: ...
    def look(self, now: float) -> list[Any]: ...


@dataclasses.dataclass(frozen=True)
class Blow:
    """A misfortune of one worker.

    kill, raise, leave: it ends. freeze: it says nothing any more. deaf: it obeys no order from now on. hang: the next replacement,
    of whomever, does not get as far as its hello.
    """

    at: float
    victim: int
    kind: str


@dataclasses.dataclass
class Process:
    """A worker as `run_elastic` makes it."""

    rank: int
    rng: random.Random
    until: float  # when it does its next thing by itself
    is_replacement: bool = False
    does: str = "starts"
    generation: int = 0
    world: tuple["Process", ...] = ()
    order: tuple[int, tuple["Process", ...]] | None = None
    step: int = 0
    first: int = 0  # its step when it joined its world
    is_alive: bool = True
    is_struck: bool = False  # what becomes of it is its own fault
    is_frozen: bool = False
    is_deaf: bool = False
    is_inside: bool = False  # of an exchange, when it was told to form a group
    has_joined: bool = False
    has_come: bool = False


class World:
    """A job: its processes, the time, and the rules."""

    def __init__(self, engine: Engine, progress: dict[int, Progress], least: int, seed: int, blows: list[Blow]):
        self.engine, self.progress, self.least, self.seed = engine, progress, least, seed
        self.blows = sorted(blows, key=lambda blow: blow.at)
        self.limit = 150.0 + 2 * (START + HEARTBEAT) * len(blows)
        self.now, self.work, self.num_hangs, self.num_started, self.generation = 100.0, 0.0, 0, 0, 0
        self.begun, self.restarts, self.num_struck = self.now, engine.restarts_left, 0
        self.is_done = self.has_given_up = False
        self.frozen: list[tuple[float, Process]] = []
        self.trace: list[Any] = []
        self.processes = {rank: self.start(rank) for rank in progress}
        for process in self.processes.values():
            process.world, process.has_joined = tuple(self.processes.values()), True

    def start(self, rank: int) -> Process:
        rng = random.Random(f"{self.seed} {rank} {self.num_started}")
        self.num_started += 1
        return Process(rank, rng, self.now + rng.uniform(0.0, 4.0))

    def run(self) -> None:
        while not self.has_given_up and any(process.is_alive for process in self.processes.values()):
            self.now += TICK
            assert self.now - self.begun < self.limit, "the job has come to an end"
            while self.blows and self.blows[0].at <= self.now - self.begun:
                self.strike(self.blows.pop(0))
            for process in list(self.processes.values()):
                if process.is_alive and not process.is_frozen:
                    self.live(process)
            self.compute()
            self.obey(self.engine.look(self.now))
            for frozen in [each for each in self.frozen if self.now > each[0] + HEARTBEAT]:
                self.frozen.remove(frozen)
                if frozen[1].is_alive:
                    self.fail(frozen[1], Kind.FROZEN)
            assert self.engine.restarts_left >= self.restarts - self.num_struck, "healthy workers cost no restart"

    def strike(self, blow: Blow) -> None:
        process = self.processes[blow.victim % len(self.processes)]
        if blow.kind == "hang":
            self.num_hangs += 1
        if blow.kind == "hang" or not process.is_alive or process.is_struck or process.does == "finishes":
            return
        process.is_struck = True
        self.num_struck += blow.kind != "leave"
        if blow.kind == "freeze":
            process.is_frozen = True
            self.frozen.append((self.now, process))
        elif blow.kind == "deaf":
            process.is_deaf = True
        else:
            process.is_alive = False
            self.fail(process, {"kill": Kind.SIGNAL, "raise": Kind.RAISED, "leave": Kind.PREEMPTED}[blow.kind])

    def fail(self, process: Process, kind: Kind) -> None:
        self.trace.append((self.now, "fails", process.rank, kind))
        self.obey(self.engine.fail(self.now, Failure(process.rank, kind, 1, "x")))

    def hear(self, process: Process, kind: str, *, generation: int | None = None) -> None:
        self.trace.append((self.now, process.rank, kind, generation))
        self.obey(self.engine.hear(self.now, process.rank, kind, generation))

    # What is ordered.

    def obey(self, orders: list[Any]) -> None:
        for order in orders:
            self.trace.append((self.now, order))
            match order:
                case Start(rank):
                    assert not self.processes[rank].is_alive
                    process = self.processes[rank] = self.start(rank)
                    process.is_replacement = True
                    self.progress[rank] = Progress()
                    if self.num_hangs:
                        self.num_hangs -= 1
                        self.num_struck += 1
                        process.is_struck, process.until = True, math.inf
                case End(rank):
                    process = self.processes[rank]
                    assert self.is_done or process.is_struck, "healthy workers are not ended"
                    process.is_alive = False
                case Form(generation, members):
                    assert generation > self.generation, "numbers of generations rise"
                    self.generation = generation
                    self.members = tuple(self.processes[rank] for rank in members)
                    assert all(member.is_alive for member in self.members), "nobody forms a group with a worker that has ended"
                    for member in self.members:
                        member.has_joined = True
                case Tell(rank, kind):
                    self.tell(self.processes[rank], kind)
                case GiveUp():
                    left = [each for each in self.processes.values() if each.is_alive and each.has_joined and not each.is_struck]
                    assert len(left) < self.least, "a job goes on while enough healthy workers are left"
                    self.has_given_up = True

    def tell(self, process: Process, kind: str) -> None:
        assert process.is_alive, "nobody is told anything after its end"
        assert process.has_come
        if kind == "form":
            process.order, process.is_inside = (self.generation, self.members), process.rng.random() < 0.5
            if process.does in ("meets", "waits", "formed", "computes"):
                process.until = self.now + process.rng.uniform(0.0, 2.0 if process.does == "computes" else 0.3)
        elif kind == "go":
            assert process.does == "formed" or process.is_struck
            process.does, process.until = "builds", self.now + process.rng.uniform(0.0, 4.0)
        elif kind == "connect":
            assert process.does == "meets" or process.is_struck
            process.does, process.until = "connects", self.now + process.rng.uniform(0.2, 6.0)
        else:
            raise AssertionError("no healthy worker is told that nobody is lost")

    # What workers do.

    def live(self, process: Process) -> None:
        if process.does == "computes" and process.order is None and self.has_broken(process):
            process.does, process.until = "errs", self.now + process.rng.uniform(0.0, 1.0)
        if self.now < process.until:
            return
        if process.order is not None and process.does not in ("starts", "imports", "finishes"):
            self.leave(process)
        else:
            getattr(self, process.does)(process)

    def leave(self, process: Process) -> None:
        assert process.order is not None
        if process.is_deaf or (process.does == "computes" and self.is_held(process)):
            return
        if process.does not in ("waits", "formed"):
            self.hear(process, "waiting", generation=process.generation)
        (process.generation, process.world), process.order = process.order, None
        process.does, process.until, process.first = "formed", math.inf, process.step
        self.hear(process, "formed", generation=process.generation)

    def has_broken(self, process: Process) -> bool:
        """Whether a process of its world is gone, or has left the world."""
        return any(not each.is_alive or each.generation != process.generation or each.does == "waits" for each in process.world)

    def is_held(self, process: Process) -> bool:
        """Whether it is inside of an exchange with a worker that neither computes nor obeys."""
        return process.is_inside and not self.has_broken(process) and any(each.is_frozen or each.is_deaf for each in process.world)

    def starts(self, process: Process) -> None:
        process.does, process.until, process.has_come = "imports", self.now + process.rng.uniform(0.0, 3.0), True
        self.progress[process.rank].hello(self.now, "host")
        self.hear(process, "hello", generation=0)

    def imports(self, process: Process) -> None:
        if process.is_replacement:
            process.does, process.until = "waits", math.inf
            self.hear(process, "ready")
        else:
            process.does, process.until = "builds", self.now + process.rng.uniform(0.0, 4.0)

    def builds(self, process: Process) -> None:
        process.until = math.inf
        process.does = "meets" if len(process.world) > 1 else "computes"
        if process.does == "meets":
            self.hear(process, "here", generation=process.generation)

    def connects(self, process: Process) -> None:
        if self.has_broken(process):
            process.does = "errs"
        elif not any(each.is_frozen for each in process.world):
            process.does, process.until = "computes", math.inf
            self.hear(process, "connected", generation=process.generation)

    def errs(self, process: Process) -> None:
        process.does, process.until = "waits", math.inf
        self.hear(process, "waiting", generation=process.generation)

    def formed(self, process: Process) -> None:
        """It waits for the others."""

    meets = waits = computes = formed

    def finishes(self, process: Process) -> None:
        process.is_alive, self.is_done = False, True
        self.trace.append((self.now, "finishes", process.rank))
        self.obey(self.engine.finish(self.now, process.rank))

    def compute(self) -> None:
        """Let each worker make a step, if its whole world does."""
        for process in self.processes.values():
            world = [each for each in process.world if each.generation == process.generation]
            if process.does != "computes" or process.is_frozen or not process.is_alive:
                continue
            if all(each.does == "computes" and each.is_alive and not each.is_frozen and not each.order for each in process.world):
                process.step += 1
                self.work += TICK / len(world)
            elif process.order and not process.is_deaf and self.is_held(process):
                deaf = [each.step - each.first for each in world if each.is_deaf]
                process.step += process.step - process.first in deaf  # it waits in the step after that of the deaf one
            self.progress[process.rank].beat(self.now, {"step": process.step, "at": self.now, "waited": 0.0, "phase": "step"})
        if self.work > WORK:
            for process in self.processes.values():
                if process.does == "computes" and process.order is None and not process.is_frozen:
                    process.does, process.until = "finishes", self.now + process.rng.uniform(0.0, 1.0)


KINDS = ("kill", "kill", "raise", "freeze", "deaf", "leave", "hang")
BLOWS = st.lists(st.builds(Blow, st.floats(0, 60), st.integers(0, 3), st.sampled_from(KINDS)), max_size=6)


def blows(*rows: tuple[float, int, str]) -> list[Blow]:
    return [Blow(*row) for row in rows]


# Rank 2 is inside of an exchange with rank 0, which does not obey. It is not ended together with rank 0, nor before it.
HELD = blows((11.4, 3, "leave"), (36.8, 1, "kill"), (26.8, 1, "kill"), (32.3, 0, "deaf"), (58.9, 3, "leave"), (44.3, 1, "deaf"))
TWICE = blows((10.9, 3, "raise"), (20.0, 0, "deaf"), (45.5, 1, "raise"), (56.7, 2, "hang"), (18.6, 1, "raise"), (8.6, 3, "raise"))


@settings(max_examples=300)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 4), st.integers(0, 10_000), BLOWS)
@example(3, 1, 4, 11, HELD)
@example(3, 1, 4, 2337, TWICE)
def test_healthy_workers_come_to_an_end(num_workers: int, least: int, restarts: int, seed: int, struck: list[Blow]) -> None:
    progress = {rank: Progress() for rank in range(num_workers)}
    least = min(least, num_workers)
    given_settings = Settings(("x",), num_workers=num_workers, elastic=(least, num_workers), max_restarts=9, start=START)
    World(Generations(given_settings, progress, 0, restarts), progress, least, seed, struck).run()
