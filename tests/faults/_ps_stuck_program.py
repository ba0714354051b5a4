"""Cases in which workers and servers freeze instead of dying, start but never arrive, or end without being noticed.

Argument: a folder. The program prints the result of each case, as one line of JSON.
"""

import contextlib
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import replicant
from replicant.coordinator import ClusterCoordinator
from replicant.coordinator.processes import _cluster
from replicant.coordinator.scheduling import _dispatch
from replicant.errors import ParameterServerError

SECONDS = 300.0
NEVER = 1e6
SMALL, BIG = np.ones(1, "f4"), np.ones(2_000_000, "f4")


class Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        print(f"{time.monotonic():.1f}", record.getMessage(), file=sys.stderr)


class Cases:
    def __init__(self, folder: str):
        self.log = Log()
        logging.getLogger("replicant.coordinator").addHandler(self.log)
        self.folder = folder
        self.strategy = replicant.ParameterServerStrategy()
        self.cluster, self.coordinator = self.strategy.cluster, ClusterCoordinator(self.strategy)
        with self.strategy.scope():
            self.totals = [replicant.Variable(np.zeros((), "int32"), name=name) for name in "ab"]  # one on each server

    def schedule(self, count: int, value: Any) -> list[Any]:
        totals = self.totals

        def add(x):
            for total in totals:
                total.assign_add(1)
            return int(x.size)

        return [self.coordinator.schedule(add, args=(value,)) for _ in range(count)]

    def state(self, victim: Any, results: list[Any]) -> list[Any]:
        """Return whether the victim was replaced, the sum of the closures' results, and the variables."""
        self.coordinator.join(SECONDS)
        return [self.is_replaced(victim), sum(r.fetch() for r in results), *(int(total.numpy()) for total in self.totals)]

    def is_replaced(self, member: Any) -> bool:
        return all(member is not other for other in (*self.cluster.workers, *self.cluster.servers))

    def frozen_worker(self) -> Any:
        """Freeze a worker that is sent more than sockets hold. Nobody else waits for it."""
        frozen = self.cluster.workers[0]
        send(frozen, signal.SIGSTOP)
        results = self.schedule(8, BIG)
        until(lambda: sum(r._has_ended for r in results) >= 6 and frozen.control.outgoing_bytes)  # it holds at most two
        try:
            self.coordinator.join(0.01)
        except ParameterServerError as error:
            said = str(error).replace(str(frozen), "worker 0")
        _cluster.HEARTBEAT_SECONDS = 2.0
        return [*self.state(frozen, results), said]

    def frozen_server(self) -> Any:
        """Freeze a server. Whoever waits for it waits for its replacement."""
        frozen = self.cluster.servers[0]
        send(frozen, signal.SIGSTOP)
        state = self.state(frozen, self.schedule(20, SMALL))
        _cluster.HEARTBEAT_SECONDS = NEVER
        return state

    def never_comes(self) -> Any:
        """Freeze a worker's replacement while it starts."""
        first = self.cluster.workers[1]
        until(lambda: first.ready)
        send(first, signal.SIGKILL)
        until(lambda: self.is_replaced(first))
        second = self.cluster.workers[1]
        send(second, signal.SIGSTOP)
        _cluster.START_SECONDS = 1.0
        until(lambda: second.why)
        _cluster.START_SECONDS = 180.0
        until(lambda: self.is_replaced(second))
        return second.why

    def lost_message(self) -> Any:
        """Lose a message, as by a bug of Replicant. The dispatcher notices and repairs it."""
        until(lambda: self.cluster.workers[0].ready)
        _dispatch._DISAGREE_SECONDS = 1.0
        victim, lost = self.cluster.workers[0], []
        post_all = victim.control.post_all

        def lose_one(messages: Any) -> None:
            lost.extend(messages[: not lost])
            post_all([message for message in messages if message is not lost[0]])

        victim.control.post_all = lose_one
        state = self.state(victim, self.schedule(20, SMALL))
        _dispatch._DISAGREE_SECONDS = NEVER
        said = [line for line in self.log.lines if "a message was lost" in line]
        number = lost[0][1].closure
        return [
            *state,
            [line.startswith(f"{victim} should have been running closure {number} (attempt 0) for ") for line in said],
        ]

    def hidden_end(self) -> Any:
        """End a worker whose channel a forked process holds open."""
        note = str(Path(self.folder, "pid"))

        def leave_a_child():
            file = Path(note).open("x")  # noqa: SIM115 - it fails the second time
            if child := os.fork():
                file.write(str(child))
                file.close()
            else:
                time.sleep(SECONDS)
            os._exit(3)

        try:
            return self.error_of(leave_a_child)
        finally:
            os.kill(int(Path(note).read_text()), signal.SIGKILL)

    def unknown_class(self) -> Any:
        """Let a worker answer with an object of a class that only it has."""

        def only_here():
            import collections
            import types

            module = sys.modules["only_here"] = types.ModuleType("only_here")
            module.Pair = collections.namedtuple("Pair", "a b", module="only_here")
            return module.Pair(1, 2)

        return self.error_of(only_here).partition(") ")[2]

    def error_of(self, fn: Any) -> str:
        try:
            self.coordinator.schedule(fn).fetch(SECONDS)
        except Exception as error:  # noqa: BLE001 - it is the result
            text = f"{type(error).__name__}: {error}"
        with contextlib.suppress(FileExistsError, ParameterServerError):
            self.coordinator.join(SECONDS)
        return text


def send(member: Any, number: int) -> None:
    member.running._process.send_signal(number)


def until(condition: Any) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


if __name__ == "__main__":
    _cluster.HEARTBEAT_SECONDS = NEVER
    cases = Cases(sys.argv[1])
    names = ("frozen_worker", "frozen_server", "never_comes", "lost_message", "hidden_end", "unknown_class")
    answers = {}
    for name in names:
        start = time.monotonic()
        answers[name] = getattr(cases, name)()
        print(name, f"{time.monotonic() - start:.1f} s", file=sys.stderr)
    cases.strategy.close()
    print(json.dumps(answers))
