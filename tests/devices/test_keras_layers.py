"""Keras state inside `run`: metrics, dropout, batch statistics, seeds, losses, variables of every kind."""

import copy

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant.errors import DivergenceError, LossReductionError

pytestmark = pytest.mark.both_ways


@pytest.fixture(scope="module")
def two(fuse_replicas: str) -> replicant.MirroredStrategy:
    return replicant.MirroredStrategy(["cpu:0", "cpu:1"])


def per_replica(*values: object) -> replicant.PerReplica:
    return replicant.PerReplica([np.asarray(v, np.float32) for v in values])


def test_metrics_keep_one_copy_per_replica_and_are_summed_when_read(two: replicant.MirroredStrategy) -> None:
    mean = keras.metrics.Mean()

    def fn(x):
        mean.update_state(x)
        return mean.total.value, mean.count.value

    two.run(fn, args=(per_replica([1, 2], [3, 6]),))
    total, count = two.run(fn, args=(per_replica([1, 2], [3, 6]),))
    assert [float(v) for v in total.values] == [6.0, 18.0]
    assert [float(v) for v in count.values] == [4.0, 4.0]
    assert float(mean.result()) == 3.0
    assert (mean.total.numpy(), float(mean.count.value)) == (24.0, 8.0)
    mean.reset_state()
    assert float(mean.result()) == 0.0
    two.run(fn, args=(per_replica([1, 2], [3, 6]),))
    assert float(mean.result()) == 3.0


def test_metrics_move_between_strategies_and_plain_code(two: replicant.MirroredStrategy) -> None:
    mean = keras.metrics.Mean()
    three = replicant.MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"])
    two.run(mean.update_state, args=(per_replica([1.0], [2.0]),))
    three.run(mean.update_state, args=(per_replica([3.0], [4.0], [5.0]),))
    mean.update_state([6.0])
    replicant.get_strategy().run(mean.update_state, args=(jnp.asarray([7.0]),))
    assert float(mean.result()) == pytest.approx(4.0, rel=1e-6)


@pytest.mark.parametrize("make", [keras.metrics.Mean, keras.metrics.MeanSquaredError, keras.metrics.RootMeanSquaredError])
def test_an_empty_replica_adds_nothing_to_a_metric(two: replicant.MirroredStrategy, make) -> None:
    """Also where the mean of nothing would be NaN, as for the squared error of vectors."""
    metric, expected = make(), make()
    pair = [[1.0, 4.0], [2.0, 2.0]] if make is not keras.metrics.Mean else [[1.0, 4.0]]
    expected.update_state(*pair)
    two.run(metric.update_state, args=tuple(per_replica(values, []) for values in pair))
    assert float(metric.result()) == pytest.approx(float(expected.result()))


def test_functions_read_metrics_across_replicas(two: replicant.MirroredStrategy) -> None:
    mean = keras.metrics.Mean()

    @replicant.function
    def step(x):
        two.run(mean.update_state, args=(x,))
        result = mean.result()
        mean.reset_state()
        return result

    for _ in range(2):
        assert float(step(per_replica([1.0, 2.0], [3.0, 6.0]))) == 3.0
    assert float(mean.result()) == 0.0


def test_dropout_differs_between_replicas_and_repeats_with_the_seed(two: replicant.MirroredStrategy) -> None:
    ones = jnp.ones((1, 64))

    def masks(strategy: replicant.Strategy) -> list[list[float]]:
        layer = keras.layers.Dropout(0.5, seed=7)
        return [np.asarray(strategy.run(lambda: layer(ones, training=True)).values[r]).tolist() for r in range(2) for _ in range(1)]

    first, second = masks(two)
    assert first != second
    assert masks(two) == [first, second]
    plain = keras.layers.Dropout(0.5, seed=7)(ones, training=True)
    assert np.asarray(plain).tolist() == first  # replica 0 draws the numbers of one device


