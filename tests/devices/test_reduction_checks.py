"""Gradients that the sum over the replicas counts several times are told; right ones never are."""

import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest

import replicant
from replicant.errors import DivergenceError, ReductionError, ReductionWarning

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
Y = X.sum(axis=1)
LR = 0.1


@pytest.fixture
def two() -> replicant.MirroredStrategy:
    return replicant.MirroredStrategy(["cpu:0", "cpu:1"])


def halves(strategy: replicant.Strategy, *arrays: np.ndarray) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda c: tuple(np.split(a, 2)[c.replica_id_in_sync_group] for a in arrays)
    )


def warnings_of(call: Callable[[], Any]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [w for w in caught if issubclass(w.category, ReductionWarning)]


def line_of(fn: Callable[..., Any], text: str) -> int:
    lines, start = inspect.getsourcelines(fn)
    return start + next(i for i, line in enumerate(lines) if text in line)


def all_reduce(op: str, value: Any) -> Any:
    context = replicant.get_replica_context()
    assert context is not None
    return context.all_reduce(op, value)


# What a step makes of its per-example losses, and whether that is right where gradients are summed.

WRONG = {
    "mean": lambda losses: 1.0 * jnp.mean(losses),
    "keras mean": lambda losses: keras.ops.mean(losses, axis=0),
    "method": lambda losses: losses.mean(),
    "sum over the rows' number": lambda losses: jnp.sum(losses) / losses.shape[0],
    "times one over the rows": lambda losses: jnp.sum(losses) * (1.0 / losses.shape[0]),
    "weighted": lambda losses: 0.3 * jnp.mean(losses),
    "of a matrix": lambda losses: jnp.mean(jnp.stack([losses, losses, losses], axis=1)),
    "of features and of rows": lambda losses: jnp.mean(jnp.mean(jnp.stack([losses, losses, losses], axis=1), axis=1)),
    "of flattened": lambda losses: jnp.mean(jnp.stack([losses, losses, losses], axis=1).reshape(-1)),
    "negative of the negative": lambda losses: -jnp.mean(-losses),
    "with another term": lambda losses: jnp.mean(losses) + 0.01,
    "in a compiled function": lambda losses: jax.jit(jnp.mean)(2 * losses),
}
RIGHT = {
    "average loss": lambda losses: replicant.compute_average_loss(losses, global_batch_size=8),
    "average loss without a size": replicant.compute_average_loss,
    "average loss of a partial batch": lambda losses: replicant.compute_average_loss(losses, global_batch_size=32),
    "average loss with weights": lambda losses: replicant.compute_average_loss(
        losses, sample_weight=jnp.ones(losses.shape), global_batch_size=3
    ),
    "sum": jnp.sum,
    "sum over the global size": lambda losses: jnp.sum(losses) / 8,
    "mean over the replicas": lambda losses: jnp.mean(losses) / replicant.get_strategy().num_replicas_in_sync,
    "mean of a share": lambda losses: jnp.mean(losses / replicant.get_strategy().num_replicas_in_sync),
    "scaled": lambda losses: replicant.scale_regularization_loss(jnp.mean(losses)),
    "mean by a product": lambda losses: jnp.mean(losses) * (1 / replicant.get_strategy().num_replicas_in_sync),
    "over all rows": lambda losses: jnp.sum(losses) / all_reduce("SUM", jnp.asarray(losses.shape[0], jnp.float32)),
    "mean of features": lambda losses: jnp.sum(jnp.mean(jnp.stack([losses] * 5, axis=1), axis=1)) / 8,
    "sum of rows, mean of features": lambda losses: jnp.mean(jnp.sum(jnp.stack([losses] * 4, axis=1), axis=0) / 8),
    "two columns": lambda losses: replicant.compute_average_loss(jnp.stack([losses, losses], axis=1), global_batch_size=8),
    "two columns by hand": lambda losses: jnp.sum(jnp.stack([losses, losses], axis=1)) / 8,
    "two views": lambda losses: replicant.compute_average_loss(jnp.concatenate([losses, losses]), global_batch_size=8),
    "mean of a constant beside": lambda losses: jnp.sum(losses) / 8 + jnp.mean(jnp.ones(4)),
}


def by_tape(reduce: Callable[[Any], Any], strategy: replicant.Strategy) -> Callable[[], Any]:
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.build((None, 3))
        optimizer = keras.optimizers.SGD(LR)

    def step(x, y):
        with replicant.GradientTape() as tape:
            losses = (model(x)[:, 0] - y) ** 2
            loss = reduce(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    return lambda: strategy.run(step, args=halves(strategy, X, Y))


def by_grad(reduce: Callable[[Any], Any], strategy: replicant.Strategy) -> Callable[[], Any]:
    def step(w, x, y):
        def loss_of(w):
            losses = (x @ w - y) ** 2
            return reduce(losses)

        return w - LR * all_reduce("SUM", jax.grad(loss_of)(w))

    return lambda: strategy.run(step, args=(jnp.ones(3), *halves(strategy, X, Y)))


WAYS = {"tape": by_tape, "grad": by_grad}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", WRONG)
def test_a_mean_over_one_replicas_rows_is_told(two, way: str, name: str) -> None:
    reduce = WRONG[name]
    (told,) = warnings_of(WAYS[way](reduce, two))
    assert re.match(r"This mean is taken over the (4|8|12) values of one replica.*2 times.*compute_average_loss", str(told.message))
    assert told.filename == __file__
    assert told.lineno == reduce.__code__.co_firstlineno


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", RIGHT)
def test_right_losses_are_not_told(two, way: str, name: str) -> None:
    assert warnings_of(WAYS[way](RIGHT[name], two)) == []


@pytest.mark.both_ways
def test_a_mean_is_right_where_gradients_are_averaged_or_nothing_is_trained(two) -> None:
    total = replicant.Variable(jnp.zeros(3), aggregation="MEAN")

    def averaged(w, x, y):
        gradient = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
        return w - LR * all_reduce("MEAN", gradient), w - LR * all_reduce("MEAN", {"a": gradient, "b": gradient})["a"]

    def divided_afterwards(w, x, y):
        gradient = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
        return w - LR * (all_reduce("SUM", gradient) / 2)

    def divided_before(w, x, y):
        gradient = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
        return w - LR * all_reduce("SUM", gradient / 2)

    def assigned_as_a_mean(w, x, y):
        total.assign(jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w))

    def handed_out(w, x, y):
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
        return loss, gradient, all_reduce("SUM", gradient)

    def evaluated(w, x, y):
        return all_reduce("SUM", jnp.mean((x @ w - y) ** 2)), all_reduce("SUM", jnp.asarray(1.0))

    for step in (averaged, divided_afterwards, divided_before, assigned_as_a_mean, handed_out, evaluated):
        assert warnings_of(lambda step=step: two.run(step, args=(jnp.ones(3), *halves(two, X, Y)))) == [], step


@pytest.mark.both_ways
def test_a_mean_in_a_loop_over_parts_of_the_batch_is_told(two) -> None:
    def step(w, x, y):
        def part(total, xy):
            return total + jax.grad(lambda w: jnp.mean((xy[0] @ w - xy[1]) ** 2))(w), None  # here

        total, _ = jax.lax.scan(part, jnp.zeros(3), (x.reshape(2, 2, 3), y.reshape(2, 2)))
        return w - LR * all_reduce("SUM", total)

    (told,) = warnings_of(lambda: two.run(step, args=(jnp.ones(3), *halves(two, X, Y))))
    assert told.lineno == line_of(step, "# here")


@pytest.mark.both_ways
@pytest.mark.long
def test_optax_and_a_variable_with_aggregation_sum(two) -> None:
    w = replicant.Variable(jnp.ones(3), aggregation="SUM")
    optimizer = optax.adam(LR)

    def assign(x, y):
        with replicant.GradientTape() as tape:
            loss = jnp.mean((x @ w.value() - y) ** 2)  # mean one
        w.assign_sub(LR * tape.gradient(loss, w))

    def update(params, state, x, y):
        gradients = jax.grad(lambda p: jnp.mean((x @ p["w"] + p["b"] - y) ** 2))(params)  # mean two
        updates, state = optimizer.update(all_reduce("SUM", gradients), state, params)
        return optax.apply_updates(params, updates), state

    params = {"w": jnp.ones(3), "b": jnp.zeros(())}
    (told,) = warnings_of(lambda: two.run(assign, args=halves(two, X, Y)))
    assert told.lineno == line_of(assign, "# mean one")
    (told,) = warnings_of(lambda: two.run(update, args=(params, optimizer.init(params), *halves(two, X, Y))))
    assert told.lineno == line_of(update, "# mean two")


# A batch that was not distributed.


@pytest.mark.parametrize("way", ["tape", "grad"])
@pytest.mark.parametrize(
    ("reduce", "random"), [("mean", False), ("mean", True), ("sum", False), ("average loss", False), ("average loss", True)]
)
def test_a_batch_that_was_not_distributed_is_told(two, way: str, reduce: str, random: bool) -> None:
    losses_to_loss = {
        "mean": jnp.mean,
        "sum": jnp.sum,
        "average loss": lambda losses: replicant.compute_average_loss(losses, global_batch_size=8),
    }[reduce]
    with two.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.build((None, 3))
        optimizer = keras.optimizers.SGD(LR)

    def noise(y):
        if not random:
            return y
        key = jax.random.fold_in(jax.random.key(0), replicant.get_replica_context().replica_id_in_sync_group)
        return y + jax.random.normal(key, y.shape)

    def by_tape(_, batch):
        with replicant.GradientTape() as tape:
            loss = losses_to_loss((model(batch["x"])[:, 0] - noise(batch["y"])) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))

    def by_grad(w, batch):
        gradient = jax.grad(lambda w: losses_to_loss((batch["x"] @ w - noise(batch["y"])) ** 2))(w)
        return w - LR * all_reduce("SUM", gradient)

    step = {"tape": by_tape, "grad": by_grad}[way]
    (told,) = warnings_of(lambda: two.run(step, args=(jnp.ones(3), {"x": X, "y": Y})))
    assert re.search(r"args\[1\]\['[xy]'\] was not distributed: every replica got all of its rows", str(told.message))
    assert "experimental_distribute_dataset" in str(told.message) or "2 times the mean" in str(told.message)
    assert told.filename == __file__
    assert warnings_of(lambda: two.run(step, args=(jnp.ones(3), {"x": X, "y": Y}))) == []


