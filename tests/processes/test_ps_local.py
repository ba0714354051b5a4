"""Servers and workers as processes: one small cluster for many questions, and what becomes of it when its program ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

SECONDS = 300

QUESTIONS = """
import json, os
import numpy as np
import jax.numpy as jnp
import keras
import replicant
from replicant.coordinator import ClusterCoordinator, FixedShardsPartitioner, embedding_lookup
from replicant.data import Dataset
from replicant.errors import ContextError, LostProcessError

from replicant.coordinator.scheduling import _dispatch
_dispatch._MAX_ATTEMPTS = 2  # that a poisonous function costs: each takes seconds
answers = {}
strategy = replicant.ParameterServerStrategy(variable_partitioner=FixedShardsPartitioner(2))
coordinator = ClusterCoordinator(strategy)
with strategy.scope():
    total = replicant.Variable(0.0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, "relu"), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.01)

class Scale(keras.layers.Layer):  # a class of this script
    def call(self, x):
        return 2 * x

layer = Scale()

def step(iterator):
    x = next(iterator)
    @replicant.function
    def inner(x):
        with replicant.GradientTape() as tape:
            loss = (layer(model(x, training=True)) ** 2).mean()
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss
    total.assign_add(1.0)
    return inner(x)

data = np.random.default_rng(0).normal(size=(64, 8)).astype("f4")
iterator = iter(coordinator.create_per_worker_dataset(lambda: Dataset.from_tensor_slices(data).repeat().batch(16)))
losses = [coordinator.schedule(step, args=(iterator,)) for _ in range(20)]
coordinator.join()
answers["steps"] = [float(total.numpy()), int(optimizer.iterations.value)]
answers["finite"] = bool(np.isfinite(coordinator.fetch(losses)).all())
with strategy.scope():
    ids = keras.Input((2,), dtype="int32")
    wide = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(keras.layers.Embedding(200_000, 8)(ids))))
    sgd = keras.optimizers.SGD(0.1)

@replicant.function
def wide_step(x):
    with replicant.GradientTape() as tape:
        loss = wide(x).sum()
    sgd.apply(tape.gradient(loss, wide.trainable_variables), wide.trainable_variables)

before = sum(memory.ledger.pushed_bytes for memory in strategy.cluster.memories)
coordinator.schedule(wide_step, args=(np.array([[3, 199_999]], "int32"),)).fetch()
answers["rows only"] = sum(memory.ledger.pushed_bytes for memory in strategy.cluster.memories) - before < 500
answers["pids"] = len({coordinator.schedule(os.getpid).fetch() for _ in range(50)} - {os.getpid()})

def from_a_worker(fn):
    try:
        return coordinator.schedule(fn).fetch()
    except Exception as error:
        try:
            coordinator.join()
        except Exception:
            pass
        return f"{type(error).__name__}: {error}"

answers["nested strategy"] = from_a_worker(lambda: replicant.ParameterServerStrategy())
answers["poison"] = from_a_worker(lambda: os._exit(3))
answers["works after"] = coordinator.schedule(lambda: 7).fetch()
answers["replaced"] = coordinator.stats()["replaced_workers"]
big = np.ones(3_000_000, "f4")
answers["big values"] = [float(x.fetch().sum()) for x in [coordinator.schedule(lambda x: 2 * x, args=(big,)) for _ in range(6)]]
strategy.close()
try:
    coordinator.schedule(lambda: 1)
except LostProcessError as error:
    answers["closed"] = str(error)
print(json.dumps(answers))
"""

WAITING = """
import json, time
import replicant
from replicant.coordinator import ClusterCoordinator
strategy = replicant.ParameterServerStrategy()
coordinator = ClusterCoordinator(strategy)
def spin():
    while True:
        pass
coordinator.schedule(spin)
members = [*strategy.cluster.workers, *strategy.cluster.servers]
print(json.dumps([member.running.pid for member in members]), flush=True)
coordinator.join()
"""


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"KERAS_BACKEND": "jax"}


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> dict:
    script = tmp_path_factory.mktemp("ps") / "script.py"
    script.write_text(QUESTIONS)  # no `if __name__ == "__main__"`: workers do not run the script again
    done = subprocess.run(
        [sys.executable, str(script)], env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("steps", [20.0, 20]),
        ("finite", True),
        ("rows only", True),
        ("pids", 2),
        ("works after", 7),
        ("replaced", 2),
        ("big values", [6e6] * 6),
    ],
)
def test_answers(answers, question, expected):
    assert answers[question] == expected


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("nested strategy", "ContextError: A ParameterServerStrategy was made inside a worker process of another one"),
        ("poison", "LostProcessError: 2 workers were lost while they ran closure "),
        ("closed", "The strategy's close() has ended its workers and servers"),
    ],
)
def test_errors(answers, question, expected):
    assert answers[question].startswith(expected)


@pytest.mark.cases("9")
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.long
def test_nothing_survives_its_program(tmp_path, ending):
    script = tmp_path / "script.py"
    script.write_text(WAITING)
    program = subprocess.Popen(
        [sys.executable, str(script)], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert program.stdout is not None
        pids = json.loads(program.stdout.readline())
        assert len(pids) == 4
        program.send_signal(ending)
        program.wait(SECONDS)
        deadline = time.monotonic() + SECONDS
        while any(map(is_running, pids)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert [pid for pid in pids if is_running(pid)] == []
    finally:
        program.kill()
        program.wait()
        if program.stdout is not None:
            program.stdout.close()


def is_running(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
