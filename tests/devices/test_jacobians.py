"""tape.jacobian and tape.batch_jacobian in replicas, and errors that name what to write."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicant
from replicant import GradientTape
from replicant.data import Dataset
from replicant.errors import ArgumentError, ArgumentTypeError, GradientError

X = np.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)


def both(x, v, **options):
    with GradientTape(persistent=True) as tape:
        y = jnp.tanh(x @ v.value()) * x
    return tape.jacobian(y, [x, v], **options), tape.batch_jacobian(y, x, **options)


def expected(x, v):
    def fn(x, v):
        return jnp.tanh(x @ v) * x

    of_rows = jax.vmap(jax.jacobian(lambda row, v: jnp.tanh(row @ v) * row), (0, None))(x, v)
    return list(jax.jacobian(fn, (0, 1))(x, v)), of_rows


def assert_close(actual, wanted):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), actual, wanted)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.both_ways
@pytest.mark.long
def test_in_replicas_of_any_size(at_once: bool) -> None:
    """Rows 2 and 1 on two replicas, then 1 and 0."""
    v = replicant.Variable(np.asarray([[1.0, 0.5], [-1.0, 2.0]], np.float32))
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    step = replicant.function(lambda batch: strategy.run(lambda x: both(x, v, experimental_use_pfor=at_once), (batch,)))
    for num_rows in (3, 1):
        for batch in strategy.experimental_distribute_dataset(Dataset.from_tensors(X[:num_rows])):
            results = step(batch)
            rows = [np.asarray(x) for x in strategy.experimental_local_results(batch)]
            for i, x in enumerate(rows):
                found = jax.tree.map(lambda leaf, i=i: leaf.values[i], results, is_leaf=lambda leaf: hasattr(leaf, "values"))
                assert_close(found, expected(jnp.asarray(x), v.value()))


def test_hessian_by_two_tapes() -> None:
    x = jnp.asarray([1.0, 2.0])

    def fn(x):
        with GradientTape() as outer:
            with GradientTape() as inner:
                y = jnp.prod(x) * jnp.sum(x)
            slope = inner.gradient(y, x)
        return outer.jacobian(slope, x)

    wanted = jax.hessian(lambda x: jnp.prod(x) * jnp.sum(x))(x)
    assert_close(fn(x), wanted)
    assert_close(replicant.function(fn)(x), wanted)
    assert_close(jax.jit(fn)(x), wanted)


def test_gradient_of_a_jacobian() -> None:
    x = jnp.asarray([1.0, 2.0])

    def fn(x):
        with GradientTape() as outer:
            with GradientTape() as inner:
                y = x**3
            total = jnp.sum(inner.jacobian(y, x))
        return outer.gradient(total, x)

    assert_close((fn(x), replicant.function(fn)(x)), (6 * x, 6 * x))


def ask(question, x=X):
    def fn(x):
        with GradientTape() as tape:
            y = x * 2.0
        return question(tape, x, y)

    return fn, jnp.asarray(x)


@pytest.mark.parametrize(
    ("question", "error", "message"),
    [
        (
            lambda tape, x, y: tape.jacobian([y, y], x),
            ArgumentTypeError,
            r"tape.jacobian takes one array or variable as its target",
        ),
        (
            lambda tape, x, y: tape.batch_jacobian(1.0, x),
            ArgumentTypeError,
            r"tape.batch_jacobian takes one array .*; got 1.0 of type",
        ),
        (lambda tape, x, y: tape.jacobian(y, 1.0), ArgumentTypeError, "must be a variable or a JAX array; got 1.0"),
        (lambda tape, x, y: tape.batch_jacobian(y, [x]), ArgumentTypeError, "must be a variable or a JAX array; got"),
        (
            lambda tape, x, y: tape.batch_jacobian(y[:2], x),
            ArgumentError,
            r"equally many rows; got the shapes \(2, 2\) and \(3, 2\)",
        ),
        (
            lambda tape, x, y: tape.batch_jacobian(y[:, 0], x),
            ArgumentError,
            r"at least two dimensions.* \(3,\) and \(3, 2\). Use `jac",
        ),
        (lambda tape, x, y: tape.jacobian(y.astype(int), x), ArgumentTypeError, "must be of a float dtype; got int"),
        (lambda tape, x, y: [tape.jacobian(y, x), tape.jacobian(y, x)], GradientError, "computes gradients only once"),
    ],
)
def test_misuse(question, error: type[Exception], message: str) -> None:
    fn, x = ask(question)
    for call in (fn, replicant.function(fn)):
        with pytest.raises(error, match=message):
            call(x)


def test_a_jacobian_later() -> None:
    kept = []

    @replicant.function
    def fn(x):
        with GradientTape() as tape:
            y = x * 2.0
        kept.append(lambda: tape.jacobian(y, x))
        return y

    fn(jnp.asarray(X))
    with pytest.raises(GradientError, match=r"tape.jacobian was called outside the function in which the tape recorded"):
        kept[-1]()
