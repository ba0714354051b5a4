"""A team that goes on with the remaining workers when one is lost, and takes in its replacement later.

A worker keeps its rank, its log and its process. Its place among the others changes with each generation. ``_generations`` decides
what is done, and this file does it. The workers' side is ``replicant.run_elastic``.
"""

from collections.abc import Iterable
from contextlib import ExitStack

from ...cluster.wire._listener import Message
from .._environment import Place
from ..record._progress import Progress
from ._elastic_commands import End, Form, GiveUp, Order, Say, Start, Tell
from ._generations import Generations
from ._policy import Failure
from ._processes import Worker
from ._team import Team, Tools


class ElasticTeam(Team):
    """A `Team` that goes on after the loss of a worker, as long as enough of them are left.

    Args:
        tools: The tools of the supervisor, whose settings have `elastic`.
        generation: How many times the job was started again.
        stack: The stack that ends whatever is still running.
        restarts: How many workers may be replaced.
    """

    def __init__(self, tools: Tools, generation: int, stack: ExitStack, restarts: int):
        super().__init__(tools, generation, stack)
        self._generations = Generations(tools.settings, self.progress, generation, restarts)
        self._formed = Form(generation, tuple(self.progress))
        self._coordinator: str | None = None

    @property
    def restarts_left(self) -> int:
        """How many workers may still be replaced."""
        return self._generations.restarts_left

    def _launch(self, place: Place, **more: str) -> Worker:
        return super()._launch(place, REPLICANT_ELASTIC="1", **more)

    # What happens.

    def _take(self, rank: int, message: Message) -> None:
        super()._take(rank, message)
        now = self._clock.read()
        self._carry_out(now, self._generations.hear(now, rank, message.get("kind"), message.get("generation")))

    def _each_round(self, now: float) -> None:
        if self._stop_at is None:
            self._carry_out(now, self._generations.look(now))

    def _note_end(self, rank: int, code: int, signals: set[int], now: float) -> None:
        if code == 0 and self._stop_at is None:
            self._carry_out(now, self._generations.finish(now, rank))
        super()._note_end(rank, code, signals, now)

    def _fail(self, now: float, failure: Failure | None) -> None:
        if failure is None or self._stop_at is not None or failure.rank < 0:
            super()._fail(now, failure)
        else:
            self._note_failure(failure)
            self._carry_out(now, self._generations.fail(now, failure))

    def _deadline_missed(self, now: float, rank: int) -> Failure | None:
        is_frozen = self._silent_for(now, rank) > self._settings.heartbeat
        if self._generations.has_own_deadlines(rank) and not is_frozen:
            return None
        return super()._deadline_missed(now, rank)

    # What is done.

    def _carry_out(self, now: float, orders: Iterable[Order]) -> None:
        for order in orders:
            match order:
                case Start(rank):
                    self._replace(rank)
                case End(rank):
                    self._end(rank)
                case Form():
                    self._begin(order)
                case Tell(rank, kind):
                    self._tell(rank, kind)
                case Say():
                    self._say(order)
                case GiveUp(failures):
                    for failure in failures:
                        super()._fail(now, failure)

    def _replace(self, rank: int) -> None:
        self.progress[rank] = Progress()
        self._ran.pop(rank, None)
        self._reported.discard(rank)  # by the process before
        place = Place(rank, self._settings.num_workers, self.generation, None, self._tools.channel.address, self._tools.channel.key)
        self.workers[rank] = self._launch(place, REPLICANT_JOIN="1", REPLICANT_COORDINATOR="outside")

    def _end(self, rank: int) -> None:
        worker = self.workers[rank]
        worker.kill()
        if worker not in self._noted:
            self._noted.add(worker)
            self._tools.run_log.write("ended", rank=rank, code=worker.code)
        self._reported.discard(rank)

    def _begin(self, order: Form) -> None:
        self._formed, self.generation = order, order.generation
        self._tools.run_log.all_steps(self.progress)
        self._tools.run_log.write("formed", generation=order.generation, members=list(order.members))
        self._coordinator = self._serve(len(order.members))

    def _tell(self, rank: int, kind: str) -> None:
        message: Message = {"kind": kind, "generation": self.generation}
        if kind == "form":
            members = self._formed.members
            message |= {"num_workers": len(members), "rank": members.index(rank), "coordinator": self._coordinator}
        self._tools.channel.send(rank, message)

    def _say(self, order: Say) -> None:
        what = "; ".join(self.describe(each) if isinstance(each, Failure) else each for each in order.what)
        text = f"{what}. {order.then}".rstrip()
        self._console.say(text)
        if order.in_logs:
            self._tools.logs.tell_all(text)
