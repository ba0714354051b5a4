"""What depends on a batch's shape differs between replicas with different numbers of rows, although no row was read."""

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax import lax

import replicant
from replicant import Variable
from replicant.errors import DivergenceError, RaggedStepError


@pytest.fixture(scope="module")
def two() -> replicant.MirroredStrategy:
    return replicant.MirroredStrategy(["cpu:0", "cpu:1"])


def batch(strategy: replicant.Strategy, num_rows: int) -> Any:
    (x,) = strategy.experimental_distribute_dataset([np.ones((num_rows, 2), np.float32)])
    return x


def context() -> replicant.ReplicaContext:
    found = replicant.get_replica_context()
    assert found is not None
    return found


def through_jit(v: Any, x: Any) -> Any:
    return jax.jit(lambda v, n: v * n, static_argnums=1)(v.value(), len(x))


def in_a_loop(v: Any, x: Any) -> Any:
    return lax.fori_loop(0, len(x), lambda _, total: total + v.value(), jnp.zeros(()))


def merged(v: Any, x: Any) -> Any:
    return context().merge_call(lambda strategy, n, k: strategy.reduce("SUM", n) * jnp.ones(()) + k, args=(len(x), 1))


# Of 7 rows replica 0 has 4 and replica 1 has 3; v is 2.
@pytest.mark.parametrize(
    ("fn", "total"),
    [
        (lambda v, x: v * len(x), 14.0),
        (lambda v, x: len(x), 7),
        (lambda v, x: np.float32(len(x)), 7.0),
        (lambda v, x: jnp.asarray(len(x)), 7),
        (lambda v, x: jnp.asarray(1.0) * len(x), 7.0),
        (lambda v, x: jnp.ones(len(x)).sum(), 7.0),
        (lambda v, x: jnp.asarray(np.ones(len(x))).sum(), 7.0),
        (lambda v, x: jnp.zeros_like(x).size, 14),
        (lambda v, x: v * 10 if len(x) > 3 else v.value(), 22.0),
        (lambda v, x: v * 10 if len(x) > 3 else 1.0, 21.0),
        (lambda v, x: 1.0 if len(x) > 3 else v * 10, 21.0),
        (lambda v, x: v * 10 if len(x) > 3 else jnp.sum(x), 26.0),
        (lambda v, x: sum([v.value()] * len(x)), 14.0),
        (through_jit, 14.0),
        (in_a_loop, 14.0),
        (merged, 16.0),
        (lambda v, x: context().all_reduce("SUM", jnp.asarray(float(len(x)))), 14.0),
        (lambda v, x: context().all_reduce("MEAN", v * len(x)), 14.0),
        (lambda v, x: context().all_gather(jnp.full((1,), len(x)), 0)[0] * len(x), 28),
        (lambda v, x: context().all_reduce("SUM", jnp.ones(())) * len(x), 14.0),
    ],
)
@pytest.mark.both_ways
def test_the_sum_is_that_of_the_replicas_own_values(fn, total, fuse_replicas) -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    v = Variable(2.0)

    def step(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(lambda x: fn(v, x), args=(x,)))

    assert float(step(batch(strategy, 7))) == total
    assert float(replicant.function(step)(batch(strategy, 7))) == total


def test_several_results_and_an_argument_that_is_handed_through(two) -> None:
    """A leaf that one replica computes and another hands through, before one that is the same on both."""

    def fn(x: Any, y: Any) -> Any:
        return {"a": y * 10 if len(x) > 3 else y, "b": y + 1, "c": (y if len(x) > 3 else y * 10), "d": "text", "e": len(x)}

    result = two.run(fn, args=(batch(two, 7), jnp.asarray(2.0)))
    assert [float(v) for v in result["a"].values] == [20.0, 2.0]
    assert [float(v) for v in result["c"].values] == [2.0, 20.0]
    assert isinstance(result["b"], replicant.Mirrored)
    assert float(result["b"].value) == 3.0
    assert result["d"] == "text"
    assert result["e"].values == (4, 3)


@pytest.mark.parametrize(
    "fn",
    [
        lambda v, x: v.assign(len(x)),
        lambda v, x: v.assign(jnp.zeros(()) + len(x)),
        lambda v, x: v.assign_add(jnp.ones(len(x)).sum()),
        lambda v, x: v.assign(v * len(x)),
        lambda v, x: v.assign(np.float32(len(x))),
        lambda v, x: v.assign(in_a_loop(v, x)),
        lambda v, x: v.assign(through_jit(v, x)),
        lambda v, x: v.assign(context().all_reduce("SUM", jnp.ones(())) * len(x)),
        lambda v, x: v.assign(lax.cond(v.value() > 0, lambda: len(x) * 1.0, lambda: 0.0)),
        lambda v, x: v.assign(v * 2) if len(x) > 3 else None,
        lambda v, x: v.assign(v * 2) if len(x) < 4 else None,
        lambda v, x: v.assign(context().all_reduce("SUM", jnp.ones(()))) if len(x) > 3 else context().all_reduce("SUM", v.value()),
    ],
)
def test_a_mirrored_variable_takes_no_value_of_one_replica(two, fn) -> None:
    v = Variable(2.0, name="count")
    with pytest.raises(DivergenceError, match=r"'count'.*differs between the 2 replicas"):
        two.run(lambda x: (fn(v, x), None)[1], args=(batch(two, 7),))
    assert float(v.numpy()) == 2.0


