"""examples/local_sgd.py: its rounds are those of NumPy, and begin with the weights that there are."""

import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "examples")]  # test folders are no packages

import _group  # noqa: E402
import keras  # noqa: E402
from _local_sgd_numpy import BATCHES, X, Y, weights_after  # noqa: E402

from local_sgd import LocalSGD, value_of  # noqa: E402


@pytest.mark.parametrize("outer", [(1.0, 0.0), (0.7, 0.9)])
def test_one_worker(outer):
    training = LocalSGD(3, *outer)
    with training.local.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    batches = [(X[rows], Y[rows]) for rows in BATCHES[0]]
    expected, num_rounds = weights_after(BATCHES[:1], 3, *outer)
    assert training.train(model, batches) == num_rounds == 3
    np.testing.assert_allclose(value_of(model.weights[0]), expected, rtol=1e-5, atol=1e-5)
    if not outer[1]:  # momentum would go on
        model.set_weights([np.zeros((4, 1))])
        model.optimizer.learning_rate = 0.0
        training.train(model, batches)
        np.testing.assert_array_equal(value_of(model.weights[0]), np.zeros((4, 1)))


@pytest.mark.long
def test_two_workers_whose_data_differ(tmp_path):
    first, second = _group.Group(HERE / "_worker_local_sgd.py", 2, tmp_path).ended_well()
    assert first == second
    expected, num_rounds = weights_after(BATCHES, 3, 0.7, 0.9)
    assert first["rounds"] == num_rounds
    np.testing.assert_allclose(first["weight"], expected, rtol=1e-5, atol=1e-5)
    assert first["assigned"] == [[0.0]] * 4  # no worker has trained what was assigned
