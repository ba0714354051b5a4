"""Launched training with misfortunes at random moments ends as if there had been none, to the last bit."""

import dataclasses
import functools
import io
import json
import os
import random
import re
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replicant.launch import Settings, Supervisor

PROGRAM = Path(__file__).with_name("_launch_chaos_program.py")
NUM_WORKERS = 3
MOST_STEPS = 22  # before a misfortune, of 30
NUM_RUNS = 20  # in full, over both loops
GOING_ON_SECONDS = 0.3  # in which steps that had begun before a misfortune may still end


@dataclasses.dataclass(frozen=True)
class Event:
    """A signal to some ranks once rank 0 has done so many steps in this generation."""

    generation: int
    step: int
    number: int
    ranks: tuple[int, ...]


class Chaos(io.StringIO):
    """Reads what the workers print, and strikes."""

    def __init__(self, events: tuple[Event, ...]):
        super().__init__()
        self.events = list(events)
        self.pids: dict[int, int] = {}
        self.num_steps = self.num_starts = 0
        self.struck_at: float | None = None
        self.struck: tuple[int, ...] = ()
        self.recoveries: list[float] = []  # seconds from a misfortune to the end of the next step

    def write(self, text: str) -> int:
        match = re.match(r"\[(\d+)\] (pid|step) ([0-9.]+)$", text)
        if match and match[2] == "pid":
            self.pids[int(match[1])] = int(match[3])
            self.num_starts += 1
            self.num_steps = 0
        elif match and match[2] == "step":
            rank, at = int(match[1]), float(match[3])
            self.num_steps += rank == 0
            if self.struck_at is not None and at > self.struck_at + GOING_ON_SECONDS and rank not in self.struck:
                self.recoveries.append(at - self.struck_at)
                self.struck_at = None
            self.strike()
        return super().write(text)

    def strike(self) -> None:
        generation = (self.num_starts - 1) // NUM_WORKERS
        for event in [event for event in self.events if event.generation == generation and self.num_steps >= event.step]:
            self.events.remove(event)
            self.struck_at, self.struck = time.time(), event.ranks if event.number == signal.SIGSTOP else ()
            for rank in event.ranks:
                os.kill(self.pids[rank], event.number)


def run(loop: str, folder: Path, events: tuple[Event, ...] = (), slow: str = "-1:0:0", **settings: Any) -> tuple[Any, Chaos, str]:
    """Run the job to its end: its result, what has happened, what the supervisor has said."""
    folder.mkdir()
    out, err = Chaos(events), io.StringIO()
    command = (str(PROGRAM), loop, str(folder / "backup"), str(folder / "result"))
    asked = {"max_restarts": 4, "heartbeat": 8.0, "log_dir": folder / "logs", **settings}
    environ = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "NPROC")}
    environ |= {"CHAOS_SLOW": slow, "REPLICANT_COMPILATION_CACHE": str(folder.parent.parent / "programs")}  # one for all runs
    code = Supervisor(Settings(command, num_workers=NUM_WORKERS, **asked), out, err, environ).run()
    assert code == 0, err.getvalue() + out.getvalue()[-3000:]
    assert not out.events, f"{out.events} did not happen"
    assert len(out.recoveries) == len(events), err.getvalue()
    return json.loads((folder / "result").read_text()), out, err.getvalue()


def random_events(rng: random.Random) -> tuple[tuple[Event, ...], str]:
    kinds = [signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1]
    ranks = rng.sample(range(NUM_WORKERS), rng.choice([1, 1, 1, 2]))
    event = Event(0, rng.randint(1, MOST_STEPS), rng.choice(kinds), tuple(ranks))
    slow = f"{rng.choice([0, 1])}:{rng.randrange(NUM_WORKERS)}:3" if rng.random() < 0.3 else "-1:0:0"
    return (event,), slow


def assert_close(found: Any, expected: Any, said: str = "") -> None:
    """Sums over another number of workers differ in their last bits."""
    assert [path for path, _, _ in found["weights"]] == [path for path, _, _ in expected["weights"]]
    for (path, _, values), (_, _, others) in zip(found["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(values, others, rtol=1e-5, atol=1e-5, err_msg=f"{path} {said}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """The result of a loop that nothing has happened to."""

    @functools.cache
    def undisturbed(loop: str) -> Any:
        return run(loop, tmp_path_factory.mktemp("whole") / loop)[0]

    return undisturbed


@pytest.mark.slow
def test_a_killed_chief_changes_nothing(whole: Callable[[str], Any], tmp_path: Path) -> None:
    undisturbed = whole("fit")
    found, chaos, said = run("fit", tmp_path / "struck", (Event(0, 7, signal.SIGKILL, (0,)),))
    assert len(found["weights"]) > 8
    assert found == undisturbed
    compiled = re.findall(r"\] compiled (\d+)", chaos.getvalue())
    assert [int(count) < 12 for count in compiled] == [True] * NUM_WORKERS, compiled  # of 23: only what restoring adds
    assert re.search(r"rank 0 \(.*\) was ended by SIGKILL; .* as generation 1 \(restart 1 of 4\)\.", said)


@pytest.mark.slow
def test_the_others_go_on_without_a_killed_chief(whole: Callable[[str], Any], tmp_path: Path) -> None:
    found, chaos, said = run("fit", tmp_path / "struck", (Event(0, 7, signal.SIGKILL, (0,)),), elastic=(2, 3), max_restarts=0)
    assert_close(found, whole("fit"))
    assert chaos.num_starts == NUM_WORKERS, "nobody was started again"
    assert re.search(r"rank 0 \(.*\) was ended by SIGKILL; .* Generation 1 goes on with 2 worker\(s\): \[1, 2\]\.", said)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loop", "elastic"),
    [("fit", None), ("custom", None), ("fit", (1, NUM_WORKERS)), ("without_dropout", (1, NUM_WORKERS))],
    ids=str,
)
def test_random_misfortunes_change_nothing(
    loop: str, elastic: tuple[int, int] | None, *, whole: Callable[[str], Any], chaos: Any, tmp_path: Path, capsys: Any
) -> None:
    rng = random.Random(f"{chaos.seed} {loop} {elastic}")
    recoveries: dict[str, list[float]] = {}
    for number in range(chaos.num_runs(NUM_RUNS // 2)):
        events, slow = random_events(rng)
        found, struck, _ = run(loop, tmp_path / f"run-{number}", events, slow, elastic=elastic)
        recoveries.setdefault(signal.Signals(events[0].number).name, []).extend(struck.recoveries)
        if elastic is None:
            assert found == whole(loop), (chaos.seed, number, events, slow)
        else:
            assert_close(found, whole(loop), str((chaos.seed, number, events, slow)))
    with capsys.disabled():
        for name, seconds in recoveries.items():
            middle, most = statistics.median(seconds), max(seconds)
            print(f"\n{loop} {elastic} {name}: {len(seconds)} runs, next step after {middle:.1f} s (median), at most {most:.1f} s")