def test_random_state_advances_alike_on_all_replicas(two: replicant.MirroredStrategy) -> None:
    layer = keras.layers.Dropout(0.5, seed=7)
    plain = keras.layers.Dropout(0.5, seed=7)
    for _ in range(3):
        two.run(lambda: layer(jnp.ones((1, 8)), training=True))
        plain(jnp.ones((1, 8)), training=True)
    assert layer.seed_generator.state.numpy().tolist() == plain.seed_generator.state.numpy().tolist()


@pytest.mark.parametrize("shares", [([0, 1, 2, 3], [4, 5, 6, 7]), ([0, 1, 2, 3, 4], [])], ids=["even", "one empty"])
def test_batch_statistics_are_averaged_over_replicas_that_have_rows(two: replicant.MirroredStrategy, shares) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 3)).astype(np.float32)
    layer = keras.layers.BatchNormalization(momentum=0.9)
    outputs = two.run(lambda x: layer(x, training=True), args=(per_replica(*[x[rows].reshape(-1, 3) for rows in shares]),))
    present = [x[rows] for rows in shares if rows]
    np.testing.assert_allclose(layer.moving_mean, np.mean([0.1 * p.mean(0) for p in present], axis=0), atol=1e-6)
    np.testing.assert_allclose(layer.moving_variance, np.mean([0.9 + 0.1 * p.var(0) for p in present], axis=0), atol=1e-6)
    assert all(np.isfinite(np.asarray(v)).all() for v in outputs.values)


def test_layers_are_built_where_they_are_first_called(two: replicant.MirroredStrategy) -> None:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dropout(0.1), keras.layers.Dense(1)])
    out = two.run(lambda x: model(x, training=True), args=(per_replica(np.ones((2, 3)), np.ones((2, 3))),))
    assert model.built
    assert out.values[0].shape == (2, 1)
    keras.utils.set_random_seed(3)
    plain = keras.Sequential([keras.layers.Dense(4), keras.layers.Dropout(0.1), keras.layers.Dense(1)])
    plain(np.ones((2, 3), np.float32))
    for a, b in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["sum_over_batch_size", "mean", "mean_with_sample_weight"])
def test_losses_that_divide_by_the_local_batch_are_refused(two: replicant.MirroredStrategy, name: str) -> None:
    loss = keras.losses.MeanSquaredError(reduction=name)
    message = f"'mean_squared_error' has reduction='{name}'.*reduction='none'.*compute_average_loss"
    for strategy in (two, replicant.MirroredStrategy(["cpu:0"])):
        with pytest.raises(LossReductionError, match=message):
            strategy.run(lambda: loss(jnp.ones(3), jnp.zeros(3)))
    assert float(loss(np.ones(3), np.zeros(3))) == 1.0  # elsewhere as ever
    with two.scope():
        assert float(loss(np.ones(3), np.zeros(3))) == 1.0


def test_losses_that_sum_or_do_not_reduce_work(two: replicant.MirroredStrategy) -> None:
    for reduction, expected in [("sum", 3.0), ("none", [1.0, 1.0, 1.0])]:
        loss = keras.losses.MeanSquaredError(reduction=reduction)
        result = two.run(lambda loss=loss: loss(jnp.ones((3, 1)), jnp.zeros((3, 1))))
        assert np.asarray(result.values[1]).tolist() == expected


@pytest.mark.parametrize(
    ("aggregation", "assigned", "added"),
    [("sum", 3.0, 13.0), ("mean", 1.5, 11.5), ("only_first_replica", 1.0, 11.0)],
)
@pytest.mark.long_cases("fused-mean-1.5-11.5")
def test_keras_variables_combine_what_replicas_assign(
    two: replicant.MirroredStrategy, aggregation: str, assigned: float, added: float
) -> None:
    v = keras.Variable(10.0, aggregation=aggregation)
    two.run(v.assign, args=(per_replica(1.0, 2.0),))
    assert float(v.value) == assigned
    v.assign(10.0)
    two.run(v.assign_add, args=(per_replica(1.0, 2.0),))
    assert float(v.value) == added
    v.assign(10.0)
    two.run(v.assign_sub, args=(per_replica(1.0, 2.0),))
    assert float(v.value) == 20.0 - added


