"""Decides which workers of an elastic job form its next generation: a pure state machine.

Whoever owns it reports what workers say, how they end and what time it is. Each report returns orders, to be carried out in turn.
Nothing here starts or ends a process, sends a message or reads the clock.

    WORKS --"here"--> HERE --all members are here--> CONNECTING --"connected"--> WORKS
    WORKS, HERE, CONNECTING --"waiting"--> WAITING --nobody is lost--> WORKS
    any member --it fails--> LOST            any member --its program ends without an error--> DONE

When a generation is formed:
    a member that goes on, or READY --> LEAVING, or BREAKING_OFF after CONNECTING --"formed"--> FORMED --all members have--> WORKS
    DONE --> OUT
    LOST --> OUT, or DUE --its time has come--> STARTING --"ready"--> READY

Nobody waits for a worker that is LOST or DONE: a new generation is formed without it.
"""

import dataclasses
import enum
from collections.abc import Container, Mapping

from .._settings import Settings
from ..record._progress import Progress
from ._elastic_commands import End, Form, GiveUp, Order, Say, Start, Tell
from ._policy import DEADLINE_CODE, Failure, Kind

_SETTLE_SECONDS = 0.2  # to wait after a loss for others that happen at the same time
_NOBODY_SECONDS = 5.0  # to wait until a loss shows, after a worker has noticed one
_LEAVE_SECONDS = 15.0  # to leave a step once another worker has left it; _LEAVE_STEPS is added
_LEAVE_STEPS = 3.0  # steps of the worker's usual length
_FIRST_STEPS = 2  # steps that may compile
_LONG_PHASES = ("saving", "validation")  # phases that may take as long as --start
_PAUSE_SECONDS = 1.0  # before the first replacement of a worker that made no step; it then doubles
_MOST_DOUBLINGS = 6
_LONGEST_PAUSE = 60.0


class State(enum.Enum):
    """What a worker does, as far as the supervisor knows."""

    OUT = "has no process, and gets none"
    DUE = "has no process; its replacement starts soon"
    STARTING = "is a replacement that is on its way"
    READY = "is a replacement that waits to be taken in"
    WORKS = "computes with the others, or is on its way to connect to them"
    HERE = "waits until all members are here, to connect to them"
    CONNECTING = "connects to the others, which cannot be interrupted"
    WAITING = "has noticed that another worker is lost, and waits for an order"
    LEAVING = "was told to form a new group, and has not left its step yet"
    BREAKING_OFF = "was told to form a new group while it connected to the old one"
    FORMED = "has left its step, and waits until all members have"
    LOST = "has failed, and is ended when the next generation is formed"
    DONE = "has ended its program without an error"


_COME = (State.STARTING, State.READY)
_TOLD = (State.LEAVING, State.BREAKING_OFF)
_CONNECTING = (State.CONNECTING, State.BREAKING_OFF)
_GOES_ON = (State.WORKS, State.HERE, State.CONNECTING, State.WAITING, *_TOLD, State.FORMED)
_MEMBER = (*_GOES_ON, State.LOST, State.DONE)
_NEEDS_ALL = (State.HERE, State.CONNECTING, *_TOLD, State.FORMED)  # cannot go on unless all members do their part

# The state of a worker after what it says.
_NEXT = {
    (State.STARTING, "ready"): State.READY,
    (State.LEAVING, "formed"): State.FORMED,
    (State.BREAKING_OFF, "formed"): State.FORMED,
    (State.WORKS, "here"): State.HERE,
    (State.CONNECTING, "connected"): State.WORKS,
    (State.WORKS, "waiting"): State.WAITING,
    (State.HERE, "waiting"): State.WAITING,
    (State.CONNECTING, "waiting"): State.WAITING,
}


@dataclasses.dataclass
class _Worker:
    """What is known about the process of one rank."""

    state: State
    at: float = 0.0  # when the state began, or when a replacement that is due starts
    has_come: bool = False  # whether it has said hello
    has_computed: bool = False  # whether it is not a replacement, or one that has been told to go
    first_step: int = 0  # its last step before the current generation

    def enter(self, state: State, now: float) -> None:
        self.state, self.at = state, now


