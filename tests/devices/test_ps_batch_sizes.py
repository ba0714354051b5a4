"""Batches of different sizes, one after the other: each one's gradients are applied, and none twice."""

import contextlib

import keras
import numpy as np
import pytest

import replicant
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.coordinator import ClusterCoordinator

SIZES = (5, 2, 5, 3, 2, 5)


@pytest.fixture
def strategy():
    spec = ClusterSpec({"ps": ["127.0.0.1:0"] * 2, "worker": ["127.0.0.1:0"]})
    strategy = replicant.ParameterServerStrategy(SimpleClusterResolver(spec), transport="threads")
    yield strategy
    strategy.close()


@pytest.mark.long
def test_rows_of_an_embedding(strategy):
    rng = np.random.default_rng(0)
    batches = [(rng.integers(0, 11, (n, 2)).astype("i4"), rng.normal(size=(n, 1)).astype("f4")) for n in SIZES]

    def trained(strategy, schedule):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            ids = keras.Input((2,), dtype="int32")
            model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(keras.layers.Embedding(11, 3)(ids))))
            optimizer = keras.optimizers.Adagrad(0.3)
            optimizer.build(model.trainable_variables)

        @replicant.function
        def step(x, y):
            with replicant.GradientTape() as tape:
                loss = keras.ops.mean(keras.ops.square(model(x, training=True) - y))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            return loss

        losses = [float(schedule(step, batch)) for batch in batches]
        return losses, model.get_weights(), int(optimizer.iterations.value)

    coordinator = ClusterCoordinator(strategy)
    losses, weights, count = trained(strategy, lambda step, batch: coordinator.schedule(step, args=batch).fetch())
    expected_losses, expected, expected_count = trained(replicant.OneDeviceStrategy("cpu:0"), lambda step, batch: step(*batch))
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    for found, wanted in zip(weights, expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert count == expected_count == len(SIZES)


def test_rows_that_are_scattered(strategy):
    coordinator = ClusterCoordinator(strategy)
    with strategy.scope():
        table = replicant.Variable(np.zeros((4, 1), "f4"))
    add = replicant.function(table.scatter_add)
    for size, dtype in [(2, "i4"), (3, "i4"), (2, "i8"), (3, "u1"), (2, "i4")]:
        rows = np.arange(size).astype(dtype)
        coordinator.schedule(add, args=(rows, np.ones((size, 1), "f4"))).fetch()
    assert table.numpy().ravel().tolist() == [5.0, 5.0, 2.0, 0.0]


def test_a_variable_that_was_read_and_has_no_gradient(strategy):
    """Its program is traced twice. What only the first trace pushed was pushed at every step, as a second update of zeros."""

    def trained(strategy, schedule):
        with strategy.scope():
            used, unused = keras.Variable(np.ones(3, "f4")), keras.Variable(np.ones(2, "f4"))
            optimizer = keras.optimizers.Adam(0.1)
            optimizer.build([used, unused])

        @replicant.function
        def step(x):
            with replicant.GradientTape() as tape:
                loss = keras.ops.sum(used * x)
                keras.ops.sum(unused * x[0])
            optimizer.apply(tape.gradient(loss, [used, unused]), [used, unused])
            return loss

        with pytest.warns(UserWarning, match="Gradients do not exist") if schedule is None else contextlib.nullcontext():
            for x in (-1.0, 0.0, 1.0):
                (schedule or (lambda step, batch: step(*batch)))(step, (np.full(3, x, "f4"),))
        return np.asarray(used.value).tolist(), np.asarray(unused.value).tolist(), int(optimizer.iterations.value)

    coordinator = ClusterCoordinator(strategy)
    found = trained(strategy, lambda step, batch: coordinator.schedule(step, args=batch).fetch())
    used, unused, count = trained(replicant.OneDeviceStrategy("cpu:0"), None)
    assert found == (pytest.approx(used, abs=1e-6), unused, count)
    assert count == 3
