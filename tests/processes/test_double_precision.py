"""Variables in slices give one device's losses and weights to the last digits of double precision."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("_double_precision.py")
ALL = "sgd,adam,adamw,adafactor,lion,scaled"
# By hand, all optimizers ran on the MLP and the CNN with 2x1, 4x1, 8x1, 2x2, 4x2 and 8x2.
CASES = [
    ("mlp", ALL, "fit,loop", "8x1,4x2"),
    ("mlp", "adam", "micro", "4x1,4x2"),
    ("cnn", "adam,scaled", "fit", "4x1,8x2"),
    # The layer's own exchange lies within gradients there, so the replicas need equally many rows: 8 of them would not.
    ("cnn", "adamw", "loop", "4x1,4x2"),
    ("transformer", "adam", "fit,loop", "4x1"),
    ("transformer", "scaled", "fit,micro", "4x2"),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=["-".join(case[:3]).replace(",", "+") for case in CASES])
def test_losses_and_weights_are_those_of_one_device(case: tuple[str, str, str, str]) -> None:
    unset = ("NPROC", "XLA_FLAGS", "KERAS_BACKEND", "JAX_ENABLE_X64")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *case],
        env={name: value for name, value in os.environ.items() if name not in unset},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    apart = {tuple(line.split()[:4]): float(line.split()[4]) for line in done.stdout.splitlines()}
    model, optimizers, ways, sizes = case
    expected = {(model, o, w, s) for o in optimizers.split(",") for w in ways.split(",") for s in sizes.split(",")}
    assert set(apart) == expected
    # Keras's Adafactor divides by means that it computes with 32 bits.
    assert {run: figure for run, figure in apart.items() if not figure < (1e-7 if run[1] == "adafactor" else 1e-11)} == {}
