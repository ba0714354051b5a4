"""State on a GPU: it is overwritten in place, saved and restored exactly, also from and to CPUs, and goes on after a crash."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import replicant

X = np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 3, 64)

pytestmark = pytest.mark.gpu


def make_model(device: str, width: int = 8) -> Any:
    keras.utils.set_random_seed(5)
    with replicant.MirroredStrategy([device]).scope():
        model = keras.Sequential([keras.Input((16,)), layers.Dense(width, "relu"), layers.Dropout(0.2), layers.Dense(3)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def test_training_needs_its_state_once(gpu: Any) -> None:
    """The state is 12 bytes for each weight: 1 GB. A second one beside it would be seen."""
    width = 4_400_000
    model = make_model(f"{gpu.platform}:0", width)
    model.fit(X[:8], Y[:8], batch_size=8, verbose=0)
    before = gpu.memory_stats()
    model.fit(X[:8], Y[:8], batch_size=8, epochs=10, verbose=0)
    after = gpu.memory_stats()
    assert abs(after["bytes_in_use"] - before["bytes_in_use"]) < 1 << 20
    state = 12 * width * 20
    assert after["peak_bytes_in_use"] < 2 * state


@pytest.mark.parametrize("there", ["gpu", "cpu"])
def test_checkpoints_of_one_device_are_those_of_the_other(gpu: Any, there: str, tmp_path: Path) -> None:
    first, second = (gpu.platform, "cpu") if there == "cpu" else ("cpu", gpu.platform)
    model = make_model(f"{first}:0")
    model.fit(X, Y, batch_size=16, verbose=0)
    replicant.Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path / "saved")
    other = make_model(f"{second}:0")
    other.fit(X, Y, batch_size=32, epochs=2, verbose=0)
    latest = replicant.latest_checkpoint(tmp_path)
    replicant.Checkpoint(model=other, optimizer=other.optimizer).restore(latest)
    for a, b in zip([*model.variables, *model.optimizer.variables], [*other.variables, *other.optimizer.variables], strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    a, b = (m.fit(X, Y, batch_size=16, shuffle=False, verbose=0).history["loss"] for m in (model, other))
    np.testing.assert_allclose(a, b, rtol=1e-4)


class Crash(Exception):
    pass


CRASHES = [11]  # after so many batches, once; outside of the callback, whose own state is restored


class CrashOnce(keras.callbacks.Callback):
    """Raises after some batches."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        CRASHES[0] -= 1
        if not CRASHES[0]:
            raise Crash


def test_training_goes_on_exactly(gpu: Any, tmp_path: Path) -> None:
    device = f"{gpu.platform}:0"
    whole = make_model(device)
    whole.fit(X, Y, batch_size=10, epochs=3, verbose=0)
    CRASHES[0] = 11

    def backup() -> Any:
        return replicant.keras.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=2)

    with pytest.raises(Crash):
        make_model(device).fit(X, Y, batch_size=10, epochs=3, verbose=0, callbacks=[backup(), CrashOnce()])
    resumed = make_model(device)
    resumed.fit(X, Y, batch_size=10, epochs=3, verbose=0, callbacks=[backup(), CrashOnce()])
    for a, b in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-7)


def test_saved_models_and_exports(gpu: Any, tmp_path: Path) -> None:
    model = make_model(f"{gpu.platform}:0")
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5, atol=1e-6)
