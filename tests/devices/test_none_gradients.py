"""Gradients that are None, where the replicas have different numbers of rows or none: they exchange the same gradients."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant import GradientTape, Variable

pytestmark = [pytest.mark.both_ways, pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")]

ROWS = (8, 7, 1)


def mirrored(n: int = 2) -> replicant.MirroredStrategy:
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(n)])


def batch(strategy, num_rows):
    (x,) = strategy.experimental_distribute_dataset([np.arange(1.0, 2 * num_rows + 1, dtype=np.float32).reshape(num_rows, 2)])
    return x


@pytest.mark.cases("apart-3-function", "fused-2-function")
@pytest.mark.parametrize("compiled", [True, False], ids=["function", "bare run"])
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.long
def test_a_penalty_on_input_gradients(n, compiled) -> None:
    """The bias has no gradient. One device: the kernel goes from k to k - 0.1 * 2 * k * rows / 8, step by step."""
    strategy = mirrored(n)
    with strategy.scope():
        layer = keras.layers.Dense(1, kernel_initializer="ones", bias_initializer="ones")
        layer.build((None, 2))
        optimizer = keras.optimizers.SGD(0.1)

    def step(x):
        with GradientTape() as tape:
            loss = keras.ops.sum(jax.grad(lambda x: keras.ops.sum(layer(x)))(x) ** 2) / 8
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
        return replicant.get_replica_context().all_reduce("SUM", loss)

    def train(x):
        return strategy.reduce("MEAN", strategy.run(step, args=(x,)))

    train = replicant.function(train) if compiled else train
    kernel = np.float32(1.0)
    for rows in ROWS:
        assert float(train(batch(strategy, rows))) == pytest.approx(2 * kernel**2 * rows / 8, rel=1e-6)
        kernel -= np.float32(0.1) * 2 * kernel * rows / 8
        np.testing.assert_allclose(layer.kernel, [[kernel]] * 2, rtol=1e-6)
    np.testing.assert_array_equal(layer.bias, [1.0])


def gradients_of(fn, *sources, **options):
    """A replica function that returns the gradients by the names of the sources, and their sums over the replicas."""

    def step(x):
        with GradientTape(persistent=True) as tape:
            y = fn(x)
        first = tape.gradient(y, list(sources), **options)
        second = tape.gradient(y, list(sources), **options)
        total = replicant.get_replica_context().all_reduce("SUM", first)
        return first, second, total

    return step


def totals(strategy, step, num_rows):
    result = strategy.run(step, args=(batch(strategy, num_rows),))
    first, second, total = jax.tree.map(
        lambda x: None if x is None else [np.asarray(v).tolist() for v in strategy.experimental_local_results(x)],
        result,
        is_leaf=lambda x: x is None or not isinstance(x, tuple | list),
    )
    assert first == second
    return first, [None if t is None else t[0] for t in total]


@pytest.mark.parametrize("num_rows", ROWS)
def test_none_on_all_replicas_is_none(num_rows) -> None:
    v, w = Variable(2.0), Variable(3.0)
    first, total = totals(mirrored(), gradients_of(lambda x: v * jnp.sum(x), w, v), num_rows)
    assert first[0] is total[0] is None
    assert total[1] == 2 * num_rows * (2 * num_rows + 1) / 2


def only_with_rows(v):
    """The number of rows is known when the function is traced, so it may decide."""
    return lambda x: v * jnp.sum(x) if x.shape[0] else jnp.zeros(())


def none_but_a_number(v):
    return lambda x: v * jnp.sum(x) if x.shape[0] else 0.0


@pytest.mark.parametrize("make", [only_with_rows, none_but_a_number])
def test_none_on_some_replicas_counts_as_zeros(make) -> None:
    v, w = Variable(2.0), Variable(3.0)
    first, total = totals(mirrored(), gradients_of(make(v), v, w), 1)
    assert first == [[3.0, 0.0], None]
    assert total == [3.0, None]


@pytest.mark.long
def test_zeros_where_they_are_asked_for() -> None:
    v, w = Variable(2.0), Variable([3.0, 3.0])
    for num_rows in ROWS:
        first, total = totals(mirrored(), gradients_of(lambda x: v * jnp.sum(x), w, v, unconnected_gradients="zero"), num_rows)
        assert first[0] == [[0.0, 0.0]] * 2
        assert total[0] == [0.0, 0.0]


def test_nested_tapes() -> None:
    """Of two variables the inner tape has one gradient, and the outer tape differentiates that one."""
    v, w, unused = Variable(2.0), Variable(3.0), Variable(0.0)

    def step(x):
        with GradientTape() as outer:
            with GradientTape() as inner:
                y = v * jnp.sum(x) * w
            of_v, none = inner.gradient(y, [v, unused])
        second = outer.gradient(of_v, [unused, w])
        return [none, *replicant.get_replica_context().all_reduce("SUM", second)]

    strategy = mirrored()
    for num_rows in ROWS:
        none, of_unused, of_w = strategy.run(step, args=(batch(strategy, num_rows),))
        assert none is of_unused is None
        assert float(of_w.value) == num_rows * (2 * num_rows + 1)


def test_value_and_grad_gives_zeros() -> None:
    v, w = Variable(2.0), Variable(3.0)
    both = replicant.value_and_grad(lambda x: v * jnp.sum(x), [v, w])

    def step(x):
        _, gradients = both(x)
        return replicant.get_replica_context().all_reduce("SUM", gradients)

    strategy = mirrored()
    for num_rows in ROWS:
        of_v, of_w = strategy.run(step, args=(batch(strategy, num_rows),))
        assert (float(of_v.value), float(of_w.value)) == (num_rows * (2 * num_rows + 1), 0.0)


def test_an_assignment_in_the_tape_with_unequal_replicas() -> None:
    """No gradient passes an assignment, so what the replicas exchange there is not in the gradient's way."""
    v, total = Variable(2.0), Variable(0.0, trainable=False, aggregation="SUM")

    def step(x):
        with GradientTape() as tape:
            y = v * jnp.sum(x)
            total.assign_add(y)
            loss = y + total.value()
        return tape.gradient(loss, v)

    strategy = mirrored()
    gradient = strategy.run(step, args=(batch(strategy, 3),))
    assert [float(g) for g in gradient.values] == [10.0, 11.0]  # rows [1, 2], [3, 4] and [5, 6]
    assert float(total.value()) == 42.0
