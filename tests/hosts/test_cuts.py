"""What becomes of a job on several hosts when links are cut and hosts die: a table of cut x strategy x moment.

Each row says how all ends: "exact" (every worker ends well, with the numbers of one device) or "ended" (every worker that still
has power ends with an error that names a host on the other side, within the heartbeat timeout and a few seconds).
"""

import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _bench import Bench, wait_until
from _training_job import PROGRAM, START_SECONDS, check_answer, environment

pytestmark = pytest.mark.slow

PORT = 2222
END_SECONDS = 120.0  # for the workers to end well after a cut has healed
GRACE_SECONDS = 8.0  # after the heartbeat timeout, on a busy machine
MIRRORED, SHARDED = "MultiWorkerMirroredStrategy", "FullyShardedStrategy"


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table.

    Args:
        case: What `_program.py` does. If "saves" was ended, it is started again, and must then end as one device.
        moment: When it is struck: in a "step" or a "checkpoint", before the "roll call", or "never".
        cut: What happens to a host: its links are cut ("both", or one direction: "out", "back"), its device goes "down", its
            processes are killed ("kill"), the host loses its "power", or nothing ("none"). "slow" concerns all links: 10 ms in
            each direction, and one of 100 frames is lost.
        seconds: After how many seconds a cut heals; None means never.
        ends: "exact" or "ended".
        strategy: The name of the strategy.
        hosts: The number of hosts.
        struck: The number of the host that is struck. The coordinator is on host 0.
        heartbeat: The heartbeat timeout in seconds.
        start: The seconds that workers wait for each other at the start.
    """

    case: str
    moment: str
    cut: str
    seconds: float | None
    ends: str
    strategy: str = MIRRORED
    hosts: int = 2
    struck: int = 1
    heartbeat: int = 6
    start: int = 60

    def __str__(self) -> str:
        """The name of the row, as a test's."""
        cut = self.cut if self.seconds is None else f"{self.cut} for {self.seconds:g} s"
        where = "" if self.cut in ("none", "slow") else f" at {self.struck} in {self.moment}"
        return f"{'' if self.strategy == MIRRORED else 'sharded '}{self.case} on {self.hosts}: {cut}{where}"


TABLE = [
    # Nothing happens, or not much.
    Row("fit", "never", "none", None, "exact"),
    Row("fit", "never", "none", None, "exact", hosts=3),
    Row("loop", "never", "none", None, "exact"),
    Row("loop", "never", "none", None, "exact", hosts=3),
    Row("loop", "never", "none", None, "exact", SHARDED, hosts=3),
    Row("saves", "never", "none", None, "exact", SHARDED),
    Row("loop", "never", "slow", None, "exact", heartbeat=60),
    # Links are cut for a while.
    Row("fit", "step", "both", 5, "exact", heartbeat=30),
    Row("loop", "step", "both", 30, "exact", heartbeat=90),
    Row("loop", "step", "both", 5, "exact", SHARDED, heartbeat=30),
    Row("loop", "step", "out", 5, "exact", hosts=3, struck=2, heartbeat=30),
    Row("loop", "step", "down", 5, "exact", heartbeat=30),
    Row("saves", "checkpoint", "both", 5, "exact", heartbeat=30),
    Row("saves", "checkpoint", "back", 5, "exact", SHARDED, heartbeat=30),
    Row("saves", "checkpoint", "both", 30, "exact", heartbeat=90),
    Row("loop", "roll call", "both", 5, "exact", heartbeat=30),
    # Links are cut for ever.
    Row("fit", "step", "both", None, "ended", hosts=3, struck=2),
    Row("loop", "step", "both", None, "ended"),
    Row("loop", "step", "both", None, "ended", SHARDED),
    Row("loop", "step", "out", None, "ended"),
    Row("loop", "step", "back", None, "ended"),
    Row("loop", "step", "down", None, "ended"),
    Row("loop", "step", "out", None, "ended", hosts=3, struck=0),
    Row("saves", "checkpoint", "both", None, "ended"),
    Row("saves", "checkpoint", "out", None, "ended"),
    Row("saves", "checkpoint", "back", None, "ended"),
    Row("loop", "roll call", "both", None, "ended", start=12),
    Row("loop", "roll call", "out", None, "ended", start=12),
    Row("loop", "roll call", "back", None, "ended", start=12),
    Row("loop", "roll call", "both", None, "ended", hosts=3, struck=2, start=12),
    # Hosts die.
    Row("loop", "step", "power", None, "ended", hosts=3, struck=2),
    Row("loop", "step", "power", None, "ended", struck=0),
    Row("fit", "step", "kill", None, "ended", hosts=3, struck=1),
    Row("loop", "step", "kill", None, "ended", struck=0),
    Row("saves", "checkpoint", "power", None, "ended", struck=0),
    Row("saves", "checkpoint", "kill", None, "ended", SHARDED),
]


