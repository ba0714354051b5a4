"""What people write by mistake or by habit, and what the error says to write."""

from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant.errors import ArgumentError, ArgumentTypeError, MissingNameError, ReplicantError

X, Y = np.arange(12, dtype=np.float32).reshape(4, 3), np.arange(4, dtype=np.float32).reshape(4, 1)


@pytest.fixture(scope="module")
def two() -> replicant.MirroredStrategy:
    return replicant.MirroredStrategy(["cpu:0", "cpu:1"])


def message(error: type[Exception], call: Any) -> str:
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


def test_a_batch_that_is_passed_as_one_argument_or_as_several(two) -> None:
    batch = next(iter(two.experimental_distribute_dataset(replicant.data.Dataset.from_tensor_slices((X, Y)).batch(4))))

    def of_two(x: Any, y: Any) -> Any:
        return x.sum() + y.sum()

    def of_one(pair: Any) -> Any:
        return pair[0].sum() + pair[1].sum()

    name = "run: 'test_a_batch_that_is_passed_as_one_argument_or_as_several.<locals>."
    assert message(ArgumentTypeError, lambda: two.run(of_two, args=(batch,))) == (
        f"{name}of_two' takes (x: Any, y: Any) -> Any, but args has one element, a tuple of 2; to pass each of them by itself, "
        "write args=batch instead of args=(batch,)."
    )
    assert message(ArgumentTypeError, lambda: two.run(of_one, args=batch)) == (
        f"{name}of_one' takes (pair: Any) -> Any, but args has 2 elements; to pass them as one tuple, write args=(batch,) instead "
        "of args=batch."
    )
    assert "missing 1 required positional argument" in message(TypeError, lambda: two.run(of_two, args=(X,)))  # Python says it all
    assert "own" in message(TypeError, lambda: two.run(raises_a_type_error, args=(batch,)))
    assert [float(v) for v in two.run(of_two, args=batch).values] == [float(v) for v in two.run(of_one, args=(batch,)).values]


def raises_a_type_error(pair: Any) -> None:
    raise TypeError("own")


def test_sizes_and_learning_rates_that_are_texts() -> None:
    size = lambda: replicant.compute_average_loss(jnp.ones(4), global_batch_size="8")  # noqa: E731
    assert message(ArgumentTypeError, size) == "global_batch_size must be an int; got '8'."
    with pytest.raises(ArgumentError, match=r"^global_batch_size must be a scalar; got an array of shape \(1,\)\.$"):
        replicant.compute_average_loss(jnp.ones(4), global_batch_size=[8])
    assert message(ArgumentTypeError, lambda: keras.optimizers.SGD(learning_rate="0.1")) == (
        "SGD: learning_rate must be a number, a schedule or a function; got the text '0.1'. Write float(learning_rate)."
    )


def test_the_learning_rate_has_one_name() -> None:
    optimizer = keras.optimizers.SGD(0.5)
    assert message(MissingNameError, lambda: optimizer.lr) == "SGD has no `lr` in Keras 3. Write optimizer.learning_rate."
    with pytest.raises(MissingNameError, match=r"^SGD has no `lr` in Keras 3\. Write optimizer\.learning_rate = 0\.1\.$"):
        optimizer.lr = 0.1
    assert float(optimizer.learning_rate) == 0.5
    assert not hasattr(optimizer, "lr")
    assert "'SGD' object has no attribute 'rate'" in message(AttributeError, lambda: optimizer.rate)
    assert Own(0.5).lr == 0.25  # a class of the user's may have one


class Own(keras.optimizers.SGD):
    def __init__(self, learning_rate: float):
        super().__init__(learning_rate)
        self.lr = learning_rate / 2


def test_a_layer_that_is_frozen_after_a_fit_needs_another_optimizer(two) -> None:
    with two.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="base"), keras.layers.Dense(1)], name="net")
        model.compile(keras.optimizers.SGD(1e-3), "mse")
    model.fit(X, Y, verbose=0)
    model.layers[0].trainable = False
    assert message(ArgumentError, lambda: model.fit(X, Y, verbose=0)) == (
        "SGD was built for 4 trainable variables, and there are 2 now (trainable=False: 'net/base/kernel', 'net/base/bias'). After "
        "you change `trainable` of a layer, call model.compile(...) with a new optimizer; in a loop of your own, make a new "
        "optimizer."
    )
    before = [np.array(value) for value in model.get_weights()]
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    model.fit(X, Y, verbose=0)
    assert [np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True)] == [True, True, False, False]


@pytest.mark.long
def test_a_layer_that_is_made_in_run_is_named(two) -> None:
    def step(x: Any) -> Any:
        return keras.layers.Dense(2, name="made_here")(x)

    text = message(ReplicantError, lambda: two.run(step, args=(X,)))
    assert text.endswith(
        "made variables in each of its 16 traces, such as ['made_here/kernel', 'made_here/bias'] in the last one. Create "
        "variables, layers and optimizers once, outside the compiled function, such as in `with strategy.scope():`, and only call "
        "them inside."
    )


def test_trainable_that_is_set_in_run_holds_from_there_on(two) -> None:
    with two.scope():
        layer, optimizer = keras.layers.Dense(1), keras.optimizers.SGD(0.1)
        layer.build((None, 3))

    def step(x: Any) -> None:
        layer.kernel.trainable = False
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss(layer(x)[:, 0] + layer.bias.value, global_batch_size=4)
        optimizer.apply_gradients(zip(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables, strict=True))

    (batch,) = two.experimental_distribute_dataset([X])
    kernel = np.array(layer.kernel.numpy())
    two.run(step, args=(batch,))
    two.run(step, args=(batch,))
    assert (layer.kernel.numpy() == kernel).all()
    np.testing.assert_allclose(layer.bias.numpy(), [-0.4], rtol=1e-6)  # twice 0.1 times a slope of 2
    assert layer.kernel.trainable is False
