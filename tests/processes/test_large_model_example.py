"""examples/large_model.py, run as users run it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NUMBER_OF_BYTES = re.compile(r"^([\d,]+) bytes in all, ([\d,]+) on each of (\d+) devices$", re.MULTILINE)


def run_example(folder: Path, *options: str) -> subprocess.CompletedProcess:
    unset = ("NPROC", "XLA_FLAGS", "KERAS_BACKEND", "PYTHONWARNINGS")
    return subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "large_model.py"), *options],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in unset},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss: (\d+\.\d+)", output)]


@pytest.mark.slow
def test_the_tiny_model_learns_in_slices_what_it_learns_on_one_device(tmp_path):
    sharded, alone = run_example(tmp_path), run_example(tmp_path, "--devices", "1", "--batch-size-per-replica", "4")
    assert (sharded.returncode, alone.returncode) == (0, 0), sharded.stderr + alone.stderr
    assert losses(sharded.stdout) == pytest.approx(losses(alone.stdout), abs=1e-3)
    assert len(losses(sharded.stdout)) == 2
    assert losses(sharded.stdout)[1] < 0.8 * losses(sharded.stdout)[0]
    whole, each, devices = NUMBER_OF_BYTES.findall(sharded.stdout)[0]
    assert devices == "4"
    assert int(each.replace(",", "")) < 1.1 * int(whole.replace(",", "")) / 4


@pytest.mark.slow
def test_a_plan_says_what_devices_would_hold(tmp_path):
    fits = run_example(tmp_path, "--plan", "gpu:8xh100")
    assert fits.returncode == 0, fits.stderr
    assert "does it fit                        yes" in fits.stdout
    assert "Epoch" not in fits.stdout


@pytest.mark.long
def test_bad_options_are_explained(tmp_path):
    done = run_example(tmp_path, "--heads", "7")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--width 64 is no multiple of --heads 7" in done.stderr
