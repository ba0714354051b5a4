"""``replicant.remat`` and Keras's rematerialization: the same numbers, with less memory."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant.data import Dataset
from replicant.errors import ContextError

ROWS, FEATURES, CLASSES = 8, 6, 4
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
TWO = ["cpu:0", "cpu:1"]
STRATEGIES: dict[str, Callable[[], Any]] = {
    "mirrored": lambda: replicant.MirroredStrategy(TWO),
    "fully sharded": lambda: replicant.FullyShardedStrategy(TWO, min_size=8),
}


def data(rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(0).normal(size=(rows, FEATURES)).astype("f"), np.arange(rows) % CLASSES


def layers_of(kind: str) -> list[Any]:
    layers = keras.layers
    inner = {"dense": [], "dropout": [layers.Dropout(0.5)], "normalized": [layers.BatchNormalization()]}[kind]
    return [layers.Dense(16, activation="gelu"), *inner, layers.Dense(CLASSES)]


def train(strategy: Any, kind: str, how: str, *, remat: bool) -> list[np.ndarray]:
    keras.utils.set_random_seed(3)
    with strategy.scope(), keras.RematScope(mode="full" if remat and how != "function" else None):
        model, optimizer = keras.Sequential([keras.Input((FEATURES,)), *layers_of(kind)]), keras.optimizers.SGD(0.1)
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    if how == "fit":
        model.fit(*data(), batch_size=ROWS, epochs=2, shuffle=False, verbose="0")
        return model.get_weights()

    def computed(x: Any, training: bool) -> Any:
        return model(x, training=training)

    apply_model = replicant.remat(computed) if remat and how == "function" else computed

    def step(batch: Any) -> Any:
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss(LOSS(batch[1], apply_model(batch[0], True)), global_batch_size=ROWS)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        return loss

    for batch in strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(data()).batch(ROWS).repeat(2)):
        strategy.run(step, args=(batch,))
    return model.get_weights()


@pytest.mark.cases("function-dropout-fully sharded", "fit-normalized-mirrored", "loop-dropout-mirrored")
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("kind", ["dense", "dropout", "normalized"])
@pytest.mark.parametrize("how", ["fit", "loop", "function"])
@pytest.mark.long_cases("function-dropout-fully sharded")
def test_training_gives_the_same_numbers(how: str, kind: str, name: str) -> None:
    mine, wanted = train(STRATEGIES[name](), kind, how, remat=True), train(STRATEGIES[name](), kind, how, remat=False)
    for x, y in zip(mine, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)


class KeepsItsFunction(keras.Model):
    """A model whose rematerialized function is made once. With Keras alone, JAX keeps the weights of its first trace in it."""

    def __init__(self, wrap: Callable[[Any], Any]):
        super().__init__()
        self.layer = keras.layers.Dense(CLASSES)
        self.body = wrap(self.layer)

    def build(self, shape: Any) -> None:
        self.layer.build(shape)

    def call(self, x: Any) -> Any:
        return self.body(x)


@pytest.mark.parametrize("name", ["none", *STRATEGIES])
@pytest.mark.parametrize("wrap", [keras.remat, replicant.remat])
def test_a_function_that_is_made_once_follows_the_weights(wrap: Any, name: str) -> None:
    def losses(wrap: Any) -> list[float]:
        keras.utils.set_random_seed(0)
        with STRATEGIES[name]().scope() if name in STRATEGIES else contextlib.nullcontext():
            model = KeepsItsFunction(wrap)
            model.compile(keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            model.build((None, FEATURES))
        model.predict(data()[0], verbose="0")
        return model.fit(*data(), batch_size=ROWS, epochs=3, shuffle=False, verbose="0").history["loss"]

    wanted = losses(lambda layer: layer)
    assert wanted[2] < wanted[1] < wanted[0]
    np.testing.assert_allclose(losses(wrap), wanted, rtol=1e-6)


@pytest.mark.parametrize("name", STRATEGIES)
def test_gradients_of_captured_variables(name: str) -> None:
    strategy = STRATEGIES[name]()
    with strategy.scope():
        weight = replicant.Variable(np.linspace(-1, 1, 16, dtype="f").reshape(2, 8))

    def computed(x: Any, options: dict[str, Any]) -> Any:
        y = jnp.tanh(x @ weight.value()) ** options["power"] if options["squares"] else x
        return {"sum": jnp.sum(y), "power": options["power"]}

    def step(fn: Any, x: Any) -> Any:
        options = {"power": 2, "squares": True}  # no arrays
        with replicant.GradientTape() as tape:
            answer = fn(x, options)
        assert answer["power"] == 2
        value, gradient = replicant.value_and_grad(lambda: fn(x, options)["sum"], weight)()
        return tape.gradient(answer["sum"], weight), gradient, value, jax.grad(lambda x: fn(x, options)["sum"])(x)

    x = replicant.PerReplica.from_stacked(jnp.arange(12.0).reshape(2, 3, 2) / 10)
    mine = strategy.run(lambda x: step(replicant.remat(computed), x), args=(x,))
    wanted = strategy.run(lambda x: step(computed, x), args=(x,))
    for a, b in zip(mine, wanted, strict=True):
        for of_replica, expected in zip(a.values, b.values, strict=True):
            assert np.any(expected)
            np.testing.assert_allclose(of_replica, expected, rtol=1e-6)


@pytest.mark.cases("fully sharded")
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.long
def test_memory_falls_in_a_loop(name: str) -> None:
    strategy = STRATEGIES[name]()
    with strategy.scope():
        model = keras.Sequential([keras.Input((32,)), *[keras.layers.Dense(32, activation="tanh") for _ in range(8)]])
    optimizer = keras.optimizers.SGD(0.1)

    def temporary(fn: Any) -> int:
        def step(x: Any) -> None:
            with replicant.GradientTape() as tape:
                for _ in range(4):
                    x = fn(x)
                loss = jnp.sum(x)
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        return strategy.memory(step, jax.ShapeDtypeStruct((2048, 32), "float32")).temporary

    assert temporary(replicant.remat(model)) < 0.5 * temporary(model)


@pytest.mark.cases("fully sharded")
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.long
def test_memory_falls_in_fit(name: str) -> None:
    def temporary(mode: str | None) -> int:
        with (strategy := STRATEGIES[name]()).scope():
            given = x = keras.Input((32,))
            for _ in range(4):
                inner = [keras.layers.Dense(32, activation="tanh") for _ in range(8)]
                with keras.RematScope(mode=mode):
                    block = keras.Sequential(inner)
                x = block(x)
            model = keras.Model(given, x)
            model.compile("sgd", "mse")
        return strategy.memory(model, (jax.ShapeDtypeStruct((2048, 32), "float32"),) * 2).temporary

    assert temporary("full") < 0.5 * temporary(None)


def test_eagerly_it_is_the_function() -> None:
    weight = keras.Variable(np.ones(3, "f"))

    def computed(x: Any) -> Any:
        weight.assign_add(x)
        return jnp.sum(weight.value * x)

    x = jnp.ones(3)
    assert float(replicant.remat(computed)(x)) == 6.0
    np.testing.assert_array_equal(weight.numpy(), [2.0, 2.0, 2.0])
    with replicant.GradientTape() as tape:
        y = replicant.remat(lambda: jnp.sum(weight.value**2))()
    np.testing.assert_array_equal(tape.gradient(y, weight), [4.0, 4.0, 4.0])


def test_what_is_refused() -> None:
    strategy = STRATEGIES["mirrored"]()
    with strategy.scope():
        own = replicant.Variable(1.0)
        layer = keras.layers.ActivityRegularization(0.1)

    @replicant.remat
    def assigns(x: Any) -> Any:
        own.assign_add(1.0)
        return x

    x = jnp.ones((2, 3))
    strategy.run(assigns, args=(x,))
    assert float(own) == 2.0
    with pytest.raises(ContextError, match=r"A layer adds a loss .* inside a function that is computed again"):
        strategy.run(replicant.remat(layer), args=(x,))
