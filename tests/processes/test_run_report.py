"""The report of a job whose worker was killed: what was run again, why, and how long that took."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from replicant.launch.record._events import Events
from replicant.launch.record._goodput import COUNTED, REPEATED, read_job

PROGRAM = Path(__file__).with_name("_reported.py")
COMMAND = [sys.executable, "-m", "replicant"]


@pytest.mark.slow
@pytest.mark.parametrize("elastic", [False, True])
def test_a_job_whose_worker_was_killed(tmp_path, elastic):
    options = ["--elastic", "1:2"] if elastic else []
    command = [
        *COMMAND,
        "launch",
        "--workers",
        "2",
        "--max-restarts",
        "1",
        *options,
        "--log-dir",
        str(tmp_path / "logs"),
        str(PROGRAM),
    ]
    done = subprocess.run(
        [*command, str(tmp_path), *["elastic"] * elastic], capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    with (tmp_path / "logs" / "run.jsonl").open() as file:
        job, _ = read_job(Events(file))
    assert job.code == 0
    assert job.losses[0][0] == "rank 1 was ended by SIGKILL"
    assert len(job.periods) == (3 if elastic else 2)
    assert job.periods[0].counted_steps == 30
    assert 30 < job.periods[0].steps <= 38
    if not elastic:
        assert job.periods[1].counted_steps == 30  # what the checkpoint had not
    assert job.seconds[COUNTED] >= 60 * 0.03
    assert 0 < job.seconds[REPEATED] < job.stop - job.start
    assert [each.processes for each in job.workers.values()] == [1 if elastic else 2, 2]
    zero, one = (job.workers[rank] for rank in range(2))
    assert zero.own_seconds < one.own_seconds > 0.15  # the callback of rank 1 is slow, and rank 0 waits for it
    assert zero.waited / zero.stepping > one.waited / one.stepping
    shown = subprocess.run(
        [*COMMAND, "report", str(tmp_path / "logs"), "--html", str(tmp_path / "page.html")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert re.search(r"^ended well; .* [23] group\(s\) of workers, [56] checkpoint\(s\)$", shown.stdout, re.MULTILINE)
    assert re.search(r"^rank 1 .*x", shown.stdout, re.MULTILINE)
    assert (tmp_path / "page.html").read_text().count("<rect") >= 6


@pytest.mark.long
def test_a_reader_that_has_enough_is_no_error(tmp_path):
    (tmp_path / "run.jsonl").write_text(json.dumps({"t": 0, "kind": "job", "command": ["train.py"]}) + "\n")
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([*COMMAND, "report", str(tmp_path)], stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")
