"""A run moves over from TensorFlow: two workers, and a run that is killed when it has begun to save."""

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # test folders are no packages

import _group  # noqa: E402

RECORDED = HERE.parent / "tensorflow_files" / "objects" / "ckpt_tf_keras" / "sequential_adam"

PROGRAM = """
import os, signal, sys
import replicant
folder, last = sys.argv[1], int(sys.argv[2])
step = replicant.Variable(0)
checkpoint = replicant.Checkpoint(step=step, epoch=0)
with replicant.CheckpointManager(checkpoint, folder, max_to_keep=2) as manager:
    found = manager.restore_or_initialize()
    checkpoint.restore(None)
    print(os.path.basename(found), int(step), flush=True)
    while int(step) < last:
        step.assign_add(1)
        manager.save()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


@pytest.mark.long
def test_a_run_that_is_killed_after_the_move_goes_on_from_its_own_checkpoint(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(RECORDED, tmp_path / "model_dir"))
    before = hashes(folder)
    for last, told in ((4, "ckpt-1 4"), (7, "ckpt-1 4"), (9, "ckpt-4 7"), (9, "ckpt-6 9")):
        program = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(folder), str(last)]
        ended = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        assert ended.stdout.strip() == told
        assert {name: digest for name, digest in hashes(folder).items() if name in before} == before


@pytest.mark.slow
@pytest.mark.parametrize("sliced", ["0", "1"])
def test_two_workers_go_on_from_a_checkpoint_of_tensorflow(tmp_path: Path, sliced: str) -> None:
    folder = Path(shutil.copytree(RECORDED, tmp_path / "model_dir"))
    before = hashes(folder)
    environ = {"RECORDED": str(RECORDED), "FOLDER": str(folder), "SLICED": sliced}
    chief, other = _group.Group(HERE / "_worker_tensorflow.py", 2, tmp_path, environ=environ).ended_well()
    assert chief == {**other, "losses": chief["losses"]}
    assert chief["first"] == str(folder / "ckpt-1")
    assert chief["step"] == 4
    assert (chief["cut"][0] == [6, 4]) == (sliced == "1")
    assert chief["saved"] == [str(folder / f"ckpt-{n}") for n in (2, 3)]
    assert chief["checkpoints"] == [str(folder / f"ckpt-{n}") for n in (1, 3)]
    assert chief["again"] == str(folder / "ckpt-3")
    truth = json.loads((RECORDED / "truth.json").read_text())
    np.testing.assert_allclose(chief["losses"], truth["next_losses"], atol=1e-5)
    assert {name: digest for name, digest in hashes(folder).items() if name in before} == before
