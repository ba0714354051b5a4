"""A team that goes on with the remaining workers when one is lost, and takes in its replacement later.

A worker keeps its rank, its log and its process. Its place among the others changes with each generation. The workers' side is
``replicant.run_elastic``.
"""

from contextlib import ExitStack

from ._channel import Message
from ._environment import Place
from ._policy import DEADLINE_CODE, Failure, Kind
from ._processes import Worker
from ._progress import Progress
from ._service import CoordinationService
from ._team import Team, Tools

_SETTLE_SECONDS = 0.2  # to wait after a loss for others that happen at the same time
_NOBODY_SECONDS = 5.0  # to wait until a loss shows, after a worker has noticed one
_LEAVE_SECONDS = 15.0  # to leave a step once another worker has left it; _LEAVE_STEPS is added
_LEAVE_STEPS = 3.0  # steps of the worker's usual length
_FIRST_STEPS = 2  # steps that may compile
_LONG_PHASES = ("saving", "validation")  # phases that may take as long as --start
_PAUSE_SECONDS = 1.0  # before the first replacement of a worker that made no step; it then doubles


class ElasticTeam(Team):
    """A `Team` that goes on after the loss of a worker, as long as enough of them are left.

    Args:
        tools: The tools of the supervisor, whose settings have `elastic`.
        generation: How many times the job was started again.
        stack: The stack that ends whatever is still running.
        restarts: How many workers may be replaced.
    """

    def __init__(self, tools: Tools, generation: int, stack: ExitStack, restarts: int):
        self._least = (tools.settings.elastic or (1, 1))[0]
        self.restarts_left = restarts
        self._lost: list[Failure] = []  # losses since the last group was formed
        self._members = set(range(tools.settings.num_workers))  # the current generation
        self._old_members, self._chief = self._members, 0  # the last generation that has computed
        self._ready: set[int] = set()  # workers that wait to be taken in
        self._is_forming = False  # until all workers that were told to form a group have done so
        self._unformed: set[int] = set()  # those that have not done so yet
        self._ordered_at = 0.0  # when they were told to
        self._unsent: dict[int, Message] = {}  # orders for workers that have not connected yet
        self._here: set[int] = set()  # workers that wait for the others, to connect to them
        self._here_by = 0.0  # when the others must be here, too
        self._connecting: set[int] = set()  # workers that were told to connect, and have not said yet that they are connected
        self._connect_at = 0.0  # when they were told to
        self._first_steps: dict[int, int] = {}  # each worker's last step before the current generation
        self._new: set[int] = set()  # replacements that have not computed with the others yet
        self._waiting: dict[int, float] = {}  # when workers noticed that another one was lost
        self._form_at: float | None = None
        self._formed_by = 0.0
        self._launch_at: dict[int, float] = {}  # ranks to be replaced, and when
        self._joined_by: dict[int, float] = {}  # replacements that must be taken in, and until when
        self._num_replaced = 0
        super().__init__(tools, generation, stack)

    def _launch(self, place: Place, **more: str) -> Worker:
        return super()._launch(place, REPLICANT_ELASTIC="1", **more)

    def _take(self, rank: int, message: Message) -> None:
        super()._take(rank, message)
        kind, now = message.get("kind"), self._clock.read()
        if kind == "hello" and rank in self._unsent:
            self._tools.channel.send(rank, self._unsent.pop(rank))
        elif kind == "here" and message.get("generation") == self.generation and rank in self._members:
            self._meet(rank, now)
        elif kind == "connected" and message.get("generation") == self.generation:
            self._connecting.discard(rank)
        elif kind == "waiting" and message.get("generation") == self.generation:  # otherwise the order is on its way
            self._waiting[rank] = now
        elif kind == "formed" and message.get("generation") == self.generation:
            self._unformed.discard(rank)
            self._connecting.discard(rank)
            self._first_steps[rank] = self.progress[rank].step
            if not self._unformed:
                self._new -= self._members
                self._is_forming = False
                for member in self._members:
                    self._tools.channel.send(member, {"kind": "go", "generation": self.generation})
        elif kind == "ready" and self._members.isdisjoint(self.left):
            self._ready.add(rank)
            self._form_at = self._form_at or now
        elif kind == "ready":  # training is done
            self._forget(rank)

    def _meet(self, rank: int, now: float) -> None:
        """Note that a worker is about to connect. It waits until all are, because connecting cannot be interrupted."""
        if not self._here:
            self._here_by = now + self._settings.start
        self._here.add(rank)
        if self._here == self._members:
            for member in self._members:
                self._tools.channel.send(member, {"kind": "connect", "generation": self.generation})
            self._here, self._connecting, self._connect_at = set(), set(self._members), now

    def _fail(self, now: float, failure: Failure | None) -> None:
        if failure is None or self._stop_at is not None or failure.rank < 0:
            super()._fail(now, failure)
            return
        if failure.rank not in self._members:  # a replacement that has not been taken in yet
            self._console.say(f"{self.describe(failure)}. It was about to join the others, which go on.")
            self._forget(failure.rank)
            self._plan_replacement(failure, now)
            return
        if failure.rank in [known.rank for known in self._lost]:
            return
        self._lost.append(failure)
        self._form_at = now + _SETTLE_SECONDS

    def _note_end(self, rank: int, code: int, signals: set[int], now: float) -> None:
        if code == 0 and rank in self._unformed and self._stop_at is None:
            self._end_before_forming(rank, now)
        super()._note_end(rank, code, signals, now)

    def _end_before_forming(self, rank: int, now: float) -> None:
        """Handle a worker that finished the training before it was told that others have come, which are now too late."""
        needless = set(self._members) - ({rank} if rank == self._chief else self._old_members)
        text = f"rank {rank} finished before the workers could form a new group"
        self._console.say(f"{text}; {sorted(needless)} are no longer needed." if needless else f"{text}.")
        for other in needless:
            self._forget(other)
        self._launch_at = {}
        self._unformed.discard(rank)
        self._form_at = now

    def _each_round(self, now: float) -> None:
        if self._stop_at is not None:
            return
        for rank in [rank for rank, when in self._launch_at.items() if now > when]:
            self._replace(rank)
        self._look_at_replacements(now)
        self._look_at_the_late(now)
        if self._form_at is None and self._waiting and now > min(self._waiting.values()) + _NOBODY_SECONDS:
            for rank in self._waiting:  # no worker is lost: the error is its own
                self._tools.channel.send(rank, {"kind": "none"})
            self._waiting = {}
        if self._form_at is not None and now > self._form_at and not self._is_connecting(now):
            self._form(now)

    def _is_connecting(self, now: float) -> bool:
        """Whether a new worker must wait because the others are connecting. That takes a moment, and cannot be interrupted."""
        is_undisturbed = not self._lost and not self._waiting
        return bool(self._connecting) and is_undisturbed and now < self._connect_at + _LEAVE_SECONDS

    def _look_at_the_late(self, now: float) -> None:
        """End workers that others have waited for too long, so that those who wait go on."""
        seconds = f"{self._settings.start:g} s"
        late = {rank: Failure(rank, Kind.LATE, DEADLINE_CODE, seconds) for rank in self._unformed if now > self._formed_by}
        held = {rank: patience for rank in self._unformed if now > self._ordered_at + (patience := self._patience(rank))}
        if (
            held and not late and self._form_at is None
        ):  # others may be held by the one that is the furthest behind: they get another chance
            rank = min(held, key=lambda rank: self.progress[rank].moved or 0.0)
            late[rank] = Failure(rank, Kind.HELD, DEADLINE_CODE, f"{held[rank]:.0f} s")
        if self._here and now > self._here_by:
            late |= {rank: Failure(rank, Kind.LATE, DEADLINE_CODE, seconds) for rank in self._members - self._here}
            self._here = set()
        for rank in sorted(late):
            self._fail(now, late[rank])
            self._unformed.discard(rank)

    def _patience(self, rank: int) -> float:
        """The seconds that a worker may take to leave its step, which may be one of the first steps and compile.

        This is short if others were at the same step and have left it, or if others are ahead and wait for this worker.
        """
        progress = self.progress[rank]
        if rank in self._connecting:
            return _LEAVE_SECONDS
        if rank in self._new:
            return self._settings.start
        steps = {other: self.progress[other].step - self._first_steps.get(other, 0) for other in self._members - self._new}
        is_waited_for = any(other not in self._unformed or count > steps[rank] for other, count in steps.items())
        if not is_waited_for or steps[rank] < _FIRST_STEPS or progress.phase in _LONG_PHASES:
            return self._settings.start
        return _LEAVE_SECONDS + _LEAVE_STEPS / (progress.steps_per_second or float("inf"))

    def _look_at_replacements(self, now: float) -> None:
        """Check that replacements come in time, and end them if the others are done."""
        is_over = not any(self.workers[rank].code is None for rank in self._members)
        for rank, deadline in list(self._joined_by.items()):
            if is_over:
                self._forget(rank)
            elif now > deadline and rank not in self._ready:
                self._fail(now, Failure(rank, Kind.LATE, DEADLINE_CODE, f"{self._settings.start:g} s"))
        if is_over:
            self._launch_at = {}

    def _form(self, now: float) -> None:
        """Form a new group: tell each remaining worker its new place."""
        self._form_at, lost, self._lost = None, self._lost, []
        for failure in lost:
            self._forget(failure.rank)
        gone = {failure.rank for failure in lost}
        members = [w.rank for w in self.workers if w.code is None and w.rank not in gone and w.rank in self._members | self._ready]
        if not members and not lost:  # all workers are done
            return
        if len(members) < self._least and lost:
            for failure in lost:
                super()._fail(now, failure)
            return
        self.generation += 1
        service = (
            self._stack.enter_context(CoordinationService(len(members), 2 * self._settings.heartbeat)) if len(members) > 1 else None
        )
        order = {"kind": "form", "generation": self.generation, "num_workers": len(members)}
        order["coordinator"] = None if service is None else service.address
        self._unsent, self._here = {}, set()
        for place, rank in enumerate(members):
            if not self._tools.channel.send(rank, {**order, "rank": place}):
                self._unsent[rank] = {**order, "rank": place}  # until the worker says hello
        came = sorted(self._ready & set(members))
        for rank in came:
            self._joined_by.pop(rank, None)
        if not self._is_forming:  # otherwise the previous members never began
            self._old_members, self._chief = self._members, min(self._members)
        self._is_forming = True
        self._members, self._unformed = set(members), set(members)
        self._ordered_at, self._formed_by = now, now + self._settings.start
        self._ready, self._waiting = set(), {}
        self._say(lost, came, members)
        for failure in lost:
            self._plan_replacement(failure, now)

    def _say(self, lost: list[Failure], came: list[int], members: list[int]) -> None:
        texts = [self.describe(failure) for failure in lost] + [f"rank {rank} has come" for rank in came]
        what = "; ".join(texts) or "The others have ended"
        text = f"{what}. Generation {self.generation} goes on with {len(members)} worker(s): {members}."
        self._console.say(text)
        self._tools.logs.tell_all(text)

    def _forget(self, rank: int) -> None:
        """End a worker, and forget what is known about it. Nothing that it still does counts."""
        worker = self.workers[rank]
        worker.kill()
        self._noted.add(worker)
        self._reported.discard(rank)
        self._ready.discard(rank)
        self._waiting.pop(rank, None)
        self._unformed.discard(rank)
        self._unsent.pop(rank, None)
        self._here.discard(rank)
        self._connecting.discard(rank)
        self._first_steps.pop(rank, None)
        self._joined_by.pop(rank, None)

    def _plan_replacement(self, failure: Failure, now: float) -> None:
        counts = failure.kind is not Kind.PREEMPTED
        if not self._settings.max_restarts or (counts and not self.restarts_left):
            return
        self.restarts_left -= counts
        self._num_replaced += 1
        lived = self.progress[failure.rank].step > 0
        self._launch_at[failure.rank] = now + (0.0 if lived else min(60.0, _PAUSE_SECONDS * 2.0**self._num_replaced))

    def _replace(self, rank: int) -> None:
        del self._launch_at[rank]
        self._joined_by[rank] = self._clock.read() + self._settings.start
        self.progress[rank] = Progress()
        self._ran.pop(rank, None)
        self._new.add(rank)
        place = Place(rank, self._settings.num_workers, self.generation, None, self._tools.channel.address, self._tools.channel.key)
        self.workers[rank] = self._launch(place, REPLICANT_JOIN="1", REPLICANT_COORDINATOR="outside")

    def _deadline_missed(self, now: float, rank: int) -> Failure | None:
        if self._unformed or rank not in self._members:  # these have their own deadlines
            return None if not self._is_frozen(now, rank) else super()._deadline_missed(now, rank)
        return super()._deadline_missed(now, rank)
