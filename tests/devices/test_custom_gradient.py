"""replicant.custom_gradient: TensorFlow's form of functions with a gradient of their own."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant import GradientTape, custom_gradient
from replicant.data import Dataset
from replicant.errors import ArgumentError, ArgumentTypeError, GradientError, RaggedStepError

X = jnp.asarray([1.5, -2.0])


@custom_gradient
def ten_times(x):
    """The identity, whose gradient is ten times too large."""
    return x, lambda upstream: 10.0 * upstream


def is_distributed(x):
    return isinstance(x, replicant.DistributedValues)


def everywhere(fn, *args):
    """The result of `fn`: eagerly, in a function, and in a replica of two; all the same."""
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    found = [fn(*args), replicant.function(fn)(*args), strategy.run(fn, args=args)]
    found[2] = jax.tree.map(lambda x: x.values[1] if is_distributed(x) else x, found[2], is_leaf=is_distributed)
    for other in found[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found[0], other)
    return jax.tree.map(lambda x: np.asarray(x).tolist(), found[0])


@pytest.mark.both_ways
def test_the_gradient_is_its_own() -> None:
    def fn(x):
        with GradientTape() as tape:
            y = jnp.sum(ten_times(x * 2.0))
        return y, tape.gradient(y, x)

    assert everywhere(fn, X) == (-1.0, [20.0, 20.0])
    assert ten_times.__name__ == "ten_times"
    np.testing.assert_allclose(jax.grad(lambda x: jnp.sum(ten_times(x)))(X), [10, 10])


def test_several_arguments_and_results() -> None:
    @custom_gradient()
    def fn(pair, n, scale=1.0):
        x, y = pair
        return {"sum": (x + y) * scale, "n": n + 1}, lambda of_n, of_sum: ((of_sum, None), 3.0 * of_sum[0] + 0 * of_n)

    def step(x):
        n = jnp.asarray(3)
        with GradientTape() as tape:
            out = fn((x, 2.0), n, scale=4.0)
        return out, tape.gradient(out["sum"], [x, n], unconnected_gradients="zero")

    assert everywhere(step, X) == ({"n": 4, "sum": [14.0, 0.0]}, [[1.0, 1.0], 0])


def test_the_gradient_uses_what_the_function_computed() -> None:
    """log(1 + e^x) of TensorFlow's documentation, whose plain gradient is NaN for large x; and the second derivative."""

    @custom_gradient
    def log1pexp(x):
        e = jnp.exp(x)
        return jnp.log(1 + e), lambda upstream: upstream * (1 - 1 / (1 + e))

    def fn(x):
        with GradientTape() as outer:
            with GradientTape() as inner:
                y = log1pexp(x)
            first = inner.gradient(y, x)
        return first, outer.gradient(first, x)

    assert everywhere(lambda x: fn(x)[0], jnp.float32(100.0)) == 1.0
    s = float(jax.nn.sigmoid(0.5))
    np.testing.assert_allclose(everywhere(fn, jnp.float32(0.5)), (s, s * (1 - s)), rtol=1e-5)


@pytest.mark.both_ways
@pytest.mark.parametrize("make", [replicant.Variable, keras.Variable])
def test_variables(make) -> None:
    v = make(np.float32(3.0))

    @custom_gradient
    def times(x):
        def grad(upstream, variables=None):
            return upstream * 100.0, [jnp.sum(upstream * x) * 7.0 + 0.0 * variables[0]]

        return x * v, grad

    def fn(x):
        with GradientTape() as tape:
            y = jnp.sum(times(x)) + v * 1.0
        return y, tape.gradient(y, [x, v])

    assert everywhere(fn, X) == (1.5, [[100.0, 100.0], -3.5 + 1.0])


def test_a_variable_as_argument() -> None:
    v = replicant.Variable(3.0)

    def fn(x):
        with GradientTape() as tape:
            y = ten_times(v) * x
        return tape.gradient(y, v)

    assert everywhere(fn, jnp.float32(2.0)) == 20.0


def test_recomputing_with_a_tape_in_the_gradient() -> None:
    v = replicant.Variable(3.0)

    @custom_gradient
    def recomputed(x):
        def grad(upstream, variables=None):
            with GradientTape() as tape:
                tape.watch(variables)
                y = jnp.sin(x) * variables[0]
            of_x, *of_variables = tape.gradient(y, [x, *variables], output_gradients=upstream)
            return of_x, of_variables

        return jnp.sin(x) * v, grad

    def fn(x):
        with GradientTape() as tape:
            y = jnp.sum(recomputed(x))
        return tape.gradient(y, [x, v])

    found = everywhere(fn, X)
    np.testing.assert_allclose(found[0], 3 * np.cos(X), rtol=1e-6)
    np.testing.assert_allclose(found[1], np.sum(np.sin(X)), rtol=1e-6)


def test_without_arrays_and_with_strings() -> None:
    @custom_gradient
    def named(x, how):
        return x * 2.0 if how == "double" else x, lambda upstream: upstream

    assert float(named(2.0, "double")) == 4.0


def test_an_operation_without_a_derivative() -> None:
    @custom_gradient
    def host(x):
        return jax.pure_callback(lambda a: np.asarray(a) * 2, jax.ShapeDtypeStruct((), jnp.float32), x), lambda up: up * 2.0

    def fn(x):
        with GradientTape() as tape:
            y = host(x)
        return tape.gradient(y, x)

    x = jnp.float32(3)
    assert float(fn(x)) == float(replicant.function(fn)(x)) == 2.0


def asks_another_tape(x):
    with GradientTape() as tape:
        y = x * x
    return y, lambda upstream: tape.gradient(y, x) * upstream


v = replicant.Variable([1.0, 2.0], name="v")


@pytest.mark.parametrize(
    ("f", "error", "message"),
    [
        (lambda x: x, ArgumentTypeError, r"must return a pair, \(result, grad\); `<lambda>` returned"),
        (lambda x: (x * v, lambda up: up), ArgumentTypeError, r"uses variables \('v'\), so `grad` must take them: def grad"),
        (lambda x: (x, lambda up: (up, up)), ArgumentError, r"one gradient for each argument \(1\); it returned 2"),
        (lambda x: (x * v, lambda up, variables: (up, [])), ArgumentError, r"one gradient for each variable \(1\); it returned 0"),
        (lambda x: (x, lambda up: up[0]), ArgumentError, r"has the shape \(\) for an argument or variable of shape \(2,\)"),
        (
            asks_another_tape,
            GradientError,
            "`asks_another_tape`, which has custom_gradient, asks a tape that recorded outside of it",
        ),
    ],
)
def test_misuse(f, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        replicant.function(custom_gradient(f))(X)


def test_exchanges_between_replicas() -> None:
    """With equal replicas an all-reduce may be inside; with others, it is an error of one line."""
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])

    @custom_gradient
    def total(x):
        return replicant.get_replica_context().all_reduce("SUM", jnp.sum(x)), lambda upstream: upstream * jnp.ones_like(x)

    def fn(x):
        with GradientTape() as tape:
            y = total(x)
        return y, tape.gradient(y, x)

    def run(num_rows):
        (batch,) = strategy.experimental_distribute_dataset(Dataset.from_tensors(np.arange(num_rows, dtype=np.float32)))
        return strategy.run(fn, args=(batch,))

    y, _ = run(4)
    assert float(strategy.experimental_local_results(y)[0]) == 6.0
    with pytest.raises(
        RaggedStepError, match=r"different numbers of rows in this step, and .* is in a function with custom_gradient"
    ):
        run(3)