def test_a_batch_that_all_replicas_are_meant_to_see_is_not_told(two) -> None:
    table, n = jnp.linspace(0, 1, 8), 2

    def divided(w, x, y):
        return w - LR * all_reduce("SUM", jax.grad(lambda w: jnp.mean((x @ w - y) ** 2) / n)(w))

    def averaged(w, x, y):
        return w - LR * all_reduce("MEAN", jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w))

    def sliced(w, x, y):
        start = replicant.get_replica_context().replica_id_in_sync_group * 4
        x, y = (jax.lax.dynamic_slice_in_dim(a, start, 4) for a in (x, y))
        losses = lambda w: replicant.compute_average_loss((x @ w - y) ** 2, global_batch_size=8)  # noqa: E731
        return w - LR * all_reduce("SUM", jax.grad(losses)(w))

    def without_sum(w, x, y):
        return w - LR * jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)

    def regularized(w, x, y):
        return w - LR * all_reduce("SUM", jax.grad(lambda w: jnp.mean(w**2))(w)), jnp.sum(x) + jnp.sum(y)

    def with_table(w, x, y, table):
        x, y = (a[:4] for a in (x, y))
        rows = replicant.get_replica_context().replica_id_in_sync_group * 4 + jnp.arange(4)
        losses = lambda w: jnp.sum(table[rows] * (x @ w - y) ** 2) / 8  # noqa: E731
        return w - LR * all_reduce("SUM", jax.grad(losses)(w))

    for step in (divided, averaged, sliced, without_sum, regularized):
        assert warnings_of(lambda step=step: two.run(step, args=(jnp.ones(3), X, Y))) == [], step
    assert warnings_of(lambda: two.run(with_table, args=(jnp.ones(3), X, Y, table))) == []


