"""LocalSGDStrategy of one worker: what it refuses, and what a round is."""

import keras
import numpy as np
import pytest

import replicant
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.errors import ArgumentError, ArgumentTypeError
from replicant.strategies._outer_step import OuterStep
from replicant.strategies._rounds import rows_of


def make(local_steps=2, **options):
    return replicant.LocalSGDStrategy(local_steps, cluster_resolver=SimpleClusterResolver(ClusterSpec({})), **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"local_steps": 0}, ArgumentError, "local_steps must be at least 1; got 0"),
        ({"local_steps": 2.0}, ArgumentTypeError, "local_steps must be an int; got 2.0"),
        ({"local_steps": True}, ArgumentTypeError, "local_steps must be an int; got True"),
        ({"outer_learning_rate": 0.0}, ArgumentError, "outer_learning_rate must be positive; got 0.0"),
        ({"outer_learning_rate": float("nan")}, ArgumentError, "outer_learning_rate must be positive; got nan"),
        ({"outer_momentum": 1.0}, ArgumentError, "outer_momentum must be from 0 to less than 1; got 1.0"),
        ({"outer_momentum": "0.9"}, ArgumentTypeError, "outer_momentum must be a number; got '0.9'"),
    ],
)
def test_wrong_arguments(options, error, message):
    with pytest.raises(error, match=f"LocalSGDStrategy: {message}"):
        make(**options)


def test_a_wrong_resolver():
    with pytest.raises(ArgumentTypeError, match=r"must be a .*ClusterResolver"):
        replicant.LocalSGDStrategy(2, cluster_resolver="here")  # pyright: ignore[reportArgumentType]


def test_it_says_what_it_is():
    assert repr(make(5)).startswith("LocalSGDStrategy(worker 0 of 1, 5 local steps, [")


def test_rounds_of_no_variables():
    strategy = make()
    with strategy.scope():
        count = replicant.Variable(0, trainable=False)
    with pytest.raises(ArgumentError, match="none of the 1 variables is trainable and a float"):
        strategy.rounds([count])
    with pytest.raises(ArgumentTypeError, match="variables must be variables; got 3 of type int"):
        strategy.rounds([3])


def test_a_batch_without_rows():
    with pytest.raises(ArgumentError, match="no array whose first axis holds the examples"):
        rows_of((3, 4.0))
    assert rows_of((3, np.zeros((5, 2)))) == 5


def test_several_steps_per_execution_are_refused():
    with make().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=2)
    with pytest.raises(ArgumentError, match="compiled with steps_per_execution=2"):
        model.fit(np.ones((8, 4)), np.ones(8), verbose=0)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("outer", "weights"),
    [
        (OuterStep(), [1.0, 2.0, 3.0]),
        (OuterStep(0.5), [0.5, 1.0, 1.5]),
        (OuterStep(1.0, 0.5, nesterov=False), [1.0, 2.5, 4.25]),  # speeds 1, 1.5, 1.75
        (OuterStep(1.0, 0.5), [1.5, 3.25, 5.125]),  # 1 + 0.5 * speed
    ],
)
def test_outer_steps(outer, weights):
    weight, speed = np.zeros(1, np.float32), [np.zeros(1, np.float32)] if outer.momentum else []
    for expected in weights:
        (weight,), speed = outer.step([weight], [np.ones(1, np.float32)], speed)
        np.testing.assert_allclose(weight, [expected])


def test_data_without_a_batch_end_no_round():
    strategy = make()
    with strategy.scope():
        weight = replicant.Variable(2.0)
    rounds = strategy.rounds([weight])
    assert list(rounds.over([])) == []
    assert (float(weight.numpy()), rounds.num_steps) == (2.0, 0)


def test_fit_of_one_worker_is_one_device():
    x, y = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32), np.ones(12, np.float32)

    def trained(strategy):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.1), "mse")
        model.fit(x, y, batch_size=5, epochs=2, verbose=0)  # pyright: ignore[reportArgumentType]
        return model.get_weights()

    for a, b in zip(trained(make(2)), trained(replicant.OneDeviceStrategy("cpu:0")), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_fit_ends_its_round_when_a_callback_stops_it():
    with make(100).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = True

    model.fit(np.ones((8, 4)), np.ones(8), batch_size=2, verbose=0, callbacks=[Stop()])  # pyright: ignore[reportArgumentType]
    assert model.__dict__["_replicant_rounds"][1].num_rounds == 1
    assert model.train_function is not None
