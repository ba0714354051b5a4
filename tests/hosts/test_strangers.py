"""A stranger on a host of its own reaches the coordinator of a job: what it forges is told, and does not end the job."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _bench import Bench, wait_until
from _training_job import START_SECONDS, check_answer
from test_cuts import END_SECONDS, PORT, Job, Row

pytest.importorskip("grpc", reason="pip install grpcio: the stranger talks to JAX's coordination service by itself")
pytestmark = pytest.mark.slow

STRANGER = Path(__file__).with_name("_stranger.py")
FORGED = {
    "replicant/0/fate/failed/1": "ValueError: I have failed",
    "replicant/0/fate/ended/1": "",
    "replicant/0/fate/leave/0": "",
    "replicant/0/fate/unknown/x": "",
    "replicant/0/news/now": '[0, 1000000, {"1": 99.0}, [1], true]',
    "replicant/0/beat/1": "no numbers",
}


def test_a_forged_failure_is_told_and_ends_nothing(
    make_bench: Callable[..., Bench], alone: Any, programs: str, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    bench = make_bench(3)
    hosts, bench.hosts = bench.hosts, bench.hosts[:2]  # the third one is the stranger's
    job = Job(bench, Row("loop", "step", "none", None, "exact", heartbeat=30), folder, programs)
    bench.hosts = hosts
    job.reach("step")
    log = tmp_path / "stranger.log"
    words = [word for pair in FORGED.items() for word in pair]
    for _ in range(3):  # the workers repeat some of these keys
        stranger = hosts[2].start([sys.executable, str(STRANGER), f"{hosts[0].address}:{PORT}", *words], log, {})
        wait_until(lambda process=stranger: process.poll() is not None, START_SECONDS)
        assert stranger.poll() == 0, log.read_text()
    assert "reads True" in log.read_text()  # JAX's service keeps nobody from reading
    wait_until(lambda: all("a failure was reported by no worker of this job" in text for _, text in job.texts()[:1]), 20.0)
    job.strike()
    wait_until(lambda: job.have_ended() or any(worker.poll() for worker in job.workers), END_SECONDS)
    assert [worker.poll() for worker in job.workers] == [0, 0], job.texts()
    for rank in range(2):
        check_answer(folder, rank, alone("loop"))
    told = job.texts()[0][1]
    assert told.count("a failure was reported by no worker of this job, and is ignored") == 1, told
    assert "The key 'fate/failed/1' holds 'ValueError: I have failed'." in told
    assert "a request to leave was reported by no worker of this job" in told