def test_one_replica_is_never_told() -> None:
    strategy = replicant.MirroredStrategy(["cpu:0"], strict=True)
    step = lambda w, x, y: w - LR * all_reduce("SUM", jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w))  # noqa: E731
    assert warnings_of(lambda: strategy.run(step, args=(jnp.ones(3), X, Y))) == []


# A count that contradicts the batch.


def test_a_count_smaller_than_the_batch_is_told(two) -> None:
    def step(x, y):
        losses = jnp.sum(x, axis=1) - y
        return replicant.compute_average_loss(losses, global_batch_size=4)  # here

    (told,) = warnings_of(lambda: two.run(step, args=halves(two, X, Y)))
    assert "global_batch_size=4, but this step has 8 examples: 4 on each of the 2 replicas." in str(told.message)
    assert "The sum over the replicas is 2 times the mean" in str(told.message)
    assert told.lineno == line_of(step, "# here")


@pytest.mark.parametrize("size", [8, 12, 64])
def test_a_count_of_the_batch_or_of_a_larger_one_is_not_told(two, size: int) -> None:
    def step(x, y):
        losses = jnp.sum(x, axis=1) - y
        tokens = replicant.compute_average_loss(jnp.ones(40), global_batch_size=8)  # rows of something else
        return replicant.compute_average_loss(losses, global_batch_size=size) + tokens

    assert warnings_of(lambda: two.run(step, args=halves(two, X, Y))) == []


