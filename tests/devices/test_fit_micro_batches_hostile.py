"""``use_micro_batches`` under a model axis, in programs that mix it with everything else: the numbers of Keras on one device."""

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import replicant
from replicant.keras.callbacks import BackupAndRestore

layers = keras.layers
FEATURES, CLASSES, ROWS, BATCH = 6, 4, 22, 8
Cross = keras.losses.SparseCategoricalCrossentropy
STRATEGIES: dict[str, Callable[[], Any]] = {
    "two replicas": lambda: on_devices(4, 2),
    "one replica": lambda: on_devices(2, 2),
    "no model axis": lambda: on_devices(2, 1),
}


def on_devices(n: int, k: int) -> replicant.FullyShardedStrategy:
    return replicant.FullyShardedStrategy([f"cpu:{i}" for i in range(n)], min_size=8, model_parallel_size=k)


def data(num: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(0).normal(size=(num, FEATURES)).astype("f"), np.arange(num) % CLASSES


def dense(**options: Any) -> Any:
    inner = [layers.Dense(16, activation="gelu", **options), layers.Dense(CLASSES, **options)]
    return keras.Sequential([keras.Input((FEATURES,)), *inner, layers.Activation("linear", dtype="float32")])


def made(strategy: Any, steps: int, make: Callable[..., Any] = dense, optimizer: Any = None, **compiled: Any) -> Any:
    keras.utils.set_random_seed(0)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = make()
        optimizer = keras.optimizers.Adam(0.01) if optimizer is None else optimizer()
        model.compile(optimizer, Cross(from_logits=True), metrics=["accuracy"], **compiled)
    replicant.keras.use_micro_batches(model, steps)
    return model


def fit(model: Any, num: int = ROWS, **options: Any) -> list[Any]:
    history = model.fit(*data(num), batch_size=BATCH, verbose=0, shuffle=False, **options).history
    return [value for values in history.values() for value in values]


def between(strategy: Any, steps: int, _: Path) -> list[Any]:
    """Steps of other kinds and sizes between those of ``fit``, and another number of micro-batches."""
    model = made(strategy, steps)
    x, y = data()
    found = fit(model)
    found += model.train_on_batch(x[:5], y[:5], sample_weight=np.linspace(0.0, 2.0, 5))
    found += fit(model)
    found += model.evaluate(x, y, batch_size=BATCH, verbose=0)
    replicant.keras.use_micro_batches(model, 2 if steps > 1 else 1)
    found += fit(model)
    return [*found, model.predict(x, verbose=0), *model.get_weights()]


def several_steps(strategy: Any, steps: int, _: Path) -> list[Any]:
    """Several steps in one program, of which the last batch is short."""
    model = made(strategy, steps, steps_per_execution=2)
    return [*fit(model, epochs=2), *model.get_weights()]


def few_rows(strategy: Any, steps: int, _: Path) -> list[Any]:
    """More micro-batches than rows, and batches of a single row."""
    model = made(strategy, 100 if steps > 1 else 1)
    return [*fit(model, 9), *fit(model, 1), *fit(model, 3), *model.get_weights()]


class Off(Exception):
    """The machine loses power."""


class Power(keras.callbacks.Callback):
    """Turns the machine off after a number of batches; 0: never."""

    def __init__(self, num_batches: int):
        super().__init__()
        self._left = iter(range(num_batches - 1)) if num_batches else itertools.repeat(0)  # no state that could be saved

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if next(self._left, None) is None:
            raise Off


def resumed(strategy: Any, steps: int, folder: Path) -> list[Any]:
    """A run that goes on from a backup in the middle of its second epoch. On one device, nothing interrupts it."""
    if strategy is not None:
        with pytest.raises(Off):
            fit(made(strategy, steps), epochs=3, callbacks=[BackupAndRestore(folder, 1), Power(5)])
    model = made(strategy, steps)
    fit(model, epochs=3, callbacks=[] if strategy is None else [BackupAndRestore(folder, 1), Power(0)])
    assert int(np.asarray(model.optimizer.iterations)) == 9
    return [*model.evaluate(*data(), batch_size=BATCH, verbose=0), *model.get_weights()]


def frozen(strategy: Any, steps: int, _: Path) -> list[Any]:
    """Weights that are not trained and lie in slices."""

    def make() -> Any:
        model = dense()
        model.layers[0].trainable = False
        return model

    model = made(strategy, steps, make)
    return [*fit(model, epochs=2), *model.get_weights()]


def many_layers(strategy: Any, steps: int, _: Path) -> list[Any]:
    """Convolutions, an LSTM and attention."""

    def make() -> Any:
        given = keras.Input((FEATURES,))
        x = layers.Conv1D(8, 3, padding="same", activation="tanh")(layers.Reshape((FEATURES, 1))(given))
        x = layers.Bidirectional(layers.LSTM(8, return_sequences=True))(x)
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x))
        return keras.Model(given, layers.Dense(CLASSES)(layers.Flatten()(x)))

    model = made(strategy, steps, make, lambda: keras.optimizers.SGD(0.1))
    return [*fit(model, epochs=2), *model.get_weights()]


def scaled(strategy: Any, steps: int, _: Path) -> list[Any]:
    """A loss scale that is too large at first, so that steps are skipped, and that is too large again when it has grown."""

    def optimizer() -> Any:
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, global_clipnorm=0.5), 2.0**127, 2)

    model = made(strategy, steps, optimizer=optimizer, loss_weights=[8.0])
    found = fit(model, epochs=3)
    scale = float(np.asarray(model.optimizer.dynamic_scale))
    assert 2.0**120 < scale < 2.0**127
    return [*found, scale, np.asarray(model.optimizer.iterations), *model.get_weights()]


PROGRAMS = {each.__name__: each for each in (between, several_steps, few_rows, resumed, frozen, many_layers, scaled)}


@pytest.mark.cases("several_steps-two replicas")
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.long
def test_it_gives_the_numbers_of_one_device(program: str, name: str, tmp_path: Path) -> None:
    found, wanted = PROGRAMS[program](STRATEGIES[name](), 3, tmp_path), PROGRAMS[program](None, 1, tmp_path)
    for mine, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "rounding"), [("mixed_bfloat16", 2.0**-9), ("mixed_float16", 2.0**-12)])
@pytest.mark.parametrize("name", STRATEGIES)
def test_mixed_precision_differs_by_rounding(name: str, policy: str, rounding: float) -> None:
    """A step of rate 0.1 adds up to six parts of a gradient below 2, each rounded to 16 bits, and there are six steps."""

    def optimizer() -> Any:
        inner = keras.optimizers.SGD(0.1)
        return inner if policy == "mixed_bfloat16" else keras.optimizers.LossScaleOptimizer(inner, 2.0**14, 2)

    def trained(strategy: Any, steps: int) -> list[Any]:
        model = made(strategy, steps, lambda: dense(dtype=policy), optimizer)
        return [*fit(model, epochs=2), *model.get_weights()]

    for mine, other in zip(trained(STRATEGIES[name](), 3), trained(None, 1), strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=0.1 * 6 * 6 * 2 * rounding)