class Job:
    """The workers of a row, one on each host."""

    def __init__(self, bench: Bench, row: Row, folder: Path, programs: str):
        self.bench, self.row, self.folder, self.programs = bench, row, folder, programs
        self.logs = [folder / f"{host.name}.log" for host in bench.hosts]
        self.ended_at: dict[int, float] = {}
        if row.moment == "roll call":
            self.strike()
        self.workers = [
            host.start(
                [sys.executable, str(PROGRAM), row.case, row.strategy],
                self.logs[rank],
                environment(folder, programs)
                | {
                    "JAX_PROCESS_ID": str(rank),
                    "JAX_NUM_PROCESSES": str(row.hosts),
                    "JAX_COORDINATOR_ADDRESS": f"{bench.hosts[0].address}:{PORT}",
                    "MOMENT": row.moment,
                    "REPLICANT_START_TIMEOUT": str(row.start),
                    "REPLICANT_HEARTBEAT_TIMEOUT": str(row.heartbeat),
                    "REPLICANT_EXCHANGE_TIMEOUT": "200",
                },
            )
            for rank, host in enumerate(bench.hosts)
        ]

    def have_ended(self) -> bool:
        """Whether all workers have ended. It notes when each of them has."""
        for rank, worker in enumerate(self.workers):
            if worker.poll() is not None:
                self.ended_at.setdefault(rank, time.monotonic())
        return len(self.ended_at) == len(self.workers)

    def reach(self, moment: str) -> None:
        """Wait until all workers have come to a moment of their program."""
        if moment in ("step", "checkpoint"):
            there = [self.folder / f"at-{rank}" for rank in range(len(self.workers))]
            wait_until(lambda: all(path.exists() for path in there) or bool(self.have_ended() or self.ended_at), START_SECONDS)
            assert all(path.exists() for path in there), self.texts()

    def strike(self) -> None:
        """Do what the row says, and let the workers go on."""
        row, bench, host = self.row, self.bench, self.bench.hosts[self.row.struck]
        if row.cut in ("both", "out", "back"):
            bench.cut(row.struck, out=row.cut != "back", back=row.cut != "out")
        elif row.cut == "down":
            host.run("ip", "link", "set", "eth0", "down")
        elif row.cut == "power":
            bench.lose_power(row.struck)
        elif row.cut == "kill":
            host.power_off()
        elif row.cut == "slow":
            for link in bench.links:
                link.delay, link.loss = 0.01, 0.01
        (self.folder / "go").touch()

    def heal(self) -> None:
        if self.row.cut == "down":
            self.bench.hosts[self.row.struck].run("ip", "link", "set", "eth0", "up")
        self.bench.heal()

    def texts(self) -> list[tuple[int | None, str]]:
        """How each worker has ended, and the end of its log."""
        return [(worker.poll(), log.read_text()[-3000:]) for worker, log in zip(self.workers, self.logs, strict=True)]


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_row(row: Row, make_bench: Callable[..., Bench], alone: Any, programs: str, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    job = Job(make_bench(row.hosts), row, folder, programs)
    job.reach(row.moment)
    began = time.monotonic()
    if row.moment != "roll call":
        job.strike()
    if row.seconds is not None:
        wait_until(job.have_ended, row.seconds)
        job.heal()
    if row.ends == "exact":
        wait_until(lambda: job.have_ended() or any(worker.poll() for worker in job.workers), END_SECONDS)
        check_exact(job, alone(row.case))
    else:
        patience = row.start + START_SECONDS if row.moment == "roll call" else row.heartbeat + 4 * GRACE_SECONDS
        wait_until(job.have_ended, patience)
        check_ended(job, began)
        if row.case == "saves":
            check_again(job, make_bench, alone(row.case))


def check_exact(job: Job, expected: Any) -> None:
    assert [worker.poll() for worker in job.workers] == [0] * len(job.workers), job.texts()
    for rank in range(len(job.workers)):
        check_answer(job.folder, rank, expected)


def check_ended(job: Job, began: float) -> None:
    row, hosts = job.row, job.bench.hosts
    assert job.have_ended(), f"some still run: {job.texts()}"
    for rank, (status, text) in enumerate(job.texts()):
        if not hosts[rank].is_alive:
            continue
        others = [row.struck] if rank != row.struck else [each for each in range(row.hosts) if each != rank]
        names = [f"({hosts[other].name}" for other in others]
        if row.moment == "roll call":  # they have not told each other their names
            names += [name for other in others for name in (hosts[other].address, f"process {other}", f"Worker(s) {other}")]
        assert status not in (0, -6), text  # -6: an abort
        assert any(name in text for name in names), (names, text)
        assert "Check failure stack trace" not in text, text
        assert "Fatal Python error" not in text, text
        if row.moment != "roll call":
            assert job.ended_at[rank] - began < row.heartbeat + GRACE_SECONDS, (rank, job.ended_at[rank] - began, text)


def check_again(job: Job, make_bench: Callable[..., Bench], expected: Any) -> None:
    """The same program on whole hosts goes on from the last checkpoint, and no example is lost or comes twice."""
    row = dataclasses.replace(job.row, moment="never", cut="none", ends="exact")
    assert list((job.folder / "checkpoints").glob("ckpt-*")), "there is no checkpoint from before the cut"
    again = Job(make_bench(row.hosts, folder="again"), row, job.folder, job.programs)
    wait_until(lambda: again.have_ended() or any(worker.poll() for worker in again.workers), END_SECONDS)
    check_exact(again, expected)
