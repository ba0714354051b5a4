"""The same data and seed give the numbers of one device, on any number of replicas, partial and empty shares included."""

import functools

import keras
import numpy as np
import pytest
from keras import optimizers

pytestmark = pytest.mark.again
OPTIMIZERS = {
    "sgd": lambda: optimizers.SGD(0.1),
    "momentum": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optimizers.Adam(0.01),
}
OTHERS = {
    "adadelta": lambda: optimizers.Adadelta(0.1),
    "adafactor": lambda: optimizers.Adafactor(0.01),
    "adagrad": lambda: optimizers.Adagrad(0.1),
    "adamax": lambda: optimizers.Adamax(0.01),
    "adamw": lambda: optimizers.AdamW(0.01, weight_decay=0.1),
    "ftrl": lambda: optimizers.Ftrl(0.1),
    "lamb": lambda: optimizers.Lamb(0.01),
    "lion": lambda: optimizers.Lion(0.01),
    "muon": lambda: optimizers.Muon(0.01),
    "nadam": lambda: optimizers.Nadam(0.01),
    "rmsprop": lambda: optimizers.RMSprop(0.01, centered=True),
    "clipnorm": lambda: optimizers.SGD(0.1, clipnorm=0.01),
    "global_clipnorm": lambda: optimizers.SGD(0.1, global_clipnorm=0.1),
    "clipvalue": lambda: optimizers.SGD(0.1, clipvalue=0.05),
    "accumulation": lambda: optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "ema": lambda: optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=2),
    "loss scaling": lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1)),
    "schedule": lambda: optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
}


@pytest.fixture(scope="module")
def one_device(train):
    """The run without any strategy, once per optimizer and setting."""
    return functools.cache(lambda name, **setting: train(0, (OPTIMIZERS | OTHERS)[name], **setting))


def assert_equal(run, expected) -> None:
    np.testing.assert_allclose(run.losses, expected.losses, rtol=0, atol=1e-5)
    for a, b in zip(run.weights, expected.weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    assert run.accuracy == expected.accuracy


# 21 examples in batches of 8: 8, 8, 5. On 8 replicas the last batch is 1,1,1,1,1,0,0,0; on 3 each batch is uneven.
@pytest.mark.cases("3-adam", "8-sgd")
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("num_replicas", [1, 2, 3, 4, 5, 8])
@pytest.mark.long_cases("3-adam")
def test_optimizers(train, one_device, name: str, num_replicas: int) -> None:
    assert_equal(train(num_replicas, OPTIMIZERS[name]), one_device(name))


@pytest.mark.cases("2-sgd", "3-adam")
@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("num_replicas", [2, 3])
@pytest.mark.long_cases("3-adam")
def test_fused_replicas(train, one_device, monkeypatch: pytest.MonkeyPatch, name: str, num_replicas: int) -> None:
    monkeypatch.setenv("REPLICANT_FUSE_REPLICAS", "1")
    assert_equal(train(num_replicas, OPTIMIZERS[name]), one_device(name))


@pytest.mark.cases("clipnorm", "accumulation", "loss scaling")
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.long_cases("accumulation", "loss scaling")
def test_every_keras_optimizer(train, one_device, name: str) -> None:
    assert_equal(train(2, OTHERS[name]), one_device(name))


@pytest.mark.cases("2-1-8", "4-3-2")
@pytest.mark.parametrize(("num_examples", "global_batch"), [(1, 8), (3, 2), (7, 7), (10, 4), (9, 1)])
@pytest.mark.parametrize("num_replicas", [2, 4])
@pytest.mark.long_cases("4-3-2")
def test_batches_smaller_than_the_replicas(train, one_device, num_replicas: int, num_examples: int, global_batch: int) -> None:
    setting = {"num_examples": num_examples, "global_batch": global_batch, "epochs": 1}
    assert_equal(train(num_replicas, OPTIMIZERS["momentum"], **setting), one_device("momentum", **setting))


@pytest.mark.long
def test_each_remainder_is_compiled_once(train) -> None:
    assert train(4, OPTIMIZERS["sgd"], epochs=3).num_compiled == 2  # 8 rows, and 5


def regularized() -> keras.Model:
    return keras.Sequential([keras.layers.Dense(5, kernel_regularizer=keras.regularizers.L2(0.1)), keras.layers.Dense(3)])


def recurrent() -> keras.Model:
    return keras.Sequential([keras.layers.Reshape((3, 2)), keras.layers.LSTM(4), keras.layers.Dense(3)])


@pytest.mark.cases("apart-regularized", "fused-regularized")
@pytest.mark.both_ways
@pytest.mark.parametrize("make_model", [regularized, recurrent])
@pytest.mark.long_cases("apart-regularized")
def test_models(train, make_model) -> None:
    expected = train(0, OPTIMIZERS["adam"], make_model=make_model)
    assert_equal(train(3, OPTIMIZERS["adam"], make_model=make_model), expected)


@pytest.mark.long
def test_mixed_precision(train) -> None:
    """bfloat16 rounds each replica's share by itself, so equality is to its 8 bits."""

    def make_model() -> keras.Model:
        return keras.Sequential([keras.layers.Dense(5, dtype="mixed_bfloat16"), keras.layers.Dense(3, dtype="mixed_bfloat16")])

    expected = train(0, OPTIMIZERS["sgd"], make_model=make_model)
    run = train(2, OPTIMIZERS["sgd"], make_model=make_model)
    assert [v.dtype for v in run.model.trainable_variables] == ["float32"] * 4
    np.testing.assert_allclose(run.losses, expected.losses, rtol=2**-7)


@pytest.mark.long
def test_layer_freezing_is_honoured(train) -> None:
    def make_model() -> keras.Model:
        model = keras.Sequential([keras.layers.Dense(5), keras.layers.Dense(3)])
        model.layers[0].trainable = False
        return model

    run, expected = (train(n, OPTIMIZERS["adam"], make_model=make_model) for n in (2, 0))
    assert_equal(run, expected)
