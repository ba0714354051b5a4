"""fit, evaluate and predict take Replicant's datasets in a program without a strategy. Each case is a process of its own."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages

from _quiet import printed

DATASET = """
import numpy as np
import replicant
rows = np.arange(14, dtype="float32").reshape(7, 2)
dataset = replicant.data.Dataset.from_tensor_slices((rows, rows[:, :1])).batch(3)
"""
FIT = """
import keras
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(dataset, epochs=2, validation_data=dataset, verbose=0).history
assert sorted(history) == ["loss", "val_loss"] and len(history["loss"]) == 2
assert np.allclose(model.evaluate(dataset, verbose=0), model.evaluate(rows, rows[:, :1], verbose=0))
assert np.allclose(model.predict(dataset.map(lambda x, y: x), verbose=0), model.predict(rows, verbose=0))
print("fitted")
"""
PROGRAMS = {
    "Keras first": "import keras\n" + DATASET + FIT,
    "Keras last": DATASET + FIT,
    "the default strategy": DATASET + "strategy = replicant.get_strategy(); replicant.Checkpoint()\n" + FIT,
    "a step in TensorFlow's form": """
import keras
import numpy as np
import replicant
class Linear(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
    def train_step(self, data):
        x, y = data
        with replicant.GradientTape() as tape:
            loss = keras.ops.mean((self.dense(x) - y) ** 2)
        weights = self.dense.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"error": loss}
model = Linear()
model.compile("sgd")
rows = np.ones((7, 2), "float32")
losses = model.fit(rows, rows[:, :1], batch_size=3, epochs=2, verbose=0).history["error"]
assert losses[1] < losses[0]
print("fitted")
""",
    "distributed": DATASET
    + "dataset = replicant.get_strategy().experimental_distribute_dataset(dataset)\n"
    + FIT.partition("assert np")[0]
    + "print('fitted')",
}


def answer(program: str, **environ: str) -> str:
    return printed(program, {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"} | environ)


@pytest.mark.cases("Keras first", "Keras last", "a step in TensorFlow's form")
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.long
def test_fit_takes_a_dataset(program: str) -> None:
    assert answer(program, KERAS_BACKEND="jax") == "fitted"


@pytest.mark.long
def test_keras_on_another_backend_is_left_alone() -> None:
    program = DATASET + "import keras\nprint(len(list(dataset.map(lambda x, y: x))), 'replicant.keras' in sys.modules)"
    assert answer("import sys\n" + program, KERAS_BACKEND="numpy") == "3 False"


@pytest.mark.long
def test_a_keras_that_cannot_be_connected_is_a_warning() -> None:
    program = f"""
import sys, types, warnings
import keras
keras.__version__ = "3.2.0"
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    {DATASET.replace(chr(10), chr(10) + "    ")}
    dataset.take(1)
print(len(told), told[0].message)
"""
    assert answer(program, KERAS_BACKEND="jax") == (
        "1 Keras's fit, evaluate and predict cannot read datasets of Replicant: Replicant needs Keras >= 3.12; this is 3.2.0. Run: "
        "pip install -U keras."
    )
