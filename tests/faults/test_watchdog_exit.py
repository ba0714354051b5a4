"""A program that hangs in a step is reported and ended, in a loop of its own and in fit, whatever it waits for."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

LOOP = """
import threading
import replicant
with replicant.Watchdog(0.3, first_step_seconds=60, abort_seconds=0.6, exit_code=77) as watchdog:
    watchdog.beat("batch 7")
    print("hangs", flush=True)
    never = threading.Lock()
    never.acquire()
    never.acquire()
"""

FIT = """
import os, time
os.environ["KERAS_BACKEND"] = "jax"
import keras, numpy as np, replicant

def rows():
    for i in range(8):
        if i == 5:
            print("hangs", flush=True)
            time.sleep(600)
        yield np.ones((2, 3), "float32"), np.ones(2, "float32")

model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
watchdog = replicant.keras.callbacks.StepWatchdog(0.5, first_step_seconds=60, abort_seconds=1)
model.fit(rows(), steps_per_epoch=8, verbose=0, callbacks=[watchdog])
"""


@pytest.mark.parametrize(
    ("program", "code", "step", "where"),
    [
        (LOOP, 77, r"step 2 \(batch 7\)", r'File "<string>", line \d+, in <module>'),
        (FIT, 75, r"step \d \(epoch 1, batch \d\)", r'File "<string>", line \d+, in rows'),
    ],
    ids=["loop", "fit"],
)
@pytest.mark.long
def test_what_hangs_is_reported_and_ended(program: str, code: int, step: str, where: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    assert done.returncode == code, done.stderr[-3000:]
    assert done.stdout == "hangs\n"
    assert re.search(rf"replicant: process \d+ on .+: {step} has taken \d+\.\d s so far, more than 0\.\d s\.", done.stderr)
    assert re.search(where, done.stderr)
    assert re.search(rf"{step} has taken \d+\.\d s, too long \(abort_seconds=.*\): leaving with exit code {code}\.\n$", done.stderr)
