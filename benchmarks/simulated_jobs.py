"""Simulate jobs of many workers with the launcher's own state machines, in virtual time: python benchmarks/simulated_jobs.py.

What decides is the launcher's: ``_generations`` for elastic jobs, ``_policy`` for those that start again. When workers fail, and
how long they take, is simulated. The program prints the goodput beside that of a formula, and what a loss costs.
"""

import argparse
import heapq
import itertools
import random
import statistics
import time
from typing import Any

from replicant.launch._settings import Settings
from replicant.launch.record._progress import Progress
from replicant.launch.team._elastic_commands import End, Form, GiveUp, Start, Tell
from replicant.launch.team._generations import Generations, State
from replicant.launch.team._policy import Failure, Kind, decide

DAY = 86400.0
START = (15.0, 45.0)  # seconds from a process's start until it is ready: imports, restoring (an assumption; the page says why)
FORM = (1.0, 4.0)  # seconds to build a step anew and connect, in a process that runs (likewise)
STEP = 1.0  # seconds
TICK = 0.1  # of the supervisor's loop
RATES = {  # failures of one worker with 8 accelerators, per day
    "Llama 3 (419 in 54 days, 2,048 hosts)": 419 / 54 / 2048,
    "ten times as many": 10 * 419 / 54 / 2048,
}


class Elastic:
    """An elastic job, whose workers do what they are told."""

    def __init__(self, count: int, rate: float, save: float, seed: int):
        self.rng, self.count, self.rate, self.save = random.Random(seed), count, rate, save  # noqa: S311 - no secrets
        self.progress = {rank: Progress() for rank in range(count)}
        settings = Settings(("x",), num_workers=count, elastic=(1, count), max_restarts=1_000_000)
        self.machine = Generations(settings, self.progress, 0, 1_000_000)
        self.now, self.numbers, self.queue = 0.0, itertools.count(), list[Any]()
        self.born = dict.fromkeys(range(count), 0)  # the number of each rank's process
        self.members: tuple[int, ...] = tuple(range(count))
        self.useful = 0.0  # worker-seconds that counted
        self.since: float | None = None  # when the members began to train together
        self.stopped_at = 0.0
        self.stops: list[float] = []
        self.losses, self.orders, self.cpu, self.is_looking = 0, 0, 0.0, False

    def run(self, seconds: float) -> None:
        """Run until the time is over."""
        for rank in range(self.count):
            self.later(0.0, self.comes, rank)
        self.train()
        while self.queue and self.queue[0][0] < seconds:
            self.now, _, rank, born, what, arguments = heapq.heappop(self.queue)
            if rank is None or born == self.born[rank]:  # otherwise its process is gone
                what(*arguments)
        self.stop(seconds)

    def later(self, seconds: float, what: Any, rank: int | None = None, *more: Any) -> None:
        """Let something happen later, unless the rank's process is gone then."""
        arguments = () if rank is None else (rank, *more)
        born = None if rank is None else self.born[rank]
        heapq.heappush(self.queue, (self.now + seconds, next(self.numbers), rank, born, what, arguments))

    def ask(self, what: Any, *arguments: Any) -> None:
        """Report to the state machine, and do what it orders."""
        began = time.process_time()
        orders = what(self.now, *arguments)
        self.cpu += time.process_time() - began
        self.orders += len(orders)
        for order in orders:
            self.obey(order)

    def obey(self, order: Any) -> None:
        """Do what is ordered."""
        match order:
            case Start(rank):
                self.born[rank] += 1
                self.progress[rank] = Progress()
                self.later(self.rng.uniform(*START), self.is_ready, rank)
            case End(rank):
                self.born[rank] += 1
            case Form(_, members):
                self.stop(self.now)
                self.members = members
            case Tell(rank, "form"):
                self.later(self.rng.uniform(0.0, STEP), self.hears, rank, "formed")
            case Tell(rank, "go"):
                self.later(self.rng.uniform(*FORM) / 2, self.hears, rank, "here")
            case Tell(rank, "connect"):
                self.later(self.rng.uniform(*FORM) / 2, self.hears, rank, "connected")
            case GiveUp():
                raise AssertionError("a job with enough workers was given up")

    def comes(self, rank: int) -> None:
        """A process says hello, and will fail some day."""
        self.progress[rank].hello(self.now, "host")
        self.progress[rank].step = 1  # it has trained, so its replacement need not wait
        self.later(self.rng.expovariate(self.rate / DAY), self.fails, rank)
        self.ask(self.machine.hear, rank, "hello")

    def is_ready(self, rank: int) -> None:
        """A replacement has started."""
        self.comes(rank)
        self.ask(self.machine.hear, rank, "ready")

    def hears(self, rank: int, kind: str) -> None:
        """A worker says how far it is."""
        self.ask(self.machine.hear, rank, kind, self.machine.generation)
        if kind == "connected" and all(self.machine.state(each) is State.WORKS for each in self.members):
            self.train()

    def fails(self, rank: int) -> None:
        """A process is killed, which the others notice at once."""
        self.losses += 1
        self.stop(self.now)
        self.ask(self.machine.fail, Failure(rank, Kind.SIGNAL, 137, "SIGKILL"))
        if not self.is_looking:
            self.is_looking = True
            self.later(TICK, self.looks)

    def looks(self) -> None:
        """The supervisor looks at its deadlines. Here it does so only while something is under way, which saves time."""
        self.ask(self.machine.look)
        idle = self.since is not None and all(self.machine.state(rank) is State.WORKS for rank in range(self.count))
        self.is_looking = not idle
        if not idle:
            self.later(TICK, self.looks)

    def train(self) -> None:
        """The members train from now on."""
        self.since = self.now
        self.stops.append(self.now - self.stopped_at)

    def stop(self, now: float) -> None:
        """They stop. What they did since the last checkpoint is run again."""
        if self.since is not None:
            trained = now - self.since
            self.useful += (trained - trained % self.save) * len(self.members)
            self.since, self.stopped_at = None, now


