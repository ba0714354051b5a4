"""Training on a store that fails at random, killed at random moments, ends with the bits of a run without faults.

Data is read over s3://, and checkpoints are saved there. With REPLICANT_TEST_FULL=1, there are 50 runs.
"""

import io
import itertools
import json
import os
import random
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ._object_store import TROUBLES, in_front_of, s3_server
from ._store_chaos_sizes import NUM_COLUMNS, NUM_EPOCHS, NUM_ROWS

PROGRAM = Path(__file__).with_name("_store_chaos_program.py")
FULL = os.environ.get("REPLICANT_TEST_FULL") == "1"
SECONDS = 300.0  # for one start of the program, on a machine that does much else
FILES = 3
SHARE = 0.1  # of all requests fails
STALL = 8.0  # seconds; a first attempt has a sixteenth of the deadline
MOST_LINES = NUM_EPOCHS * 10 - 2  # before a kill

# loop, data, number of runs that are killed up to three times each
ALL = [(loop, data, count) for data, count in (("text", 8), ("tar", 8), ("parquet", 9)) for loop in ("fit", "custom")]
RUNS = ALL if FULL else [("custom", "tar", 1), ("fit", "parquet", 1)]


def files(data: str) -> list[bytes]:
    """The contents of the files."""
    rng = np.random.default_rng(0)
    rows = [(i, int(rng.integers(0, 3)), rng.normal(size=NUM_COLUMNS).astype(np.float32)) for i in range(NUM_ROWS)]
    made = {"text": as_text, "tar": as_tar, "parquet": as_parquet}[data]
    return [made(rows[number::FILES]) for number in range(FILES)]


def as_text(rows: Any) -> bytes:
    return "".join(f"{number},{label},{','.join(map(repr, x.tolist()))}\n" for number, label, x in rows).encode()


def as_tar(rows: Any) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for number, label, x in rows:
            for name, content in ((f"{number}.x", x.tobytes()), (f"{number}.y", b"%d" % label)):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def as_parquet(rows: Any) -> bytes:
    numbers, labels, xs = zip(*rows, strict=True)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.concatenate(xs)), NUM_COLUMNS)
    file = io.BytesIO()
    pq.write_table(pa.table({"number": numbers, "y": labels, "x": lists}), file, row_group_size=10)
    return file.getvalue()


class Runs:
    """Starts the program, with files that it finds on the store ``system``."""

    def __init__(self, system: Any, loop: str, data: str, folder: Path) -> None:
        self.system, self.loop, self.data, self.folder = system, loop, data, folder

    def url(self, name: str) -> str:
        """A folder of the store with the files."""
        bucket = f"{self.loop}-{self.data}-{name}"
        self.system.mkdir(bucket)
        for number, content in enumerate(files(self.data)):
            self.system.pipe(f"{bucket}/{self.data}/{number}", content)
        return f"s3://{bucket}"

    def start(self, port: int, url: str, cache: Path | None = None, kill: tuple[int, float] | None = None) -> bool:
        """Whether the program came to its end; it is killed so many seconds after so many lines, whatever it does then."""
        command = [sys.executable, str(PROGRAM), self.loop, self.data, url, str(self.result)]
        there = {**os.environ, "STORE": f"http://127.0.0.1:{port}", "REPLICANT_REMOTE_DEADLINE": "60"}
        there |= {"REPLICANT_REMOTE_CACHE": str(cache)} if cache else {}
        with (
            (self.folder / "stderr").open("w+") as stderr,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=there) as process,
        ):
            alarm = threading.Timer(SECONDS, process.kill)
            alarm.start()
            try:
                assert process.stdout is not None
                num_lines = sum(1 for _ in (process.stdout if kill is None else itertools.islice(process.stdout, kill[0])))
                if kill is not None:
                    time.sleep(kill[1])
                    process.kill()
                process.wait(SECONDS)
                stderr.seek(0)
                assert process.returncode == 0 or (kill and process.returncode == -9), stderr.read()[-3000:]
                assert alarm.is_alive(), f"the program hangs after {num_lines} lines: {stderr.read()[-3000:]}"
            finally:
                alarm.cancel()
                process.kill()
            return process.returncode == 0

    @property
    def result(self) -> Path:
        return self.folder / "result.json"

    def taken(self) -> Any:
        """What a run has written. It is removed."""
        found = json.loads(self.result.read_text())
        self.result.unlink()
        return found


@pytest.mark.slow
@pytest.mark.parametrize(("loop", "data", "num_runs"), RUNS, ids=str)
def test_a_store_that_fails_and_kills_change_no_bit(loop: str, data: str, num_runs: int, tmp_path: Path, chaos: Any) -> None:
    with s3_server() as port:
        system = fsspec.filesystem(
            "s3", endpoint_url=f"http://127.0.0.1:{port}", key="key", secret="secret", use_listings_cache=False
        )
        runs = Runs(system, loop, data, tmp_path)
        assert runs.start(port, runs.url("whole"))
        expected = runs.taken()
        assert len(expected["weights"]) > 10
        rng = random.Random(f"{chaos.seed} {loop} {data}")
        for number in range(chaos.num_runs(num_runs)):
            kills = [(rng.randint(1, MOST_LINES), rng.uniform(0, rng.choice([0.05, 0.5, 4.0]))) for _ in range(rng.randint(1, 3))]
            cache = tmp_path / f"cache-{number}" if rng.random() < 0.5 else None
            seed = rng.randrange(1 << 30)
            with in_front_of(port, seed, SHARE, STALL, (*TROUBLES, "late")) as proxy:
                url = runs.url(f"{number}")
                behind, killed = proxy.server_address[1], 0
                while not runs.start(behind, url, cache, kills[killed] if killed < len(kills) else None):  # it may outrun a kill
                    killed += 1
                found = runs.taken()
                assert sum(proxy.counts.values()) > proxy.counts["fine"] > 0, proxy.counts
            told = f"{loop} {data} run {number}: killed {killed} times of {kills}, requests {proxy.counts}"
            print(f"{told}, identical: {found == expected}", flush=True)
            assert found == expected, (chaos.seed, number, kills, seed)
