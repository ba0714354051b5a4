"""A program that is profiled from outside: by `replicant run --profile`, and by the environment of several workers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import replicant
double = replicant.function(lambda x: 2 * x)
for number in range({steps}):
    double(float(number))
print("done")
"""
WORKER = """
import numpy as np
import replicant
strategy = replicant.MultiWorkerMirroredStrategy()

@replicant.function
def step(x):
    return strategy.reduce("SUM", strategy.run(lambda x: replicant.get_replica_context().all_reduce("SUM", x.sum()), args=(x,)))

data = replicant.data.Dataset.from_tensor_slices(np.ones((24, 4), "float32")).batch(4)
for x in strategy.experimental_distribute_dataset(data):
    step(x)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="`replicant run` and `replicant launch` need Linux here")


def command(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    foreign = ("JAX_", "NPROC", "XLA_FLAGS", "REPLICANT_PROFILE")
    env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)} | environ
    every = [sys.executable, "-m", "replicant", *arguments]
    return subprocess.run(every, cwd=cwd, env=env, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.long
def test_the_table_comes_as_soon_as_the_steps_are_done(tmp_path: Path) -> None:
    program = PROGRAM.format(steps=5) + "import sys; print('after', file=sys.stderr)"
    done = command("run", "--profile", "3", "--profile-dir", "kept", "-c", program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    first, table, *rest = done.stderr.splitlines()
    assert first.startswith("replicant run: profile of 3 steps; ")
    assert table == "Profile: 3 step(s) on 1 device(s); times in ms"
    assert rest[-2:] == [f"For every single operation: pip install xprof; xprof --logdir {tmp_path}/kept", "after"]
    assert list((tmp_path / "kept").rglob("*.xplane.pb"))


ENDS = {
    "fewer": (PROGRAM.format(steps=2), 0, "Profile: 2 of 9 steps on 1 device(s); times in ms"),
    "none": ("import replicant", 0, "Profile: no step was recorded. A step is a call of"),
    "an error": (PROGRAM.format(steps=1) + "raise OSError('own')", 1, "Profile: 1 of 9 steps on 1 device(s)"),
    "a second one": (
        "import replicant\nwith replicant.profile(): pass",
        1,
        "another profile is being recorded in this process, and JAX's profiler records one at a time.",
    ),
}


@pytest.mark.cases("fewer")
@pytest.mark.parametrize(("program", "status", "told"), ENDS.values(), ids=ENDS)
@pytest.mark.long
def test_a_program_that_ends_before(tmp_path: Path, program: str, status: int, told: str) -> None:
    done = command("run", "--quiet", "--profile", "9", "-c", program, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert told in done.stderr


WRONG = [
    (["--profile", "0"], "--profile must be the number of steps to record, 1 or more. Got 0."),
    (["--profile-dir", "kept"], "--profile-dir says where to keep a profile, but there is none. Add --profile 10."),
]


@pytest.mark.slow
@pytest.mark.parametrize(("options", "told"), WRONG, ids=["none", "only a folder"])
def test_mistakes(tmp_path: Path, options: list[str], told: str) -> None:
    done = command("run", *options, "-c", "1", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, f"replicant run: {told}\n")


@pytest.mark.slow
def test_each_worker_tells_its_own_steps(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WORKER)
    settings = {"REPLICANT_PROFILE": "4", "REPLICANT_PROFILE_DIR": str(tmp_path / "kept")}
    done = command("launch", "--workers", "2", "--log-dir", "logs", "train.py", cwd=tmp_path, **settings)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        log = (tmp_path / "logs" / f"rank-{rank}.log").read_text()
        assert f"Profile of worker {rank} of 2: 4 step(s) on 1 device(s); times in ms" in log
        assert "all-reduce" in log  # the sum over two workers
        assert list((tmp_path / "kept" / f"worker-{rank}").rglob("*.xplane.pb"))
    assert "Profile" not in done.stderr  # the launcher has no steps
