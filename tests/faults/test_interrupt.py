"""Ctrl-C at any moment of a training loop leaves whole variables behind."""

import subprocess
import sys

PROGRAM = """
import os, signal, threading, time
import replicant
replicant.set_virtual_devices(2)
import jax.numpy as jnp
strategy = replicant.MirroredStrategy()
a, b = replicant.Variable(jnp.zeros(50_000)), replicant.Variable(jnp.zeros(50_000))

@replicant.function
def step():
    strategy.run(lambda: (a.assign_add(jnp.ones(50_000)), b.assign_add(jnp.ones(50_000))) and None)

step()
def interrupt():
    for _ in range(60):
        time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)
interrupter = threading.Thread(target=interrupt)
interrupter.start()
caught = 0
while interrupter.is_alive():
    try:
        while interrupter.is_alive():
            step()
    except KeyboardInterrupt:
        caught += 1
try:
    time.sleep(0.1)
except KeyboardInterrupt:
    caught += 1
step()
steps = set(a.numpy().tolist()) | set(b.numpy().tolist())
print(caught > 50, len(steps), a.numpy()[0] > 10)
"""


def test_ctrl_c_loses_no_variable() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "True 1 True\n", done.stderr[-2000:]
