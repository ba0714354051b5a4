"""Models saved under a strategy are ordinary Keras files: they load with one, without one, and on other devices."""

import copy
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import replicant

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(11, 6)).astype(np.float32), RNG.integers(0, 3, 11)


def mirrored(n: int) -> replicant.Strategy:
    """n replicas; 0 is no strategy."""
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(n)]) if n else replicant.get_strategy()


def trained(n: int) -> keras.Model:
    """Batch statistics and optimizer slots have moved on."""
    keras.utils.set_random_seed(1)
    with mirrored(n).scope():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                layers.Dense(4, use_bias=False),
                layers.BatchNormalization(momentum=0.5),
                layers.Dense(3),
            ]
        )
        model.compile(
            keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
        )
    fit(model, epochs=2)
    return model


def fit(model: keras.Model, epochs: int = 1) -> list[float]:
    return model.fit(X, Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0).history["loss"]


def evaluate(model: keras.Model) -> Any:
    return pytest.approx(model.evaluate(X, Y, batch_size=8, verbose=0), abs=1e-5)


def num_devices(model: keras.Model) -> int:
    return len(model.trainable_variables[0].value.sharding.device_set)


def assert_same_weights(actual: keras.Model, expected: keras.Model) -> None:
    for a, b in zip(actual.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[keras.Model, Path]:
    """A model trained and saved under 4 replicas, which then went on for one more epoch."""
    model, path = trained(4), tmp_path_factory.mktemp("saved") / "model.keras"
    model.save(path)
    model.save_weights(path.with_name("model.weights.h5"))
    model.before = evaluate(model)
    fit(model)
    return model, path


@pytest.mark.cases("0", "3")
@pytest.mark.parametrize("n", [0, 2, 3, 4])
@pytest.mark.long
def test_a_loaded_model_goes_on_as_the_saved_one(saved: tuple[keras.Model, Path], n: int) -> None:
    went_on, path = saved
    with mirrored(n).scope():
        model = keras.models.load_model(path)
    assert model.evaluate(X, Y, batch_size=8, verbose=0) == went_on.before
    fit(model)
    assert_same_weights(model, went_on)  # batch statistics and Adam's slots were restored too
    assert int(model.optimizer.iterations) == 6
    assert num_devices(model) == max(n, 1)


@pytest.mark.parametrize("n", [0, 3])
@pytest.mark.long_cases("0")
def test_weights_alone(saved: tuple[keras.Model, Path], n: int) -> None:
    went_on, path = saved
    model = trained(n)
    model.load_weights(path.with_name("model.weights.h5"))
    assert model.evaluate(X, Y, batch_size=8, verbose=0) == went_on.before


def test_a_plain_model_loads_under_a_strategy(tmp_path: Path) -> None:
    plain = trained(0)
    plain.save(tmp_path / "plain.keras")
    with mirrored(4).scope():
        model = keras.models.load_model(tmp_path / "plain.keras")
    assert model.evaluate(X, Y, batch_size=8, verbose=0) == evaluate(plain)
    assert num_devices(model) == 4


@pytest.mark.long
def test_clone_model(saved: tuple[keras.Model, Path]) -> None:
    """A clone belongs to the scope in which it is made."""
    model = trained(4)
    for n in (0, 2):
        with mirrored(n).scope():
            clone = keras.models.clone_model(model)
            clone.set_weights(model.get_weights())
            clone.compile("sgd", model.loss, metrics=["accuracy"])
        assert clone.evaluate(X, Y, batch_size=8, verbose=0) == evaluate(model)
        assert num_devices(clone) == max(n, 1)


@pytest.mark.long
def test_a_copy_belongs_to_the_scope_in_which_it_is_made() -> None:
    """Keras copies and pickles a model by saving and loading it."""
    model = trained(2)
    before = evaluate(model)
    plain = copy.deepcopy(model)
    with mirrored(3).scope():
        twin = copy.deepcopy(model)
    fit(model)
    for copied, num in ((plain, 1), (twin, 3)):
        assert copied.evaluate(X, Y, batch_size=8, verbose=0) == before
        assert num_devices(copied) == num