@pytest.mark.parametrize(
    ("fn", "value"),
    [
        (lambda v, x: v.assign(5.0), 5.0),
        (lambda v, x: v.assign(v * 2), 4.0),
        (lambda v, x: v.assign(jnp.full((3,), 2.0).sum()), 6.0),
        (lambda v, x: v.assign(jnp.asarray(np.arange(3.0)).sum()), 3.0),
        (lambda v, x: v.assign_add(jax.nn.relu(v.value())), 4.0),
        (lambda v, x: v.assign(context().all_reduce("SUM", jnp.sum(x))), 14.0),
        (lambda v, x: v.assign(context().all_reduce("SUM", jnp.asarray(len(x) * 1.0)) * v), 14.0),
        (lambda v, x: v.assign(lax.fori_loop(0, 3, lambda _, c: c * 2, v.value())), 16.0),
        (lambda v, x: v.assign(lax.fori_loop(0, 3, lambda _, c: (c[0] * 2, c[1] + x[0, 0]), (v.value(), 0.0))[0]), 16.0),
        (lambda v, x: v.assign(lax.cond(v.value() > 0, lambda: v * 3, lambda: v * 4)), 6.0),
        (lambda v, x: v.assign(v.value()) if len(x) > 3 else None, 2.0),
        (
            lambda v, x: (
                v.assign(jnp.sin(v.value() * 0) + sum([1.0] * 3)) if len(x) > 3 else v.assign(jnp.sin(v.value() * 0) + 3.0)
            ),
            3.0,
        ),
    ],
)
def test_a_mirrored_variable_takes_what_is_equal(two, fn, value) -> None:
    v = Variable(2.0)
    captured = jnp.ones(3)  # no reader of it is in the way
    result = two.run(lambda x: (fn(v, x), captured.sum(), v * 1)[1:], args=(batch(two, 7),))
    assert float(v.numpy()) == value
    assert all(isinstance(leaf, replicant.Mirrored) for leaf in jax.tree.leaves(result, is_leaf=lambda x: hasattr(x, "values")))


@pytest.mark.parametrize(("rule", "assigned", "added"), [("SUM", 7.0, 9.0), ("MEAN", 3.5, 5.5), ("ONLY_FIRST_REPLICA", 4.0, 6.0)])
def test_aggregations_of_shapes(two, rule, assigned, added) -> None:
    x = batch(two, 7)
    v = Variable(2.0, aggregation=rule)
    two.run(lambda x: (v.assign_add(jnp.asarray(float(len(x)))), None)[1], args=(x,))
    assert float(v.numpy()) == added
    two.run(lambda x: (v.assign(jnp.ones(len(x)).sum()), None)[1], args=(x,))
    assert float(v.numpy()) == assigned


@pytest.mark.both_ways
@pytest.mark.parametrize(("num_rows", "copies"), [(8, [4.0, 4.0]), (7, [4.0, 3.0]), (1, [1.0, 0.0])])
def test_copies_of_their_own(num_rows, copies, fuse_replicas) -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        v = Variable(0.0, synchronization="ON_READ", aggregation="SUM")
    strategy.run(lambda x: (v.assign(float(len(x))), None)[1], args=(batch(strategy, num_rows),))
    assert [float(value) for value in v.values] == copies
    assert float(v.numpy()) == num_rows


