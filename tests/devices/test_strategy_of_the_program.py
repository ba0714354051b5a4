"""The strategy of the whole program: active outside all scopes, in every thread, and made when it is first needed."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import pytest

import replicant
from replicant.errors import MixedStrategyError
from replicant.replicas import _context
from replicant.strategies import _of_program

fit: Any = keras.Model.fit  # type checkers expect another type of `verbose`
DEVICES = ["cpu:0", "cpu:1"]
made: list[replicant.Strategy] = []


@pytest.fixture(autouse=True)
def program() -> Iterator[None]:
    """Begin a program with a strategy, which notes when it is made."""

    def make() -> replicant.Strategy:
        made.append(replicant.MirroredStrategy(DEVICES))
        return made[-1]

    made.clear()
    _context.set_program_strategy(make)
    yield
    _context.set_program_strategy(None)


def test_it_is_made_once_when_it_is_needed() -> None:
    assert _context.has_program_strategy()
    assert not _of_program.is_made()
    together = threading.Barrier(4)

    def ask(_: int) -> replicant.Strategy:
        together.wait(10)
        return replicant.get_strategy()

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(ask, range(4))) == set(made)
    assert len(made) == 1
    assert _of_program.is_made()


def test_it_is_as_inside_its_scope() -> None:
    assert replicant.get_replica_context() is None
    assert replicant.in_cross_replica_context()
    assert replicant.has_strategy()
    (strategy,) = made
    variable = replicant.Variable(2.0)
    assert strategy.run(variable.read_value).num_replicas == 2
    with strategy.scope():
        assert replicant.get_strategy() is strategy
    dataset = strategy.experimental_distribute_dataset(replicant.data.Dataset.range(4).batch(4))
    assert [len(strategy.experimental_local_results(batch)) for batch in dataset] == [2]


def test_models_are_distributed() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = np.arange(14, dtype=np.float32).reshape(7, 2) / 10
    weights = model.get_weights()
    fit(model, rows, rows[:, :1], batch_size=4, shuffle=False, verbose=0)
    assert model.__dict__["_replicant_strategy"] is made[0]
    _context.set_program_strategy(None)
    alone = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    alone.set_weights(weights)
    alone.compile("sgd", "mse")
    fit(alone, rows, rows[:, :1], batch_size=4, shuffle=False, verbose=0)
    for got, expected in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_another_strategy_is_refused() -> None:
    other = replicant.OneDeviceStrategy("cpu:0")
    message = (
        r"scope\(\) of OneDeviceStrategy\(\['cpu:0'\]\) was called, but `replicant run --strategy` has made MirroredStrategy\("
        r".*Leave --strategy out, or let the program use replicant\.get_strategy\(\)\."
    )
    with pytest.raises(MixedStrategyError, match=message), other.scope():
        pass
    with pytest.raises(MixedStrategyError, match=r"run\(\) of OneDeviceStrategy"):
        other.run(lambda: 1)


def test_what_cannot_be_made_is_told_each_time() -> None:
    _context.set_program_strategy(lambda: replicant.MirroredStrategy(["cpu:99"]))
    for _ in range(2):
        with pytest.raises(replicant.errors.DeviceError, match="no device 'cpu:99'"):
            replicant.get_strategy()
    assert not _of_program.is_made()