def started_again(count: int, rate: float, save: float, seconds: float, seed: int) -> tuple[float, int]:
    """Run a job whose workers are all started again after each failure. Returns its goodput and the number of failures."""
    rng, now, useful, restarts, short = random.Random(seed), 0.0, 0.0, 0, 0  # noqa: S311 - no secrets
    while now < seconds:
        began, now = now, now + max(rng.uniform(*START) for _ in range(min(count, 64)))  # the last of them counts
        lived = min(rng.expovariate(count * rate / DAY), max(0.0, seconds - now))
        useful += lived - lived % save
        now += lived
        if now >= seconds:
            break
        decision = decide(Failure(0, Kind.SIGNAL, 137, "SIGKILL"), restarts, 1_000_000, now - began, short)
        assert decision.restart
        restarts, short = restarts + 1, short + 1 if now - began < 10 else 0
        now += 5.0 + decision.pause  # the others end within 5 s
    return useful / seconds, restarts


def formula(count: int, rate: float, save: float, cost: float) -> float:
    """The goodput to expect: each failure costs half of the time between two checkpoints, and `cost` seconds."""
    return max(0.0, 1.0 - count * rate / DAY * (save / 2 + cost))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=10.0, help="of virtual time")
    parser.add_argument("--workers", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--save", type=float, default=600.0, help="seconds between two checkpoints")
    given = parser.parse_args()
    seconds = given.days * DAY
    print("| failures | workers | seen | started again | formula | elastic | stop (median) | CPU per loss | orders per loss |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, rate in RATES.items():
        for count in given.workers:
            goodput, _ = started_again(count, rate, given.save, seconds, 0)
            job = Elastic(count, rate, given.save, 0)
            job.run(seconds)
            losses = max(1, job.losses)
            stop = f"{statistics.median(job.stops[1:]):.1f} s" if job.stops[1:] else "-"
            expected = formula(count, rate, given.save, START[1] + 5.0)
            share = job.useful / seconds / count
            print(
                f"| {name} | {count:,} | {job.losses} | {goodput:.1%} | {expected:.1%} | {share:.1%} | {stop} | "
                f"{1000 * job.cpu / losses:.0f} ms | {job.orders / losses:,.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