class CountsRows(keras.metrics.Metric):
    """Rows seen, and rows of the last batch, by shape alone."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = self.add_variable((), "zeros", name="seen")
        self.last = self.add_variable((), "zeros", name="last")

    def update_state(self, y: Any) -> None:
        self.seen.assign_add(keras.ops.cast(keras.ops.shape(y)[0], "float32"))
        self.last.assign(keras.ops.sum(keras.ops.ones(len(y))))

    def result(self) -> Any:
        return {"seen": self.seen.value, "last": self.last.value}


@pytest.mark.both_ways
@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_metric_that_counts_rows_by_shape(n, fuse_replicas) -> None:
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(n)])
    with strategy.scope():
        metric = CountsRows()
    for num_rows in (6, 7, 1):
        strategy.run(lambda x: (metric.update_state(x), None)[1], args=(batch(strategy, num_rows),))
    assert float(metric.result()["seen"]) == 14.0


@pytest.mark.both_ways
def test_equal_replicas_may_assign_their_number_of_rows(fuse_replicas) -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    v = Variable(0.0)
    result = strategy.run(lambda x: (v.assign(len(x)), v * len(x))[1], args=(batch(strategy, 8),))
    assert float(v.numpy()) == 4.0
    assert isinstance(result, replicant.Mirrored)


def test_a_merge_call_sees_every_replicas_objects(two) -> None:
    seen = []

    def fn(x: Any) -> Any:
        def merge(_: Any, count: Any, name: Any, array: Any) -> Any:
            seen.append((count, name))
            return array

        return context().merge_call(merge, args=(len(x), "same", jnp.sum(x)))

    result = two.run(fn, args=(batch(two, 7),))
    assert [float(value) for value in result.values] == [8.0, 6.0]
    assert {name for _, name in seen} == {"same"}
    assert {count.values for count, _ in seen} == {(4, 3)}


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (
            lambda c, x: c.merge_call(lambda _, y: y, args=(jnp.ones(()) if len(x) > 3 else 1,)),
            "arrays in the same places; got replica",
        ),
        (
            lambda c, x: c.all_reduce("SUM", [jnp.ones(())] * len(x))[0],
            "the same number of arrays on each replica; got replica 0: 4, replica 1: 3",
        ),
        (
            lambda c, x: c.all_reduce("SUM" if len(x) > 3 else "MEAN", jnp.ones(())),
            r"0: all_reduce SUM, replica 1: all_reduce MEAN",
        ),
        (
            lambda c, x: c.all_reduce("SUM", jnp.ones(len(x))),
            r"needs equal shapes and dtypes on all replicas; got replica 0: float32\[4\], replica 1: float32\[3\]",
        ),
        (  # what comes of it on replica 1 is not told
            lambda c, x: c.all_reduce("SUM", jnp.ones(len(x))).reshape(4),
            r"needs equal shapes and dtypes on all replicas; got replica 0: float32\[4\], replica 1: float32\[3\]",
        ),
        (
            lambda c, x: [c.all_reduce("SUM", jnp.ones(())) for _ in range(3 if len(x) > 3 else 2)],
            r"^1 of 2 replicas wait in an exchange \(all_reduce\) that the others do not make",
        ),
        (
            lambda c, x: c.all_reduce("SUM", jnp.ones(1)) if len(x) > 3 else c.all_gather(jnp.ones(1), axis=0),
            r"^2 of 2 replicas wait in an exchange \(all_reduce, all_gather\) that the others do not make",
        ),
    ],
)
def test_exchanges_that_do_not_match(two, fn, message) -> None:
    with pytest.raises(RaggedStepError, match=message):
        two.run(lambda x: fn(context(), x), args=(batch(two, 7),))


@pytest.mark.both_ways
def test_what_cannot_be_computed_without_rows_names_the_replicas_that_have_none(fuse_replicas) -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"])
    with pytest.raises(RaggedStepError) as caught:
        strategy.run(lambda data: keras.ops.max(data["x"]), args=({"x": batch(strategy, 1)},))
    assert str(caught.value) == (
        "run: replicas 1, 2 of 3 have no rows in this step (args[0]['x'] has [1, 0, 0] rows on the replicas, 1 in all), and with "
        "none the function raises ValueError: zero-size array to reduction operation max which has no identity. Write it so that "
        "it also computes with 0 rows, such as keras.ops.max(x, initial=-float('inf')), or x.reshape(len(x), "
        "math.prod(x.shape[1:])) instead of -1, or leave incomplete batches out: "
        "dataset.batch(global_batch_size, drop_remainder=True)."
    )
    four = batch(strategy, 4)  # 2, 2, 0
    with pytest.raises(
        RaggedStepError, match=r"replica 2 of 3 has no rows in this step \(args\[0\] has \[2, 2, 0\] rows .* raises "
    ):
        replicant.function(lambda x: strategy.run(lambda x: jnp.reshape(x, (x.shape[0], -1)), args=(x,)))(four)
    with pytest.raises(RaggedStepError, match=r"replicas 0, 1, 2 of 3 have no rows .*\[0, 0, 0\] rows on the replicas, 0 in all"):
        strategy.run(jnp.argmax, args=(batch(strategy, 0),))
    # What the error says to write works, and an error where there are rows stays as it is.
    best = strategy.run(lambda x: keras.ops.max(x.reshape(len(x), 2), initial=-float("inf")), args=(four,))
    assert [float(v) for v in strategy.experimental_local_results(best)] == [1.0, 1.0, -np.inf]
    with pytest.raises(ValueError, match=r"^own($|\n)"):
        strategy.run(raises, args=(four,))


def raises(x: Any) -> None:
    raise ValueError("own")
