"""Each library in real processes: two workers give the numbers of one device, kill -9 loses no step; Keras with NNX."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # test folders are no packages

import _group  # noqa: E402

library = pytest.mark.parametrize("library", ["keras", "nnx", "linen", "equinox", "jax"])


def start(folder, library, num_workers, **environ):
    folder.mkdir(exist_ok=True)
    several = num_workers > 1
    given = {
        "LIBRARY": library,
        "STRATEGY": "MultiWorkerMirroredStrategy" if several else "MirroredStrategy",
        "DEVICES": "1" if several else "2",
        "FOLDER": str(folder / "checkpoints"),
        **environ,
    }
    if not several:
        given |= dict.fromkeys(("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_COORDINATOR_ADDRESS"))
    return _group.Group(HERE / "_worker_neighbours.py", num_workers, folder, environ=given)


def assert_close(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@library
def test_resume(library, tmp_path):
    """A run that is killed with kill -9 and started again ends with the bits of one that was not.

    NNX draws dropout masks, which go on where they were; they differ by replica, so only the others equal one device.
    """
    options = {"DROPOUT": "0.3"} if library == "nnx" else {}
    (whole,) = start(tmp_path / "whole", library, 1, **options).ended_well()
    killed = start(tmp_path / "killed", library, 1, KILL_AT="4", **options)
    assert killed.wait()[0].status == -signal.SIGKILL
    (resumed,) = start(tmp_path / "killed", library, 1, **options).ended_well()
    assert [whole["began"], whole["steps"], resumed["began"]] == [0, 6, 4]
    assert resumed["weights"] == whole["weights"]
    if not options:
        assert_close(whole["weights"], whole["expected"])


@pytest.mark.slow
@library
def test_two_workers(library, tmp_path):
    """The last batch of an epoch has 5 rows, 3 for the first worker and 2 for the second."""
    for worker in start(tmp_path, library, 2).ended_well():
        assert_close(worker["weights"], worker["expected"])


KERAS_NNX = """
import replicant
replicant.set_virtual_devices(2)
import sys
import keras
import numpy as np
from flax import nnx

assert keras.config.is_nnx_enabled() and isinstance(keras.Variable(1.0), nnx.Variable)
rng = np.random.default_rng(0)
x, y = rng.normal(size=(22, 4)).astype("float32"), rng.integers(0, 3, 22)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
each_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def make(strategy):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
        model.optimizer.build(model.trainable_variables)
    return model


def fit(model):
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    return [*history["loss"], *history["accuracy"], *model.get_weights()]


def loop(strategy):
    model, batches = make(strategy), replicant.data.Dataset.from_tensor_slices((x, y)).batch(8)

    def step(x, y):
        with replicant.GradientTape() as tape:
            value = replicant.compute_average_loss(each_loss(y, model(x)), global_batch_size=8)
        gradients = tape.gradient(value, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    step_of_all = replicant.function(lambda batch: strategy.reduce("SUM", strategy.run(step, args=batch)))
    return [*[step_of_all(batch) for batch in strategy.experimental_distribute_dataset(batches)], *model.get_weights()]


def close(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


two, one = replicant.MirroredStrategy(), replicant.OneDeviceStrategy("cpu:0")
model = make(two)
close(fit(model), fit(make(replicant.get_strategy())))
close(loop(two), loop(one))

path = replicant.Checkpoint(model=model, optimizer=model.optimizer).save(sys.argv[1] + "/saved")
again = make(one)
replicant.Checkpoint(model=again, optimizer=again.optimizer).restore(path).assert_consumed()
close(fit(again), fit(model))
print("equal")
with two.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
try:
    two.run(lambda x: nnx.grad(lambda m: m(x).sum())(model), args=(x,))
except replicant.errors.VariableError as error:
    print(error)
"""


@pytest.mark.slow
def test_keras_whose_variables_are_those_of_nnx(tmp_path):
    """KERAS_NNX_ENABLED=1: fit and a loop on two devices equal one device, and a checkpoint goes from two devices to one.

    Transformations of Flax would leave values of a trace in a Keras model, so they are refused.
    """
    environ = _group.clean_environment() | {"KERAS_BACKEND": "jax", "KERAS_NNX_ENABLED": "1"}
    done = subprocess.run(
        [sys.executable, "-c", KERAS_NNX, str(tmp_path)], env=environ, capture_output=True, text=True, timeout=400, check=False
    )
    refused = (
        "A compiled step passes a Keras Sequential to a transformation of Flax NNX, such as nnx.value_and_grad. That works with "
        "modules of Flax only, even with KERAS_NNX_ENABLED. For a Keras model, record the loss with replicant.GradientTape, write "
        "`grads = tape.gradient(loss, model.trainable_variables)`, and update with an optimizer of Keras."
    )
    assert (done.returncode, done.stdout) == (0, f"equal\n{refused}\n"), done.stderr[-3000:]
