"""Labels that no class has: a loss of NaN under a strategy, as TensorFlow has it on GPUs."""

from typing import Any

import jax
import keras
import numpy as np
import pytest

import replicant

pytestmark = pytest.mark.both_ways

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
GOOD = np.arange(8, dtype=np.int32) % 4
NO_CLASS = [4, 5, -1, 1000]


@pytest.fixture
def two() -> replicant.MirroredStrategy:
    return replicant.MirroredStrategy(["cpu:0", "cpu:1"])


def with_label(label: int) -> np.ndarray:
    return np.where(np.arange(8) == 2, label, GOOD)


def sparse(**options: Any) -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none", **options)


def losses_in_run(strategy: replicant.Strategy, loss: keras.losses.Loss, labels: np.ndarray, weights: Any = None) -> np.ndarray:
    x = np.concatenate([X, X[:, :1]], axis=1)
    parts = strategy.experimental_distribute_values_from_function(
        lambda c: [None if a is None else np.split(a, 2)[c.replica_id_in_sync_group] for a in (x, labels, weights)]
    )
    result = strategy.run(lambda logits, y, w: loss(y, logits, w), args=parts)
    return np.concatenate([np.asarray(part) for part in strategy.experimental_local_results(result)])


@pytest.mark.parametrize("label", NO_CLASS)
def test_the_loss_of_a_label_out_of_range_is_nan_in_run(two, label: int) -> None:
    losses = losses_in_run(two, sparse(), with_label(label))
    assert np.isnan(losses).tolist() == [i == 2 for i in range(8)]
    column = losses_in_run(two, sparse(), with_label(label)[:, None])
    np.testing.assert_array_equal(column, losses)


def test_examples_that_do_not_count_may_have_any_label(two) -> None:
    weights = (np.arange(8) != 2).astype(np.float32)
    expected = losses_in_run(two, sparse(), GOOD, weights)
    np.testing.assert_array_equal(losses_in_run(two, sparse(), with_label(-1), weights), expected)
    np.testing.assert_array_equal(losses_in_run(two, sparse(ignore_class=255), with_label(255)), expected)
    assert np.isnan(losses_in_run(two, sparse(ignore_class=255), with_label(254))).sum() == 1


@pytest.mark.parametrize("name", ["object", "string"])
def test_fit_and_evaluate_show_it(two, name: str) -> None:
    def create(strategy: replicant.Strategy) -> keras.Model:
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = keras.Sequential([keras.layers.Dense(4, activation="softmax")])
            model.compile(
                "sgd", keras.losses.SparseCategoricalCrossentropy() if name == "object" else "sparse_categorical_crossentropy"
            )
        return model

    model, one_device = create(two), create(replicant.get_strategy())
    assert np.isnan(model.fit(X, with_label(4), batch_size=8, verbose=0).history["loss"][0])
    assert np.isfinite(one_device.fit(X, with_label(4), batch_size=8, verbose=0).history["loss"][0])  # without a strategy: as Keras
    for mine, theirs in zip(model.get_weights(), one_device.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)  # the example is learned nothing from
    assert np.isnan(model.evaluate(X, with_label(-1), batch_size=8, verbose=0))
    assert np.isfinite(model.evaluate(X, GOOD, batch_size=8, verbose=0))


def test_masked_steps_may_have_any_label(two) -> None:
    with two.scope():
        model = keras.Sequential([keras.layers.Embedding(5, 3, mask_zero=True), keras.layers.Dense(4)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    tokens = np.array([[1, 2, 0], [3, 0, 0]])
    assert np.isfinite(model.evaluate(tokens, np.where(tokens == 0, -1, tokens - 1), verbose=0))
    assert np.isnan(model.evaluate(tokens, tokens - 2, verbose=0))


def test_other_losses_are_left_alone(two) -> None:
    with two.scope():
        assert np.isfinite(np.asarray(keras.losses.MeanSquaredError()(np.array([9.0]), np.array([1.0]))))
        soft = keras.losses.CategoricalCrossentropy(from_logits=True)(jax.nn.one_hot(np.array([7]), 4), np.ones((1, 4)))
    assert float(soft) == 0.0