# A gradient that is summed twice.


def accumulation(strategy: replicant.Strategy, **kind: Any) -> tuple[Any, Any, Any]:
    """A model that sums gradients over steps in variables of a kind; functions that add to them and that apply them."""
    with strategy.scope():
        w = keras.Variable(jnp.zeros(3), name="w")
        optimizer = keras.optimizers.SGD(LR)
        kept = replicant.Variable(jnp.zeros(3), trainable=False, name="kept", **kind)
    optimizer.build([w])

    def add(x, y):
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss((x @ w.value - y) ** 2, global_batch_size=8)
        kept.assign_add(tape.gradient(loss, w))

    def apply():
        optimizer.apply_gradients([(kept.value(), w)])
        kept.assign(jnp.zeros(3))

    return w, add, apply


GRADIENT = -2 * X.T @ Y / len(Y)  # of the mean of (X @ w - Y)^2, where w is 0


@pytest.mark.both_ways
@pytest.mark.parametrize("aggregation", ["SUM", "MEAN"])
def test_an_accumulated_gradient_that_is_summed_again_is_told(two, aggregation: str) -> None:
    _, add, apply = accumulation(two, aggregation=aggregation)
    two.run(add, args=halves(two, X, Y))
    (told,) = warnings_of(lambda: two.run(apply))
    assert re.match(r"The value of variable 'kept', which was combined.*is summed over them again.*ON_READ", str(told.message))
    assert told.lineno == line_of(apply, "apply_gradients")


@pytest.mark.both_ways
def test_gradients_accumulated_by_each_replica_are_summed_once(two) -> None:
    w, add, apply = accumulation(two, synchronization="ON_READ", aggregation="SUM")
    two.run(add, args=halves(two, X, Y))
    two.run(add, args=halves(two, X, Y))
    assert warnings_of(lambda: two.run(apply)) == []
    np.testing.assert_allclose(np.asarray(w.value), -LR * 2 * GRADIENT, rtol=1e-5)
    two.run(add, args=halves(two, X, 0 * Y))
    two.run(apply)
    after = jax.grad(lambda w: jnp.mean((X @ w) ** 2))(-LR * 2 * GRADIENT)
    np.testing.assert_allclose(np.asarray(w.value), -LR * (2 * GRADIENT + after), rtol=1e-5)


