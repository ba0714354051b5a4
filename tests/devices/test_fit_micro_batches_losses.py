"""Losses in micro-batches whose factors look like numbers of rows, or that are not made of one value for each row."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import replicant
from replicant.errors import ArgumentError

ops = keras.ops


class Adds(keras.layers.Layer):
    """Adds losses of its input."""

    def __init__(self, *fns: Callable[..., Any]):
        super().__init__()
        self.fns = fns

    def call(self, x: Any) -> Any:
        for fn in self.fns:
            self.add_loss(fn(x))
        return x


def fitted(steps: int, rows: int, loss: Any = "mse", added: Any = (), strategy: Any = None) -> list[Any]:
    """The losses of two epochs and the weights after them, of batches of 8 rows."""
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(rows, 4)).astype("f")
    y = np.random.default_rng(1).normal(size=(rows, 4)).astype("f")
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), Adds(*added), keras.layers.Dense(4)])
        model.compile(keras.optimizers.SGD(0.05), loss=loss)
    replicant.keras.use_micro_batches(model, steps)
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False).history
    return [history["loss"], *model.get_weights()]


def squares(x: Any) -> Any:
    return ops.square(x)


ADDED = {
    "half a sum, 2 rows": (lambda x: 0.5 * ops.sum(squares(x)), 8, 4),
    "an eighth of a sum, 2 rows of 4": (lambda x: 0.125 * ops.sum(squares(x)), 8, 4),
    "one sum, 1 row": (lambda x: 1.0 * ops.sum(squares(x)), 8, 8),
    "a sum of means over features, 4 rows of 4": (lambda x: ops.sum(ops.mean(squares(x), axis=1)), 8, 2),
    "a sum by twice the rows": (lambda x: ops.sum(squares(x)) / (2 * ops.shape(x)[0]), 8, 4),
    "a share of a sum by the rows": (lambda x: (0.3 / ops.shape(x)[0]) * ops.sum(squares(x)), 8, 4),
    "a mean, 7 rows": (lambda x: ops.mean(0.5 * squares(x)), 7, 3),
}


@pytest.mark.cases("scaled-None")
@pytest.mark.parametrize(
    "strategy", [None, replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=False)], ids=["None", "two"]
)
@pytest.mark.parametrize("scaled", [True, False], ids=["scaled", "plain"])
def test_a_penalty_that_a_layer_adds_counts_once(strategy: Any, scaled: bool) -> None:
    scale = replicant.scale_regularization_loss if scaled else lambda penalty: penalty

    class Penalty(keras.Model):  # is built by `fit`, outside of the scope
        def build(self, input_shape: Any) -> None:
            self.w = self.add_weight(shape=(4,), initializer="ones", name="w")

        def call(self, x: Any) -> Any:
            self.add_loss(scale(ops.sum(self.w**2)))
            return x @ self.w[:, None]

    def fitted(steps: int) -> list[Any]:
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            model: Any = Penalty()
            model.compile(keras.optimizers.SGD(0.05), loss="mse")
        replicant.keras.use_micro_batches(model, steps)
        x = np.arange(28, dtype="f").reshape(7, 4) / 28
        return [*model.fit(x, x[:, :1], batch_size=7, epochs=2, verbose=0).history["loss"], *model.get_weights()]

    for found, wanted in zip(fitted(3), fitted(1), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-6)


@pytest.mark.parametrize("name", ADDED)
def test_losses_of_layers_are_told_apart_by_how_they_grow(name: str) -> None:
    fn, rows, steps = ADDED[name]
    for whole, parts in zip(fitted(1, rows, added=[fn]), fitted(steps, rows, added=[fn]), strict=True):
        np.testing.assert_allclose(parts, whole, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    "loss",
    [
        lambda y, p: ops.sum(squares(y - p), axis=0),
        lambda y, p: ops.mean(squares(y - p), axis=0),
        lambda y, p: ops.sum(squares(y - p), keepdims=True),
    ],
    ids=["sum over rows", "mean over rows", "sum of all"],
)
def test_losses_without_a_value_for_each_row_are_refused(loss: Any) -> None:
    with pytest.raises(ArgumentError, match=r"does not return its values for each row, .* Return one loss per example"):
        fitted(4, 8, loss)


def refused_by_fit(layer: Any, loss: Any, y: Any, message: str) -> None:
    model = keras.Sequential([keras.Input((4,)), layer])
    model.compile("sgd", loss)
    replicant.keras.use_micro_batches(model, 2)
    with pytest.raises(ArgumentError, match=message):
        model.fit(np.ones((8, 4)), y, batch_size=8, verbose=0)


def test_a_loss_that_compares_rows_is_refused() -> None:
    message = r"keras\.losses\.Circle compares the rows of a batch with each other"
    refused_by_fit(keras.layers.UnitNormalization(), keras.losses.Circle(), np.arange(8) % 2, message)


def test_float8_is_refused() -> None:
    layer = keras.layers.Dense(4)
    layer.build((None, 4))
    layer.quantize("float8")
    refused_by_fit(layer, "mse", np.ones((8, 4)), r"quantized to float8\. What its scales get as gradients are new values")


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2])
def test_no_loss_of_a_layer_is_dropped_because_an_id_comes_again(steps: int) -> None:
    """Keras knows the losses of layers by their ids. Those of an earlier trace come again by chance, so many models are traced."""
    found = set()
    for i in range(60):
        losses, *_ = fitted(steps, 8, added=[lambda x: ops.mean(x**2), lambda x: ops.mean(ops.abs(x))], strategy=None)
        found.add(round(losses[0], 4))
        junk = [np.ones(i) for _ in range(i)]
        del junk
    assert len(found) == 1
