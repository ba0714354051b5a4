"""GradientTape outside of programs, where every operation runs at once: the gradients are those of compiled code."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant import GradientTape
from replicant.data import Dataset
from replicant.errors import GradientError

X = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32))


@replicant.custom_gradient
def ten_times(x):
    return x, lambda upstream: 10.0 * upstream


ONE_ARRAY = (
    jnp.sin,
    jnp.tanh,
    jax.nn.relu,
    jax.nn.gelu,
    jax.nn.softmax,
    keras.ops.sigmoid,
    lambda x: x * x,
    lambda x: jnp.sort(x, 1),
    lambda x: jnp.cumsum(x, 0) - x[::-1],
    lambda x: x[:, jnp.argmax(x, 0)],
    lambda x: x.reshape(4, 3).T * 0.5,
    lambda x: x.astype("int32") * x,
    lambda x: x.at[1].add(x[0]),
    lambda x: jax.lax.fori_loop(0, 2, lambda _, c: c * 0.5 + x, x),
    jax.checkpoint(jnp.sin),
    ten_times,
    lambda x: keras.ops.stop_gradient(x) * x,
    lambda x: jnp.stack(jnp.split(x, 3))[:, 0],
)
TWO_ARRAYS = (
    jnp.add,
    jnp.multiply,
    jnp.maximum,
    lambda x, y: x @ y.T @ x,
    lambda x, y: jnp.where(x > y, x, 2 * y),
    lambda x, y: jax.lax.cond(jnp.sum(x) > 0, jnp.subtract, jnp.add, x, y),
    lambda x, y: jax.lax.scan(lambda c, row: (c + row, c * row), x[0], y)[1],
    lambda x, y: jnp.einsum("ij,kj,kl->il", x, y, x),
    lambda x, y: x / (1 + y * y),
    jax.vmap(lambda a, b: a * jnp.max(b)),
    lambda x, y: keras.ops.concatenate([x, y])[1:4],
)


def random_function(seed):
    """A function of an array and a variable, from some random operations."""

    def fn(x, v):
        rng = np.random.default_rng(seed)
        known = [x, v * 1.0, x * v]
        for _ in range(6):
            if rng.random() < 0.5:
                known.append(ONE_ARRAY[rng.integers(len(ONE_ARRAY))](known[rng.integers(len(known))]))
            else:
                a, b = (known[i] for i in rng.integers(len(known), size=2))
                known.append(TWO_ARRAYS[rng.integers(len(TWO_ARRAYS))](a, b))
        return jnp.mean(known[-1]) + jnp.mean(known[-2])

    return fn


@pytest.mark.cases("some")
@pytest.mark.parametrize("seeds", [range(4), range(4, 100)], ids=["some", "many"])
@pytest.mark.long_cases("some")
def test_random_functions_have_the_gradients_of_compiled_code(seeds) -> None:
    for seed in seeds:
        v, fn = replicant.Variable(np.random.default_rng(seed).normal(size=(3, 4)).astype(np.float32)), random_function(seed)

        def gradients(x, v=v, fn=fn):
            with GradientTape() as tape:
                y = fn(x, v)
            return tape.gradient(y, [x, v], unconnected_gradients="zero")

        for eager, traced in zip(gradients(X), replicant.function(gradients)(X), strict=True):
            np.testing.assert_allclose(eager, traced, rtol=2e-5, atol=2e-5)


def train(step, *, num_steps=3):
    """Train a model that begins the same each time."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="relu"), keras.layers.BatchNormalization()])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    losses = [float(step(model, optimizer)) for _ in range(num_steps)]
    return losses, model.get_weights(), [np.asarray(v.value) for v in optimizer.variables]


def taped(model, optimizer):
    with GradientTape() as tape:
        loss = keras.ops.mean(keras.ops.square(model(X, training=True) - X[:, :3]))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
    return loss


def assert_equal(actual, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), actual, expected)


@pytest.mark.long
def test_a_loop_with_a_keras_model() -> None:
    assert_equal(train(taped), train(replicant.function(taped)))


def test_in_a_function_of_an_iterator() -> None:
    batches = iter(Dataset.from_tensors(np.asarray(X)).repeat())

    @replicant.function
    def step(iterator, model, optimizer):
        next(iterator)
        return taped(model, optimizer)

    assert_equal(train(lambda *args: step(batches, *args)), train(replicant.function(taped)))


def test_a_compiled_function_in_the_block_is_recorded_too() -> None:
    v = replicant.Variable(3.0)
    square = replicant.function(lambda x: x * x * v)
    assert float(square(jnp.float32(2))) == 12
    with GradientTape() as tape:
        y = square(v * 1.0)
    assert float(tape.gradient(y, v)) == 27


def test_no_gradient_passes_through_an_assignment() -> None:
    v, w = replicant.Variable(2.0), keras.Variable(5.0)
    with GradientTape(persistent=True) as tape:
        v.assign(w * 3.0)
        y = v * v
    assert float(tape.gradient(y, v)) == 30
    assert tape.gradient(y, w) is None


def test_a_pause() -> None:
    w = keras.Variable(jnp.asarray([1.0, 2.0]))
    with GradientTape() as tape:
        y = keras.ops.sum(w.value * w.value)
        with tape.stop_recording():
            z = keras.ops.sum(w.value * 100.0)
        total = y + z
    np.testing.assert_allclose(tape.gradient(total, w), [2, 4])


def test_mixed_precision() -> None:
    layer = keras.layers.Dense(2, dtype="mixed_bfloat16")
    layer.build((3, 4))
    with GradientTape() as tape:
        y = keras.ops.sum(layer(X))
    gradient = tape.gradient(y, layer.kernel)
    assert gradient.dtype == jnp.float32
    assert_equal(gradient, jnp.broadcast_to(jnp.sum(X.astype("bfloat16"), axis=0)[:, None], (4, 2)).astype("float32"))


def test_what_a_tape_notices_afterwards() -> None:
    x = jnp.float32(2)
    with GradientTape() as tape:
        y = x * x
        assert float(tape.gradient(y, x)) == 4  # ends the recording
        z = y * x
    with pytest.raises(GradientError, match="computes gradients only once"):
        tape.gradient(z, x)
    with GradientTape() as tape:
        y = x * x
    assert tape.gradient(x * y, y) is None  # computed after the block


def test_an_error_in_the_block_ends_it() -> None:
    with pytest.raises(ZeroDivisionError), GradientTape():
        raise ZeroDivisionError
    replicant.function(lambda x: x)(X)  # compiled again, as the tape is no longer there


def test_run_in_the_block() -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    with pytest.raises(GradientError, match=r"was called in the block of a GradientTape outside `strategy.run`"), GradientTape():
        strategy.run(lambda: jnp.ones(3))


def test_an_operation_without_a_derivative() -> None:
    def host(x):
        return jax.pure_callback(lambda a: np.asarray(a) * 2, jax.ShapeDtypeStruct((), jnp.float32), x)

    x = jnp.float32(3)
    with GradientTape(persistent=True) as tape:
        y = host(x)
        z = x * y
    assert float(z) == 18
    assert tape.gradient(z, y) == 3
    with pytest.raises(GradientError, match="A gradient passes through an operation that JAX cannot differentiate"):
        tape.gradient(z, x)
