"""A process that makes a large model in slices never holds two copies of it."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import re

import replicant

replicant.set_virtual_devices(8)

import jax
import keras


def peak():  # of addresses, because a system may take back pages that hold zeros
    return int(re.search(r"VmPeak:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024


def make(width):
    with replicant.FullyShardedStrategy().scope():
        model = keras.Sequential([keras.Input((width,)), *[keras.layers.Dense(width, use_bias=False) for _ in range(layers)]])
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
    return model


layers = 6
small = make(64)  # what JAX and Keras need themselves
before = peak()
large = make(4096)
values = jax.block_until_ready([v.value for v in [*large.variables, *large.optimizer.variables]])
print((peak() - before) / sum(value.nbytes for value in values))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process its peak")
def test_the_peak_of_making_a_model_is_close_to_its_size(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert 0.8 < float(done.stdout) < 1.6
