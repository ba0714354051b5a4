"""Restores that must wait: models whose variables come into being when they are first called, attributes that come later."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import replicant
from replicant.errors import CheckpointError

ROWS = np.linspace(-1, 1, 40, dtype=np.float32).reshape(8, 5)
LABELS = np.arange(8) % 3


class TwoInputs(keras.Model):
    """Nothing that is saved says how to build it."""

    def __init__(self, units: int = 3) -> None:
        super().__init__()
        # No bias: before BatchNorm it has no true gradient, and Adam makes noise of it.
        self.dense = keras.layers.Dense(units, use_bias=False)
        self.norm = keras.layers.BatchNormalization()
        self.dropout = keras.layers.Dropout(0.5)

    def get_build_config(self) -> None:
        return None

    def call(self, inputs: Any, training: bool = False) -> Any:
        left, right = inputs["left"], inputs["right"]
        return self.dropout(self.norm(self.dense(left) * self.dense(right), training=training), training=training)


def inputs(rows: Any = ROWS) -> dict[str, Any]:
    return {"left": rows, "right": rows[::-1]}


@pytest.fixture
def saved(tmp_path: Path) -> tuple[keras.Model, str]:
    """A trained model with its optimizer, and its checkpoint."""
    keras.utils.set_random_seed(1)
    model = compiled(TwoInputs())
    model.fit(inputs(), LABELS, epochs=2, batch_size=4, verbose=0)
    return model, replicant.Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path / "ckpt")


def compiled(model: keras.Model) -> keras.Model:
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def test_the_first_call_computes_with_the_restored_values(saved: tuple[keras.Model, str]) -> None:
    model, path = saved
    restored = compiled(TwoInputs())
    status = replicant.Checkpoint(model=restored, optimizer=restored.optimizer).restore(path)
    assert restored.weights == []
    assert len(status.deferred) > 6  # the optimizer waits for the variables that it trains
    status.assert_existing_objects_matched()
    with pytest.raises(CheckpointError, match=r"do not match\.\n  Waiting for variables that are not made yet \(call the model"):
        status.assert_consumed()
    for training in (True, False):
        expected = np.asarray(model(inputs(), training=training))
        assert np.asarray(restored(inputs(), training=training)).tobytes() == expected.tobytes()
    status.assert_consumed()
    for one, other in zip(model.optimizer.variables, restored.optimizer.variables, strict=True):
        assert np.asarray(one.value).tobytes() == np.asarray(other.value).tobytes()


def test_a_restore_that_failed_does_not_go_on_when_the_model_is_called(saved: tuple[keras.Model, str], tmp_path: Path) -> None:
    model, path = saved
    expected = np.asarray(model(inputs()))
    damaged = Path(replicant.Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path / "ckpt")) / "arrays.bin"
    data = damaged.read_bytes()
    damaged.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    restored = compiled(TwoInputs())
    manager = replicant.CheckpointManager(replicant.Checkpoint(model=restored, optimizer=restored.optimizer), tmp_path, 2)
    with pytest.warns(UserWarning, match=r"ckpt-2/arrays\.bin is damaged"):
        assert manager.restore_or_initialize() == path
    assert np.asarray(restored(inputs())).tobytes() == expected.tobytes()


@pytest.mark.parametrize("num_replicas", [0, 2])
def test_fit_goes_on_as_the_saved_model_does(saved: tuple[keras.Model, str], num_replicas: int) -> None:
    model, path = saved
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"]) if num_replicas else replicant.get_strategy()
    with strategy.scope():
        restored = compiled(TwoInputs())
    status = replicant.Checkpoint(model=restored, optimizer=restored.optimizer).restore(path)
    for each in (model, restored):
        each.fit(inputs(), LABELS, epochs=1, batch_size=4, shuffle=False, verbose=0)
    status.assert_consumed()
    exact = {"rtol": 0, "atol": 0} if num_replicas == 0 else {"rtol": 1e-5, "atol": 1e-6}
    for one, other in zip(model.variables, restored.variables, strict=True):
        np.testing.assert_allclose(np.asarray(one.value), np.asarray(other.value), **exact)


def test_a_custom_step_is_traced_with_the_restored_values(saved: tuple[keras.Model, str]) -> None:
    model, path = saved
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        restored, optimizer = TwoInputs(), keras.optimizers.Adam(0.01)
    status = replicant.Checkpoint(model=restored, optimizer=optimizer).restore(path)

    def replica_step(rows: Any) -> Any:
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss((restored(rows, training=False) ** 2).sum(-1), global_batch_size=8)
        gradients = tape.gradient(loss, restored.trainable_variables)
        optimizer.apply_gradients(zip(gradients, restored.trainable_variables, strict=True))
        return loss

    expected = float((np.asarray(model(inputs())) ** 2).sum(-1).mean())
    step = replicant.function(lambda batch: strategy.reduce("SUM", strategy.run(replica_step, args=(batch,)), axis=None))
    for batch in strategy.experimental_distribute_dataset(replicant.data.Dataset.from_tensor_slices(inputs()).batch(8)):
        assert float(step(batch)) == pytest.approx(expected, rel=1e-5)
    status.assert_consumed()
    assert int(optimizer.iterations.value) == int(model.optimizer.iterations.value) + 1


def test_another_shape_is_told_at_the_first_call(saved: tuple[keras.Model, str]) -> None:
    _, path = saved
    restored = TwoInputs(units=4)
    status = replicant.Checkpoint(model=restored).restore(path).expect_partial()
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"weights/0\.kernel: stored float32\[5, 3\], found float32\[5, 4\]"):
            restored(inputs())
    assert status.deferred


def test_what_becomes_an_attribute_later_is_restored_then(tmp_path: Path) -> None:
    path = replicant.Checkpoint(a=replicant.Variable(1.0), b=2, c={"x": 3}).save(tmp_path / "ckpt")
    checkpoint = replicant.Checkpoint(a=replicant.Variable(0.0))
    status = checkpoint.restore(path)
    assert status.unexpected == ("b", "c/x")
    checkpoint.b = 0
    checkpoint.c = {"x": 0}
    assert (checkpoint.b, checkpoint.c) == (2, {"x": 3})
    status.assert_consumed()
    checkpoint.b = 7
    assert checkpoint.b == 7