@pytest.mark.both_ways
def test_a_gradient_summed_by_hand_and_by_the_optimizer_is_told(two) -> None:
    with two.scope():
        w = keras.Variable(jnp.zeros(3), name="w")
        optimizer = keras.optimizers.SGD(LR)

    def step(op, x, y):
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss((x @ w.value - y) ** 2, global_batch_size=8)
        gradient = all_reduce(op, tape.gradient(loss, w))
        optimizer.apply_gradients([(gradient, w)])  # again

    (told,) = warnings_of(lambda: two.run(step, args=("SUM", *halves(two, X, Y))))
    assert re.match("A gradient that is already summed over the replicas is summed over them again.*2 times", str(told.message))
    assert told.lineno == line_of(step, "# again")
    np.testing.assert_allclose(np.asarray(w.value), -LR * 2 * GRADIENT, rtol=1e-5)
    assert warnings_of(lambda: two.run(step, args=("MEAN", *halves(two, X, Y)))) == []  # the sum of means is the sum


# Errors instead.


@pytest.mark.both_ways
def test_strict_raises(two, monkeypatch: pytest.MonkeyPatch) -> None:
    strict = replicant.MirroredStrategy(["cpu:0", "cpu:1"], strict=True)

    def step(w, x, y):
        return w - LR * all_reduce("SUM", jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w))  # here

    for _ in range(2):  # every time
        with pytest.raises(ReductionError, match=rf"{__file__}:{line_of(step, '# here')}: This mean is taken over the 4 values"):
            strict.run(step, args=(jnp.ones(3), *halves(strict, X, Y)))
    with pytest.raises(ReductionError, match=r"args\[1\] was not distributed"):
        strict.run(step, args=(jnp.ones(3), X, Y))
    monkeypatch.setenv("REPLICANT_STRICT", "1")
    assert replicant.MirroredStrategy(["cpu:0", "cpu:1"]).strict
    assert not replicant.MirroredStrategy(["cpu:0", "cpu:1"], strict=False).strict
    assert not two.strict


@pytest.mark.both_ways
def test_it_is_told_once_for_all_batch_sizes_and_inside_a_function(two) -> None:
    @replicant.function
    def distributed(w, batch):
        def step(w, x, y):
            return w - LR * all_reduce("SUM", jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w))

        return two.run(step, args=(w, *batch))

    def epoch():
        for rows in (8, 4):
            distributed(jnp.ones(3), halves(two, X[:rows], Y[:rows]))

    assert len(warnings_of(epoch)) == 1


def test_the_advice_for_a_variable_that_would_diverge_is_right_for_accumulation(two) -> None:
    _, add, _ = accumulation(two)
    with pytest.raises(DivergenceError) as caught:
        two.run(add, args=halves(two, X, Y))
    advice = str(caught.value)
    assert 0 < advice.index("create it with synchronization=ON_READ") < advice.index("create it with aggregation=SUM")
    assert "gradients that it accumulates" in advice
    assert "do not give a combined gradient to apply_gradients inside `run`, which would sum it again" in advice


@pytest.mark.parametrize(
    ("rows", "n", "message"),
    [
        (8, 3, "replicas have 3, 3 and 2 examples"),
        (7, 2, "replicas have 4 and 3 examples"),
        (1, 2, "replicas have 1 and 0 examples"),
        (8, 2, None),
        (2, 2, None),
    ],
)
def test_an_average_without_a_size_over_unequal_replicas_is_told(rows: int, n: int, message: str | None) -> None:
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(n)])
    (batch,) = strategy.experimental_distribute_dataset(replicant.data.Dataset.from_tensor_slices((X[:rows], Y[:rows])).batch(rows))

    def step(x: Any, y: Any) -> Any:
        return replicant.compute_average_loss((x.sum(axis=1) - y) ** 2)

    told = warnings_of(lambda: [strategy.run(step, args=batch) for _ in range(2)])  # told once
    assert [w.lineno for w in told] == ([] if message is None else [line_of(step, "compute_average_loss")])
    assert message is None or re.match(
        f"compute_average_loss was given no global_batch_size, but the {message}", str(told[0].message)
    )
    strict = replicant.MirroredStrategy([f"cpu:{i}" for i in range(n)], strict=True)
    if message is not None:
        with pytest.raises(ReductionError, match=f"{message}.*Pass global_batch_size"):
            strict.run(step, args=batch)


