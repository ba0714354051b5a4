"""``fit`` that is interrupted by Ctrl-C, or killed in the middle of an epoch, with a step in TensorFlow's form."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

INTERRUPTED = """
import os, signal, threading, time
import replicant
replicant.set_virtual_devices(2)
import keras, numpy as np

class Counting(keras.Model):
    def __init__(self):
        super().__init__()
        self.own = replicant.Variable(np.zeros(20_000), trainable=False)

    def train_step(self, data):
        self.own.assign_add(np.ones(20_000))
        OTHER.assign_add(np.ones(20_000))
        return {"loss": self.own.value()[0]}

with replicant.MirroredStrategy(fuse_replicas=False).scope():
    OTHER = replicant.Variable(np.zeros(20_000))
    model = Counting()
    model.compile()
data = np.zeros((600, 1))
model.fit(data[:4], batch_size=2, verbose=0)

ready, caught, whole = threading.Event(), 0, True

class Stepped(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        ready.set()

def interrupt():
    rng = np.random.default_rng()
    for i in range(25):
        ready.wait()
        ready.clear()
        time.sleep(rng.uniform(0, 0.05))
        while caught == i:  # Python drops an interrupt in a destructor
            os.kill(os.getpid(), signal.SIGINT)
            deadline = time.monotonic() + 5
            while caught == i and time.monotonic() < deadline:
                time.sleep(0.001)

interrupter = threading.Thread(target=interrupt)
interrupter.start()
while caught < 25:
    try:
        if caught % 4 == 0:  # sometimes before the first step
            ready.set()
        while True:
            model.fit(data, batch_size=2, verbose=0, callbacks=[Stepped()])
    except KeyboardInterrupt:
        whole &= len({*model.own.numpy().tolist(), *OTHER.numpy().tolist()}) == 1
        ready.clear()
        caught += 1
interrupter.join()
before = model.own.numpy()[0]
model.fit(data[:4], batch_size=2, verbose=0)
print(whole, before > 20, model.own.numpy()[0] - before == 2)
"""

KILLED = """
import os, signal, sys
import replicant
replicant.set_virtual_devices(2)
import keras, numpy as np
from replicant.keras.callbacks import BackupAndRestore

class Step(keras.Model):
    def __init__(self):
        super().__init__()
        self.drop, self.dense, self.critic = keras.layers.Dropout(0.3, seed=1), keras.layers.Dense(1), keras.layers.Dense(1)
        self.second = keras.optimizers.RMSprop(0.02)
        self.mean = keras.metrics.Mean(name="mean")

    @property
    def metrics(self):
        return [self.mean]

    def train_step(self, data):
        x, y = data
        for layer, optimizer in ((self.dense, self.optimizer), (self.critic, self.second)):
            with replicant.GradientTape() as tape:
                loss = keras.ops.mean((layer(self.drop(x, training=True)) - y) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables))
            self.mean.update_state(loss)
        return {"mean": self.mean.result()}

class Kill(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if self.last and int(self.model.optimizer.iterations) == self.last:
            os.kill(os.getpid(), signal.SIGKILL)

keras.utils.set_random_seed(3)
folder, kill = sys.argv[1], Kill()
kill.last = int(sys.argv[2])
with replicant.MirroredStrategy(fuse_replicas=False).scope():
    model = Step()
    model.compile(keras.optimizers.Adam(0.01))
rng = np.random.default_rng(0)
data = replicant.data.Dataset.from_tensor_slices((rng.normal(size=(22, 3)).astype("float32"), np.ones((22, 1), "float32")))
backup = BackupAndRestore(folder, save_freq=2)
history = model.fit(data.shuffle(22, seed=1).batch(4), epochs=3, verbose=0, callbacks=[backup, kill]).history  # 6 steps each
state = [v.numpy() for v in [*model.variables, *model.optimizer.variables, *model.second.variables]]
print(history["mean"], [(x.dtype, x.tobytes()) for x in state])
"""


def run(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.long
def test_ctrl_c_leaves_the_model_of_a_whole_step() -> None:
    done = run(INTERRUPTED)
    assert done.stdout == "True True True\n", done.stdout + done.stderr[-4000:]


@pytest.mark.slow  # three processes, one after the other
def test_a_killed_fit_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = run(KILLED, str(tmp_path / "whole"), "0")
    assert whole.returncode == 0, whole.stderr[-4000:]
    killed = run(KILLED, str(tmp_path / "killed"), "9")  # in the middle of the second epoch
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-4000:]
    again = run(KILLED, str(tmp_path / "killed"), "0")
    assert again.returncode == 0, again.stderr[-4000:]
    assert again.stdout == whole.stdout
