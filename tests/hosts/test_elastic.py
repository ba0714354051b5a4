"""Elastic jobs on several hosts that are cut off: one group goes on, never two, and every worker of the other side ends.

The launcher runs on one of the hosts and decides who goes on, so those that it can reach do. A small agent on each host
(``_agent.py``) starts the workers for it.
"""

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _bench import Bench, wait_until
from _training_job import PROGRAM, START_SECONDS, check_answer, environment

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
HEARTBEAT = 12
GRACE_SECONDS = 8.0  # after the heartbeat, on a busy machine
END_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table.

    Args:
        cut: What happens to a host, as in `test_cuts.py`.
        struck: The number of the host. The launcher is on host 0.
        seconds: After how many seconds a cut heals; None means never.
        goes_on: Whether the job goes on to its end.
        places: The host of each worker, by rank. Rank 0 writes the backups at first.
        least: The fewest workers with which the job goes on.
        heartbeat: The launcher's heartbeat timeout in seconds.
    """

    cut: str
    struck: int
    seconds: float | None
    goes_on: bool
    places: tuple[int, ...] = (0, 1, 2)
    least: int = 2
    heartbeat: int = HEARTBEAT

    def __str__(self) -> str:
        """The name of the row, as a test's."""
        cut = self.cut if self.seconds is None else f"{self.cut} for {self.seconds:g} s"
        return f"{cut} at {self.struck}, workers on {self.places}, at least {self.least}"


TABLE = [
    Row("both", 2, None, True),
    Row("out", 2, None, True),
    Row("back", 2, None, True),
    Row("power", 2, None, True),
    Row("both", 1, None, True, places=(1, 0, 2)),  # that of the chief
    Row("both", 1, None, True, places=(0, 1), least=1),
    Row("both", 0, None, False),  # that of the launcher
    Row("both", 2, 5, True, heartbeat=30),
]


class Job:
    """A launcher, its agents and the workers that they start."""

    def __init__(self, bench: Bench, row: Row, folder: Path, programs: str):
        self.bench, self.row, self.folder = bench, row, folder
        for host in bench.hosts:
            log = folder / f"agent-{host.name}"
            host.start([sys.executable, "-I", "-S", str(HERE / "_agent.py"), host.address, "2300"], log)
            assert wait_until(lambda log=log: log.read_text() == "listens\n", 20), log.read_text()
        settings = {
            "command": [str(PROGRAM), "elastic", "MultiWorkerMirroredStrategy"],
            "num_workers": len(row.places),
            "elastic": [row.least, len(row.places)],
            "heartbeat": row.heartbeat,
            "log_dir": str(folder / "logs"),
        }
        workers = [bench.hosts[place].address for place in row.places]
        told = json.dumps({"address": bench.hosts[0].address, "workers": workers, "settings": settings})
        self.log = folder / "launcher"
        self.launcher = bench.hosts[0].start(
            [sys.executable, str(HERE / "_elastic_launcher.py"), told], self.log, environment(folder, programs) | {"MOMENT": "step"}
        )

    def reach(self) -> None:
        """Wait until all workers have come to the moment."""
        there = [self.folder / f"at-{rank}" for rank in range(len(self.row.places))]
        wait_until(lambda: all(path.exists() for path in there) or self.launcher.poll() is not None, START_SECONDS)
        assert all(path.exists() for path in there), self.texts()

    def workers_on(self, host: int) -> int:
        """The number of workers that run on a host."""
        return int(
            self.bench.hosts[host].run("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -c '_program.py$' || true")
        )

    def texts(self) -> list[str]:
        """What the launcher and the workers have said."""
        return [path.read_text()[-3000:] for path in (self.log, *sorted((self.folder / "logs").glob("*.log")))]


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_row(row: Row, make_bench: Callable[..., Bench], alone: Any, programs: str, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    bench = make_bench(1 + max(row.places))
    job = Job(bench, row, folder, programs)
    job.reach()
    began = time.monotonic()
    if row.cut == "power":
        bench.lose_power(row.struck)
    else:
        bench.cut(row.struck, out=row.cut != "back", back=row.cut != "out")
    (folder / "go").touch()
    if row.seconds is not None:
        wait_until(lambda: False, row.seconds)
        bench.heal()
    elif row.cut != "power":
        check_minority_ended(job, began)
    wait_until(lambda: job.launcher.poll() is not None, END_SECONDS)
    assert (job.launcher.poll() == 0) is row.goes_on, (job.launcher.poll(), job.texts())
    survivors = [rank for rank, place in enumerate(row.places) if place != row.struck or row.seconds is not None]
    for rank in survivors if row.goes_on else []:
        check_answer(folder, rank, alone("fit"))


def check_minority_ended(job: Job, began: float) -> None:
    """Those whom the launcher does not reach end within the heartbeat timeout and some seconds, and say why."""
    row = job.row
    lost = [rank for rank, place in enumerate(row.places) if (place == row.struck) is (row.struck != 0)]
    places = {row.places[rank] for rank in lost}
    patience = row.heartbeat + GRACE_SECONDS
    wait_until(lambda: not any(map(job.workers_on, places)), began + patience - time.monotonic())
    assert not any(map(job.workers_on, places)), (time.monotonic() - began, job.texts())
    for rank in lost:
        assert "the supervisor" in (folder_log := job.folder / "logs" / f"rank-{rank}.log").read_text(), folder_log.read_text()
