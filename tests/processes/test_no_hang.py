"""Long loops on virtual devices end: a plain script that sets nothing but `set_virtual_devices`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

NUM_STEPS = 3000

SCRIPT = """\
import sys

import replicant

replicant.set_virtual_devices(int(sys.argv[1]))

import keras
import numpy as np

strategy = replicant.MirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam()

def train_step(x, y):
    with replicant.GradientTape() as tape:
        errors = keras.ops.square(model(x, training=True)[:, 0] - y)
        loss = replicant.compute_average_loss(errors, global_batch_size=32)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss

@replicant.function
def distributed_train_step(batch):
    return strategy.reduce("SUM", strategy.run(train_step, args=batch), axis=None)

x = np.random.default_rng(0).normal(size=(32, 8)).astype("float32")
dataset = replicant.data.Dataset.from_tensor_slices((x, x.sum(axis=1))).batch(32).repeat(int(sys.argv[2]))
num_steps = 0
for batch in strategy.experimental_distribute_dataset(dataset):
    loss = distributed_train_step(batch)
    num_steps += 1
print(strategy.num_replicas_in_sync, num_steps, int(optimizer.iterations.value), float(loss) < 1.0)
"""


def run_script(path: Path, num_devices: int, num_steps: int, deadline: float) -> str:
    path.write_text(SCRIPT)
    unset = ("NPROC", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "PYTHONWARNINGS")
    clean = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run(
        [sys.executable, str(path), str(num_devices), str(num_steps)],
        env={**clean, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        timeout=deadline,  # a hang is a TimeoutExpired
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.cases("2")
@pytest.mark.parametrize("num_devices", [2, pytest.param(4, marks=pytest.mark.slow), 8])
def test_a_long_loop_ends(tmp_path, num_devices):
    answer = run_script(tmp_path / "loop.py", num_devices, NUM_STEPS, deadline=180)
    assert answer == f"{num_devices} {NUM_STEPS} {NUM_STEPS} True"