UNEQUAL_MEANS: dict[str, Callable[[Any], Any]] = {
    "over the replicas": RIGHT["mean over the replicas"],
    "of a share": RIGHT["mean of a share"],
    "by a product": RIGHT["mean by a product"],
    "scaled": RIGHT["scaled"],
    "plain": WRONG["mean"],
    "of a matrix": WRONG["of a matrix"],
    "with another term": WRONG["with another term"],
    "keras": lambda losses: keras.ops.mean(losses) / 2,
}
UNEQUAL_SUMS: dict[str, Callable[[Any], Any]] = {
    "with a size": RIGHT["average loss"],
    "over the global size": RIGHT["sum over the global size"],
    "over all rows": RIGHT["over all rows"],
    "means with their weights": lambda losses: jnp.mean(losses) * (losses.shape[0] / 8),
    "mean of a constant beside": RIGHT["mean of a constant beside"],
    "mean of features": RIGHT["mean of features"],
    "two columns by hand": RIGHT["two columns by hand"],
}


def with_batch_statistics(reduce: Callable[[Any], Any], strategy: replicant.Strategy, rows: int) -> Callable[[], Any]:
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(LR)
    (batch,) = strategy.experimental_distribute_dataset(replicant.data.Dataset.from_tensor_slices((X[:rows], Y[:rows])).batch(8))

    def step(x: Any, y: Any) -> None:
        with replicant.GradientTape() as tape:
            loss = reduce((model(x, training=True)[:, 0] - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    return lambda: strategy.run(step, args=batch)


@pytest.mark.parametrize("rows", [7, 1])
@pytest.mark.parametrize("name", UNEQUAL_MEANS)
def test_a_mean_over_unequal_replicas_is_told(two, name: str, rows: int) -> None:
    reduce = UNEQUAL_MEANS[name]
    (told,) = warnings_of(with_batch_statistics(reduce, two, rows))
    assert re.match(
        r"This mean is taken over the rows of one replica, and the .* different numbers.*global_batch_size", str(told.message)
    )
    assert (told.filename, told.lineno) == (__file__, reduce.__code__.co_firstlineno)
    strict = replicant.MirroredStrategy(["cpu:0", "cpu:1"], strict=True)
    with pytest.raises(ReductionError, match="This mean is taken over the rows of one replica"):
        with_batch_statistics(reduce, strict, rows)()


@pytest.mark.parametrize("name", UNEQUAL_SUMS)
def test_exact_losses_of_unequal_replicas_are_not_told(two, name: str) -> None:
    assert warnings_of(with_batch_statistics(UNEQUAL_SUMS[name], two, 7)) == []


def test_unequal_replicas_with_a_size_are_not_told(two) -> None:
    (batch,) = two.experimental_distribute_dataset(replicant.data.Dataset.from_tensor_slices((X[:7], Y[:7])).batch(8))
    assert warnings_of(lambda: two.run(lambda x, y: replicant.compute_average_loss(y, global_batch_size=8), args=batch)) == []


@pytest.mark.parametrize("divisor", [1, 2])
def test_as_many_rows_as_replicas(two: replicant.MirroredStrategy, divisor: int) -> None:
    """A mean over matrices of 2 rows on each of 2 replicas, divided by 2: the number of replicas, as the message advises."""
    with two.scope():
        weights = replicant.Variable(np.ones((3, 5), np.float32))

    def step(x: jax.Array) -> None:
        with replicant.GradientTape() as tape:
            loss = jnp.mean((x @ weights.value()) ** 2) / divisor
        gradient = all_reduce("SUM", tape.gradient(loss, weights))
        weights.assign_sub(LR * gradient)

    found = warnings_of(lambda: two.run(step, args=halves(two, X[:4])))
    assert len(found) == (divisor == 1)
