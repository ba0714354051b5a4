"""Keras's own callbacks, and a user's, see a model under a strategy as they see any other."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import callbacks, layers

import replicant

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 6)).astype(np.float32), RNG.integers(0, 3, 12)
XENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(n: int, optimizer: Any = None, **options: Any) -> keras.Model:
    """A model under n replicas; 0 is no strategy."""
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(n)]) if n else replicant.get_strategy()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), layers.Dense(4, activation="tanh"), layers.Dense(3)])
        model.compile(optimizer or keras.optimizers.SGD(0.1, momentum=0.9), XENTROPY, **options)
    return model


def fit(model: keras.Model, *used: callbacks.Callback, epochs: int = 3, **options: Any) -> dict[str, list[float]]:
    """Three batches of 4 per epoch."""
    history = model.fit(X, Y, batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=list(used), **options)
    return history.history


class Recorder(callbacks.Callback):
    """Calls `look` after every batch, once the model's variables are those of that batch."""

    def __init__(self, look: Callable[[keras.Model], Any]) -> None:
        super().__init__()
        self.look, self.seen = look, []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.jax_state_sync()
        self.seen.append(self.look(self.model))


def weights_and_rate(model: keras.Model) -> Any:
    return [w.copy() for w in model.get_weights()], float(model.optimizer.learning_rate), int(model.optimizer.iterations)


def test_weights_and_learning_rate_in_mid_epoch() -> None:
    seen = []
    for n in (4, 0):
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
        recorder = Recorder(weights_and_rate)
        fit(compiled(n, keras.optimizers.SGD(schedule)), recorder, epochs=2)
        seen.append(recorder.seen)
    assert [iterations for _, _, iterations in seen[0]] == [1, 2, 3, 4, 5, 6]
    for (weights, rate, _), (expected_weights, expected_rate, _) in zip(*seen, strict=True):
        assert rate == pytest.approx(expected_rate)
        for a, b in zip(weights, expected_weights, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_weights_that_a_callback_sets_are_trained_on() -> None:
    """Also in mid-epoch: what the callback assigns is on one device, and goes to all of them."""

    def halve(model: keras.Model) -> None:
        model.set_weights([w / 2 for w in model.get_weights()])

    runs = [compiled(n) for n in (2, 0)]
    losses = [fit(model, Recorder(halve), epochs=2)["loss"] for model in runs]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    for a, b in zip(runs[0].get_weights(), runs[1].get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.long
def test_model_checkpoint(tmp_path: Path) -> None:
    model, plain = compiled(4), compiled(0)
    fit(
        model,
        callbacks.ModelCheckpoint(str(tmp_path / "{epoch}.weights.h5"), save_weights_only=True),
        callbacks.ModelCheckpoint(str(tmp_path / "step{batch}.weights.h5"), save_weights_only=True, save_freq=2),
        callbacks.ModelCheckpoint(str(tmp_path / "best.keras"), monitor="val_loss", save_best_only=True),
        validation_data=(X, Y),
        epochs=2,
    )
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["1.weights.h5", "2.weights.h5", "best.keras", "step1.weights.h5", "step2.weights.h5", "step3.weights.h5"]
    plain.optimizer.build(plain.trainable_variables)
    plain.load_weights(tmp_path / "2.weights.h5")
    for a, b in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    best = keras.models.load_model(tmp_path / "best.keras")
    assert best.evaluate(X, Y, verbose=0) == pytest.approx(model.evaluate(X, Y, verbose=0), abs=1e-6)


def test_learning_rate_scheduler() -> None:
    history = fit(compiled(2), callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2 if epoch else rate))
    assert history["learning_rate"] == pytest.approx([0.1, 0.05, 0.025])


def test_reduce_learning_rate_on_plateau() -> None:
    """Nothing improves by 10: one epoch of patience, then the rate falls."""
    reduce = callbacks.ReduceLROnPlateau("loss", factor=0.1, patience=1, min_delta=10)
    assert fit(compiled(2), reduce)["learning_rate"] == pytest.approx([0.1, 0.1, 0.01])


def test_early_stopping_restores_the_best_weights() -> None:
    model = compiled(2)
    first: list[Any] = []
    remember = callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: first.append(model.get_weights()))
    history = fit(model, remember, callbacks.EarlyStopping("loss", min_delta=10, patience=2, restore_best_weights=True), epochs=9)
    assert len(history["loss"]) == 3
    for a, b in zip(model.get_weights(), first[0], strict=True):
        np.testing.assert_array_equal(a, b)


def test_stop_training_in_mid_epoch() -> None:
    steps: list[int] = []

    class Stop(callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            steps.append(batch)
            self.model.stop_training = batch == 1

    model = compiled(2)
    assert len(fit(model, Stop())["loss"]) == 1
    assert steps == [0, 1]
    assert int(model.optimizer.iterations) == 2


def test_csv_logger(tmp_path: Path) -> None:
    history = fit(compiled(2, metrics=["accuracy"]), callbacks.CSVLogger(str(tmp_path / "log.csv")), epochs=2)
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == [0, 1]
    for name in ("loss", "accuracy"):
        assert [float(row[name]) for row in rows] == pytest.approx(history[name])


def test_batch_logs_are_those_of_one_device() -> None:
    logged = []
    for n in (4, 0):
        seen: list[dict[str, float]] = []

        class Logs(callbacks.Callback):
            def __init__(self, seen: Any) -> None:
                super().__init__()
                self.seen = seen

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                self.seen.append({name: float(value) for name, value in logs.items()})

        fit(compiled(n, metrics=["accuracy"]), Logs(seen), epochs=1)
        logged.append(seen)
    for ours, plain in zip(*logged, strict=True):
        assert ours == pytest.approx(plain, abs=1e-5)


@pytest.mark.long
def test_moving_average_of_the_weights() -> None:
    """Keras exchanges weights and averages around evaluation and saving; afterwards training goes on where it was."""
    weights = []
    for n in (4, 0):
        optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
        model = compiled(n, optimizer)
        history = fit(model, callbacks.SwapEMAWeights(swap_on_epoch=True), validation_data=(X, Y))
        again = fit(model, epochs=1)  # training ends with the averages as weights: both must live on
        weights.append((history["val_loss"], again["loss"], model.get_weights()))
    assert weights[0][:2] == (pytest.approx(weights[1][0], abs=1e-5), pytest.approx(weights[1][1], abs=1e-5))
    for a, b in zip(weights[0][2], weights[1][2], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_an_error_in_a_callback_leaves_a_usable_model() -> None:
    class Fails(callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise RuntimeError("no space left")

    model = compiled(2)
    with pytest.raises(RuntimeError, match="no space left"):
        fit(model, Fails())
    assert len(fit(model, epochs=1)["loss"]) == 1
    assert int(model.optimizer.iterations) == 4