def test_keras_variables_without_aggregation_must_not_diverge(two: replicant.MirroredStrategy) -> None:
    v = keras.Variable(10.0, name="lonely")
    with pytest.raises(DivergenceError, match=r"'lonely'.*differs between the 2 replicas.*aggregation=SUM"):
        two.run(v.assign, args=(per_replica(1.0, 2.0),))
    assert float(v.value) == 10.0
    two.run(lambda: v.assign(4.0))  # the same on all replicas
    assert float(v.value) == 4.0


def test_values_given_out_are_not_taken_back(two: replicant.MirroredStrategy) -> None:
    """A step donates the variable's memory; weights that a callback holds must survive it."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1)

    def fn(x):
        with replicant.GradientTape() as tape:
            loss = jnp.sum(model(x))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    held, copies = [], []
    for _ in range(3):
        held.append([v.value for v in model.variables])
        copies.append([np.array(v) for v in model.variables])
        two.run(fn, args=(per_replica([[1, 2]], [[3, 4]]),))
    for arrays, values in zip(held, copies, strict=True):
        for a, b in zip(arrays, values, strict=True):
            np.testing.assert_array_equal(np.asarray(a), b)


def test_a_copy_of_a_variable_is_a_snapshot(two: replicant.MirroredStrategy) -> None:
    """As in plain Keras. It has the array of the original, which the next step must not overwrite, and for a metric all copies."""
    v, mean = keras.Variable(np.zeros(3, "float32")), keras.metrics.Mean()

    def fn(x):
        v.assign(v + 1)
        mean.update_state(x)

    rows = per_replica([1, 2], [3, 6])
    two.run(fn, args=(rows,))
    snapshots = copy.copy(v), copy.copy(mean.total)
    array = v._value  # got past everything that tells of it
    two.run(fn, args=(rows,))
    two.run(lambda: snapshots[0].assign(snapshots[0] + 10))
    assert [np.asarray(x).tolist() for x in (*snapshots, array)] == [[11.0] * 3, 12.0, [1.0] * 3]
    assert [np.asarray(x).tolist() for x in (v, mean.total)] == [[2.0] * 3, 24.0]


def test_eager_code_goes_on_working_after_a_step(two: replicant.MirroredStrategy) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.5)

    def fn(x):
        optimizer.apply([jnp.ones(v.shape) for v in model.trainable_variables], model.trainable_variables)
        return model(x)

    optimizer.learning_rate = 0.25
    before = model.get_weights()
    two.run(fn, args=(per_replica([[1, 2]], [[3, 4]]),))
    np.testing.assert_allclose(before[0] - model.get_weights()[0], 0.5)  # two replicas, each 0.25
    assert int(optimizer.iterations) == 1
    assert isinstance(model.predict(np.ones((3, 2)), verbose=0), np.ndarray)
    model.set_weights(before)
    np.testing.assert_array_equal(model.layers[0].kernel.numpy(), before[0])
    assert isinstance(model.layers[0].kernel.value, jax.Array)


def test_gradients_none_are_left_alone(two: replicant.MirroredStrategy) -> None:
    used, unused = keras.Variable(1.0), keras.Variable(1.0)
    optimizer = keras.optimizers.SGD(1.0)

    def fn(x):
        with replicant.GradientTape() as tape:
            loss = used * x
        optimizer.apply_gradients(zip(tape.gradient(loss, [used, unused]), [used, unused], strict=True))

    with pytest.warns(UserWarning, match="Gradients do not exist for variables"):
        two.run(fn, args=(per_replica(2.0, 3.0),))
    assert (float(used.value), float(unused.value)) == (-4.0, 1.0)
