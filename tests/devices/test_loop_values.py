"""What a call of `fit` costs besides its steps: variables are found once, and read and assigned together, with the same bits."""

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant.keras.state import _loop_values, _variables
from replicant.keras.state._loop_run import LoopRun

STRATEGIES = {
    "one device": lambda: replicant.OneDeviceStrategy("cpu:0"),
    "two": lambda: replicant.MirroredStrategy(["cpu:0", "cpu:1"]),
    "in slices": lambda: replicant.FullyShardedStrategy(["cpu:0", "cpu:1"], min_size=1),
    "none": None,
}


def made(make=None, use_ema=True):
    """A model with frozen variables, statistics, a generator, slots, moving averages and a metric."""

    def build():
        keras.utils.set_random_seed(3)
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(8, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.2),
                keras.layers.Dense(4, trainable=False),
                keras.layers.Dense(2),
            ]
        )
        model.compile(keras.optimizers.Adam(1e-2, use_ema=use_ema), "mse", metrics=["mae"])
        return model

    if make is None:
        return build()
    with make().scope():
        return build()


def trained(model):
    x = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    y = x[:, :2]
    logs = []
    for _ in range(3):
        history = model.fit(x, y, batch_size=4, epochs=2, shuffle=False, validation_data=(x, y), verbose=0).history
        logs += [value for values in history.values() for value in values]
    logs += [*model.evaluate(x, y, verbose=0), *model.predict(x, verbose=0).ravel(), *model.train_on_batch(x, y)]
    return [float(each) for each in logs], [np.asarray(v) for v in (*model.variables, *model.optimizer.variables)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_bits_as_one_by_one(strategy, monkeypatch):
    logs, values = trained(made(STRATEGIES[strategy]))
    monkeypatch.setattr(_loop_values, "_is_quiet", lambda: False)
    expected_logs, expected = trained(made(STRATEGIES[strategy]))
    assert logs == expected_logs
    for value, other in zip(values, expected, strict=True):
        np.testing.assert_array_equal(value, other)


def test_a_fit_reads_and_assigns_only_its_metrics_one_by_one(monkeypatch):
    """Keras sets both numbers of each of two metrics to 0, and reads them at the end."""
    model = made(STRATEGIES["one device"], use_ema=False)
    x, y = np.ones((4, 6), np.float32), np.ones((4, 2), np.float32)
    model.fit(x, y, verbose=0)
    assert len(model.variables) + len(model.optimizer.variables) == 25
    assigned, read = [], []
    own, known_ref = _variables.own, _variables.known_ref
    monkeypatch.setattr(_variables, "own", lambda value: assigned.append(value) or own(value))
    monkeypatch.setattr(_variables, "known_ref", lambda variable: read.append(variable.path) or known_ref(variable))
    model.fit(x, y, verbose=0)
    assert assigned == [0, 0, 0, 0]
    metrics = {variable.path for variable in model.metrics_variables}
    assert len(metrics) == 4
    assert {path for path in read if path not in metrics} == set()


def test_more_values_than_were_read_belong_to_what_the_model_has_now():
    """As of metrics that the first step has made."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    values = [jnp.full(v.shape, 7, jnp.float32) for v in model.trainable_variables]
    with LoopRun(model, "fit") as loop:
        _loop_values.found(model, ["trainable_variables"])
        assert list(loop.variables["trainable_variables"]) == model.trainable_variables
        loop.variables["trainable_variables"].pop()
        model._jax_state, model._jax_state_synced = {"trainable_variables": values, "metrics_variables": []}, False
        model.jax_state_sync()
        assert model._jax_state_synced
        model._jax_state = None
    assert [np.unique(v).tolist() for v in model.trainable_variables] == [[7.0], [7.0]]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32([1, 2]), np.float32([1, 2])),  # no array of JAX
        (jnp.array([1, 2], jnp.float16), np.float32([1, 2])),
        (jnp.int32([1, 2]), np.float32([1, 2])),
    ],
)
def test_what_is_not_as_it_would_be_stored_is_assigned_one_by_one(value, expected):
    variable = keras.Variable(np.zeros(2, np.float32))
    _loop_values.empty([variable])
    _loop_values._assign([variable], [value])
    assert variable._value.dtype == jnp.float32
    np.testing.assert_array_equal(np.asarray(variable), expected)


def test_a_value_of_another_shape_is_an_error():
    variable = keras.Variable(np.zeros(2, np.float32))
    _loop_values.empty([variable])
    with pytest.raises(ValueError, match="must match"):
        _loop_values._assign([variable], [jnp.zeros(3)])


def test_a_tape_hears_of_what_a_loop_reads():
    variable = keras.Variable(np.float32(3))
    with replicant.GradientTape() as tape:
        (value,) = _loop_values.values_of([variable])
        y = value * value
    assert float(tape.gradient(y, variable)) == 6.0
