"""Several workers that track one run: only the chief writes."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
import keras, numpy as np, replicant

class Listed:
    def begin(self, config):
        self.file = open(os.path.join(sys.argv[1], "of-" + os.environ["JAX_PROCESS_ID"]), "w")
    def write(self, rows):
        self.file.writelines(f"{row.step} {sorted(row.values)}\\n" for row in rows)
    def end(self, *, failed):
        self.file.write(f"failed {failed}\\n")
        self.file.close()

run = replicant.track(Listed())
strategy = replicant.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones((16, 3)), np.ones(16), 8, 2, verbose=0, callbacks=[replicant.keras.callbacks.Track(run, "batch")])
"""


@pytest.mark.slow
def test_only_the_chief_writes(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "replicant", "launch", "--workers", "2", str(tmp_path / "train.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    (file,) = tmp_path.glob("of-*")
    assert file.name == "of-0"
    epoch = "['learning_rate', 'loss']"
    assert file.read_text().splitlines() == [
        "1 ['batch_loss']",
        "2 ['batch_loss']",
        f"2 {epoch}",
        "3 ['batch_loss']",
        "4 ['batch_loss']",
        f"4 {epoch}",
        "failed False",
    ]
