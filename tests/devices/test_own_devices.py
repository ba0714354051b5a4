"""All that belongs to a strategy lies on its devices, from the beginning, and nothing on JAX's default device."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest

import replicant
from replicant.replicas._own_device import on_device_of, on_own_device

ROWS = np.random.default_rng(0).normal(size=(11, 4)).astype(np.float32)
TARGETS = np.random.default_rng(1).normal(size=(11, 2)).astype(np.float32)
STRATEGIES: dict[str, Callable[[], replicant.Strategy]] = {
    "one": lambda: replicant.OneDeviceStrategy("cpu:5"),
    "mirrored": lambda: replicant.MirroredStrategy(["cpu:5", "cpu:6"]),
    "fused": lambda: replicant.MirroredStrategy(["cpu:5", "cpu:6"], fuse_replicas=True),
    "sliced": lambda: replicant.MirroredStrategy(["cpu:5", "cpu:6"], shard_optimizer_state=True),
}
FIRST = jax.devices()[0]


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> replicant.Strategy:
    return STRATEGIES[request.param]()


@pytest.fixture
def on_default_device() -> Callable[[], list[str]]:
    """``on_default_device()`` lists the arrays on JAX's default device that were not there before the test."""
    before = {id(x): x for x in jax.live_arrays() if FIRST in x.devices()}

    def added() -> list[str]:
        return [f"{x.dtype}{list(x.shape)}" for x in jax.live_arrays() if FIRST in x.devices() and id(x) not in before]

    return added


def model_of(strategy: replicant.Strategy, *, compiled_inside: bool = True) -> Any:
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(3),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.1),
                keras.layers.Dense(2),
            ]
        )
        if compiled_inside:
            model.compile("adam", "mse", metrics=["mae"])
    if not compiled_inside:
        model.compile("adam", "mse", metrics=["mae"])
    return model


@pytest.mark.parametrize("compiled_inside", [True, False])
@pytest.mark.long_cases("one-True", "fused-True", "sliced-True")
@pytest.mark.long_cases("fused-False", "mirrored-True", "one-False", "sliced-False")
def test_a_model_before_and_after_fit(
    strategy: replicant.Strategy, compiled_inside: bool, on_default_device: Callable[[], list[str]]
) -> None:
    model = model_of(strategy, compiled_inside=compiled_inside)
    if compiled_inside:
        assert on_default_device() == []
    model.fit(ROWS, TARGETS, batch_size=4, verbose=0)
    model.evaluate(ROWS, TARGETS, batch_size=4, verbose=0)
    model.train_on_batch(ROWS[:4], TARGETS[:4])
    model.predict(ROWS, verbose=0)
    assert on_default_device() == []


def test_what_is_assigned(strategy: replicant.Strategy, tmp_path: Path, on_default_device: Callable[[], list[str]]) -> None:
    model = model_of(strategy)
    model.set_weights(model.get_weights())
    model.variables[0].assign(np.ones((4, 3), np.float32))
    model.variables[0].assign_add(np.ones((4, 3), np.float32))
    assert on_default_device() == []
    model.fit(ROWS, TARGETS, batch_size=4, verbose=0)
    model.set_weights(model.get_weights())
    model.optimizer.learning_rate.assign(0.5)
    model.save_weights(tmp_path / "model.weights.h5")
    model.load_weights(tmp_path / "model.weights.h5")
    assert on_default_device() == []


@pytest.mark.long_cases("sliced")
def test_what_is_loaded(strategy: replicant.Strategy, tmp_path: Path, on_default_device: Callable[[], list[str]]) -> None:
    model = model_of(strategy)
    model.fit(ROWS, TARGETS, batch_size=4, verbose=0)
    model.save(tmp_path / "model.keras")
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert on_default_device() == []
    np.testing.assert_array_equal(loaded.predict(ROWS, verbose=0), model.predict(ROWS, verbose=0))


def test_what_a_checkpoint_restores(
    strategy: replicant.Strategy, tmp_path: Path, on_default_device: Callable[[], list[str]]
) -> None:
    model = model_of(strategy)
    model.fit(ROWS, TARGETS, batch_size=4, verbose=0)
    path = replicant.Checkpoint(model=model, optimizer=model.optimizer).save(str(tmp_path / "checkpoint"))
    other = model_of(strategy)
    replicant.Checkpoint(model=other, optimizer=other.optimizer).restore(path)
    assert on_default_device() == []
    for mine, its in zip(model.optimizer.variables, other.optimizer.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), its.numpy())


def test_variables_and_a_loop(strategy: replicant.Strategy, on_default_device: Callable[[], list[str]]) -> None:
    with strategy.scope():
        mean = replicant.Variable(np.zeros(3, np.float32), aggregation="mean")
        each = replicant.Variable(np.zeros((2, 2), np.float32), synchronization="on_read", aggregation="sum")
        made = replicant.Variable(lambda: jax.numpy.ones(4), name="made")
    mean.assign(np.ones(3, np.float32))
    mean.assign_add(np.ones(3, np.float32))
    made.scatter_update(np.array([1]), np.array([5.0], np.float32))
    assert on_default_device() == []

    @replicant.function
    def step(x: Any) -> Any:
        def replica(x: Any) -> None:
            mean.assign_add(x.sum() * np.ones(3, np.float32))
            each.assign_add(x)

        strategy.run(replica, args=(x,))

    step(np.ones((2, 2), np.float32))
    num_replicas = strategy.num_replicas_in_sync
    assert on_default_device() == []
    np.testing.assert_array_equal(mean.numpy(), [6, 6, 6])
    np.testing.assert_array_equal(each.numpy(), np.full((2, 2), num_replicas))
    np.testing.assert_array_equal(made.numpy(), [1, 5, 1, 1])


def test_initial_values_are_those_of_the_default_device() -> None:
    def weights(strategy: replicant.Strategy) -> list[np.ndarray]:
        keras.utils.set_random_seed(3)
        return model_of(strategy).get_weights()

    expected = weights(replicant.OneDeviceStrategy("cpu:0"))
    for make in STRATEGIES.values():
        for mine, its in zip(weights(make()), expected, strict=True):
            np.testing.assert_array_equal(mine, its)


def test_a_default_device_of_the_user_counts() -> None:
    """As for a model that is first made in the memory of the host."""
    chosen = jax.devices()[2]
    with replicant.MirroredStrategy(["cpu:5", "cpu:6"]).scope(), jax.default_device(chosen):
        assert keras.layers.Dense(3).kernel_initializer((2, 2)).devices() == {chosen}
        assert keras.Variable(np.zeros(2, np.float32))._value.devices() == {chosen}
        assert replicant.Variable(np.zeros(2, np.float32)).value().devices() == {chosen}


def test_without_a_strategy_nothing_changes() -> None:
    variable = keras.Variable(np.zeros(2, np.float32))
    variable.assign(np.ones(2, np.float32))
    assert variable._value.devices() == {FIRST}
    with on_own_device(replicant.get_strategy().placement), on_device_of(None, variable._value), on_device_of(None, None):
        assert jax.numpy.zeros(2).devices() == {FIRST}