class Generations:
    """The members of the current generation, and the replacements of lost ones.

    Args:
        settings: The settings of the job.
        progress: What the heartbeats have said, by rank. The owner keeps it up to date.
        generation: The number of the first generation.
        restarts: How many workers may be replaced.
    """

    def __init__(self, settings: Settings, progress: Mapping[int, Progress], generation: int, restarts: int):
        self.generation = generation
        self.restarts_left = restarts
        self.is_forming = False  # from the order to form a group until all have done so
        self._least = (settings.elastic or (1, 1))[0]
        self._start, self._max_restarts = settings.start, settings.max_restarts
        self._progress = progress
        self._workers = {rank: _Worker(State.WORKS, has_computed=True) for rank in range(settings.num_workers)}
        self._begun = set(self._workers)  # the members of the last generation that was told to go
        self._lost: list[Failure] = []  # of workers that are LOST, in the order in which they were noticed
        self._form_at: float | None = None  # when a generation is formed for those that are LOST or READY
        self._ordered_at = 0.0  # when the members were told to form the current generation
        self._connect_at = 0.0  # when they were told to connect
        self._num_replaced = 0

    def state(self, rank: int) -> State:
        """What a worker does."""
        return self._workers[rank].state

    def has_own_deadlines(self, rank: int) -> bool:
        """Whether `look` watches over the time that a worker takes, in place of the deadlines of a job that is not elastic."""
        return self.is_forming or self.state(rank) not in _MEMBER

    # What happens to workers.

    def hear(self, now: float, rank: int, kind: object, generation: object = None) -> list[Order]:
        """Take in what a worker says. If it speaks of another generation, an order that it has not read yet is on its way.

        Args:
            now: The time, in seconds.
            rank: The rank of the worker.
            kind: The kind of the message.
            generation: The generation of which the message speaks, if any.
        """
        worker = self._workers[rank]
        if kind == "hello":
            is_first, worker.has_come = not worker.has_come, True
            return [Tell(rank, "form")] if is_first and worker.state in _TOLD else []
        state = _NEXT.get((worker.state, str(kind)))
        if state is None or (state is not State.READY and generation != self.generation):
            return []
        worker.enter(state, now)
        if state is State.READY:
            return self._receive(now, rank)
        if state is State.FORMED:
            worker.first_step = self._progress[rank].step
            return self._go_on(now)
        return self._connect(now) if state is State.HERE else []

    def fail(self, now: float, failure: Failure) -> list[Order]:
        """Take in that a worker has failed or ended with an error. Only the first failure of a process counts."""
        worker = self._workers[failure.rank]
        if worker.state in _COME:
            worker.enter(State.OUT, now)
            self._plan_replacement(now, failure)
            return [Say((failure,), "It was about to join the others, which go on."), End(failure.rank)]
        if worker.state in _GOES_ON:
            worker.enter(State.LOST, now)
            self._lost.append(failure)
            self._form_at = now + _SETTLE_SECONDS
        return []

    def finish(self, now: float, rank: int) -> list[Order]:
        """Take in that a worker has ended its program without an error."""
        worker = self._workers[rank]
        was_told = worker.state in _TOLD
        if worker.state in _GOES_ON:
            worker.enter(State.DONE, now)
        elif worker.state in _COME:
            worker.enter(State.OUT, now)
        return self._end_before_forming(now, rank) if was_told else []

    def look(self, now: float) -> list[Order]:
        """Take in that time has passed."""
        orders: list[Order] = []
        for rank in self._ranks((State.DUE,)):
            if now > self._workers[rank].at:
                self._workers[rank] = _Worker(State.STARTING, now)
                orders.append(Start(rank))
        orders += self._look_at_replacements(now)
        for failure in self._late(now):
            orders += self.fail(now, failure)
        is_due = self._waits_for_the_done() if self._form_at is None else now > self._form_at
        if is_due and not self._must_wait(now):
            orders += self._form(now)
        elif self._form_at is None:
            orders += self._look_at_the_waiting(now)
        return orders

    # Forming a generation.

    def _form(self, now: float) -> list[Order]:
        """Form a new generation of the members that go on and of the replacements that are ready."""
        self._form_at, lost, self._lost = None, self._lost, []
        orders: list[Order] = [End(failure.rank) for failure in lost]
        for failure in lost:
            self._workers[failure.rank].enter(State.OUT, now)
        came, done = self._ranks((State.READY,)), self._ranks((State.DONE,))
        members = self._ranks((*_GOES_ON, State.READY))
        if lost and len(members) < self._least:
            return [*orders, GiveUp(tuple(lost))]
        if not members or not (lost or came or done):  # all are done, or the one that had come has failed
            return orders
        for rank in done:
            self._workers[rank].enter(State.OUT, now)
        self.generation += 1
        self.is_forming = True
        self._ordered_at = now
        for rank in members:
            if self.state(rank) not in _TOLD:  # otherwise its time goes on
                is_connecting = self.state(rank) is State.CONNECTING
                self._workers[rank].enter(State.BREAKING_OFF if is_connecting else State.LEAVING, now)
        orders.append(Form(self.generation, tuple(members)))
        orders += [Tell(rank, "form") for rank in members if self._workers[rank].has_come]  # others are told at their hello
        what = (*lost, *(f"rank {rank} has come" for rank in came)) or ("The others have ended",)
        then = f"Generation {self.generation} goes on with {len(members)} worker(s): {members}."
        orders.append(Say(what, then, in_logs=True))
        for failure in lost:
            self._plan_replacement(now, failure)
        return orders

    def _go_on(self, now: float) -> list[Order]:
        """Let the members go on, if all of them have formed the group."""
        members = self._ranks(_MEMBER)
        if any(self.state(rank) is not State.FORMED for rank in members):
            return []
        self.is_forming = False
        self._begun = set(members)
        for rank in members:
            self._workers[rank].enter(State.WORKS, now)
            self._workers[rank].has_computed = True
        return [Tell(rank, "go") for rank in members]

    def _connect(self, now: float) -> list[Order]:
        """Let the members connect, if all of them are here: connecting cannot be interrupted."""
        members = self._ranks(_MEMBER)
        if any(self.state(rank) is not State.HERE for rank in members):
            return []
        self._connect_at = now
        for rank in members:
            self._workers[rank].enter(State.CONNECTING, now)
        return [Tell(rank, "connect") for rank in members]

    def _must_wait(self, now: float) -> bool:
        """Whether a new generation must wait because members connect. That takes a moment, unless they miss somebody."""
        if self._lost or self._ranks((State.WAITING,)):
            return False
        return now < self._connect_at + _LEAVE_SECONDS and bool(self._ranks(_CONNECTING))

    def _waits_for_the_done(self) -> bool:
        """Whether members wait for others, one of which has ended its program."""
        return bool(self._ranks((State.DONE,)) and self._ranks(_NEEDS_ALL))

    def _end_before_forming(self, now: float, rank: int) -> list[Order]:
        """Handle a worker that finished the training before it was told that others have come, which are now too late.

        If it is the chief, the training is over for all members. If not, the others are about to finish it, too.
        """
        others = set(self._ranks(_MEMBER)) - {rank}
        is_chief = rank == min(self._begun) and self._workers[rank].has_computed
        needless = sorted(others if is_chief else others - self._begun)
        self._lost = [failure for failure in self._lost if failure.rank not in needless]
        for other in (*needless, *self._ranks((State.DUE,))):
            self._workers[other].enter(State.OUT, now)
        text = f"rank {rank} finished before the workers could form a new group"
        what = (text, f"{needless} are no longer needed") if needless else (text,)
        return [Say(what), *(End(other) for other in needless)]

    # Replacements.

    def _plan_replacement(self, now: float, failure: Failure) -> None:
        counts = failure.kind is not Kind.PREEMPTED
        if not self._max_restarts or (counts and not self.restarts_left):
            return
        self.restarts_left -= counts
        self._num_replaced += 1
        lived = self._progress[failure.rank].step > 0
        pause = 0.0 if lived else min(_LONGEST_PAUSE, _PAUSE_SECONDS * 2.0 ** min(self._num_replaced, _MOST_DOUBLINGS))
        self._workers[failure.rank].enter(State.DUE, now + pause)

    def _receive(self, now: float, rank: int) -> list[Order]:
        """Take in a replacement, unless the training is done."""
        if self._ranks((State.DONE,)):
            self._workers[rank].enter(State.OUT, now)
            return [End(rank)]
        self._form_at = now if self._form_at is None else self._form_at
        return []

    def _look_at_replacements(self, now: float) -> list[Order]:
        """Check that replacements come in time, and end them if all members are done."""
        if self._ranks(_MEMBER) == self._ranks((State.DONE,)):
            come = self._ranks(_COME)
            for rank in (*come, *self._ranks((State.DUE,))):
                self._workers[rank].enter(State.OUT, now)
            return [End(rank) for rank in come]
        orders: list[Order] = []
        for rank in self._ranks((State.STARTING,)):
            if now > self._workers[rank].at + self._start:
                orders += self.fail(now, self._too_late(rank))
        return orders

    # Members for which others wait.

    def _look_at_the_waiting(self, now: float) -> list[Order]:
        """Tell workers that miss somebody that no worker is lost: the error is their own."""
        waiting = self._ranks((State.WAITING,))
        if not waiting or now <= min(self._workers[rank].at for rank in waiting) + _NOBODY_SECONDS:
            return []
        for rank in waiting:
            self._workers[rank].enter(State.WORKS, now)
        return [Tell(rank, "none") for rank in waiting]

    def _late(self, now: float) -> list[Failure]:
        """Find the workers for which others have waited too long, so that those who wait go on."""
        told, here = self._ranks(_TOLD), self._ranks((State.HERE,))
        if here and now > min(self._workers[rank].at for rank in here) + self._start:
            return [self._too_late(rank) for rank in self._ranks(_GOES_ON) if self.state(rank) is not State.HERE]
        if not told or self._form_at is not None:
            return []
        patience = self._patience(told)
        late = [rank for rank in told if now > self._leave_by(rank, patience[rank])]
        absent = [rank for rank in late if not self._workers[rank].has_come]
        if absent or not late:
            return [self._too_late(rank) for rank in absent]
        # It may hold the others that are late. They get another chance.
        rank = min(late, key=lambda rank: self._progress[rank].moved or 0.0)
        is_held = patience[rank] < self._start
        return [Failure(rank, Kind.HELD, DEADLINE_CODE, f"{patience[rank]:.0f} s") if is_held else self._too_late(rank)]

    def _leave_by(self, rank: int, patience: float) -> float:
        """When a worker must have left its step. The time counts from the first of several orders, but each gives it a moment."""
        return max(self._workers[rank].at + patience, self._ordered_at + min(patience, _LEAVE_SECONDS))

    def _patience(self, told: list[int]) -> dict[int, float]:
        """The seconds that each worker may take to leave its step, which may be one of the first steps and compile.

        They are few if others were at the same step and have left it, or if others are ahead and wait for the worker.
        """
        known = [rank for rank in self._ranks(_MEMBER) if self._workers[rank].has_computed]
        steps = {rank: self._progress[rank].step - self._workers[rank].first_step for rank in known}
        have_left = any(self.state(rank) not in _TOLD for rank in known)
        furthest = max(steps.values(), default=0)
        found = {}
        for rank in told:
            progress, seconds = self._progress[rank], self._start
            if self.state(rank) is State.BREAKING_OFF:
                seconds = _LEAVE_SECONDS
            elif rank in steps and (have_left or furthest > steps[rank]) and self._is_quick(rank, steps[rank]):
                seconds = _LEAVE_SECONDS + _LEAVE_STEPS / (progress.steps_per_second or float("inf"))
            found[rank] = min(seconds, self._start)
        return found

    def _is_quick(self, rank: int, num_steps: int) -> bool:
        return num_steps >= _FIRST_STEPS and self._progress[rank].phase not in _LONG_PHASES

    def _too_late(self, rank: int) -> Failure:
        return Failure(rank, Kind.LATE, DEADLINE_CODE, f"{self._start:g} s")

    def _ranks(self, states: Container[State]) -> list[int]:
        return [rank for rank, worker in self._workers.items() if worker.state in states]
