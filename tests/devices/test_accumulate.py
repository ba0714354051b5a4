"""``value_and_grad(accumulate_steps=k)``: k micro-batches give the numbers of the whole batch on one device."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant.data import Dataset
from replicant.errors import ArgumentError, ArgumentTypeError, ReductionError, ReductionWarning

from ._loops import in_loops, sums_of

FEATURES, CLASSES, BATCH = 6, 4, 8
TWO = ["cpu:0", "cpu:1"]
layers = keras.layers
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
STRATEGIES: dict[str, Callable[[], Any]] = {
    "one device": lambda: replicant.OneDeviceStrategy("cpu:0"),
    "fused": lambda: replicant.MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"]),
    "mirrored": lambda: replicant.MirroredStrategy(TWO, fuse_replicas=False),
    "fully sharded": lambda: replicant.FullyShardedStrategy(TWO, min_size=8),
    "four": lambda: replicant.FullyShardedStrategy([f"cpu:{i}" for i in range(4)], min_size=8),
}
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adam": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5),
    "accumulating": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), dynamic_growth_steps=2),
}


def data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(0).normal(size=(rows, FEATURES)).astype("f"), np.arange(rows) % CLASSES


def train(strategy: Any, steps: int, *, rows: int = 22, optimizer: str = "adam", remat: bool = False) -> Any:
    """Train one epoch. Return the losses, the predictions of the last step, the metric and the weights."""
    keras.utils.set_random_seed(0)
    with strategy.scope(), keras.RematScope(mode="full" if remat else None):
        inner = layers.Dense(16, activation="gelu", kernel_regularizer="l2")
        model = keras.Sequential([keras.Input((FEATURES,)), inner, layers.Dense(CLASSES)])
        update, accuracy = OPTIMIZERS[optimizer](), keras.metrics.SparseCategoricalAccuracy()

    def loss_of(x: Any, y: Any) -> Any:
        outputs = model(x, training=True)
        accuracy.update_state(y, outputs)
        loss = replicant.compute_average_loss(LOSS(y, outputs), global_batch_size=BATCH)
        loss += replicant.scale_regularization_loss(sum(model.losses))
        return update.scale_loss(loss), {"outputs": outputs, "name": "kept"}

    gradients_of = replicant.value_and_grad(loss_of, model.trainable_variables, has_aux=True, accumulate_steps=steps)

    def step(batch: Any) -> Any:
        (loss, aux), gradients = gradients_of(*batch)
        assert aux["name"] == "kept"
        update.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss, aux["outputs"]

    losses, outputs = [], None
    for batch in strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(data(rows)).batch(BATCH)):
        loss, outputs = strategy.run(step, args=(batch,))
        losses.append(float(strategy.reduce("SUM", loss, axis=None)))
    return losses, np.asarray(strategy.gather(outputs, axis=0)), float(accuracy.result()), model.get_weights()


def check_equal(found: Any, wanted: Any) -> None:
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.cases("3-mirrored")
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("steps", [2, 3, 100])
def test_it_gives_the_numbers_of_whole_batches(name: str, steps: int) -> None:
    """Of 22 rows, batches have 8, 8 and 6. Of the last one, a replica has fewer rows than others, or none."""
    check_equal(train(STRATEGIES[name](), steps), train(STRATEGIES["one device"](), 1))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3, 9])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["fused", "four"])
def test_any_number_of_rows_and_all_optimizers(name: str, optimizer: str, rows: int) -> None:
    found = train(STRATEGIES[name](), 2, rows=rows, optimizer=optimizer)
    check_equal(found, train(STRATEGIES["one device"](), 1, rows=rows, optimizer=optimizer))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mirrored", "fully sharded"])
def test_with_rematerialized_layers(name: str) -> None:
    check_equal(train(STRATEGIES[name](), 2, remat=True), train(STRATEGIES["one device"](), 1))


def test_parameters_as_the_first_argument() -> None:
    def loss_of(weights: Any, x: Any, scale: Any) -> Any:
        return replicant.compute_average_loss(jnp.tanh(x @ weights["w"]) ** 2, global_batch_size=7) * scale

    weights, x = {"w": jnp.linspace(-1, 1, FEATURES)}, jnp.asarray(data(7)[0])
    wanted = jax.value_and_grad(loss_of)(weights, x, 3.0)
    check_equal(replicant.value_and_grad(loss_of, accumulate_steps=3)(weights, x, 3.0), wanted)
    check_equal(jax.jit(replicant.value_and_grad(loss_of, accumulate_steps=7))(weights, x, scale=3.0), wanted)


def test_sums_of_16_bit_gradients_keep_small_parts() -> None:
    """Adding 1/256 to 1 in bfloat16 changes nothing. 257 parts make 2."""
    x = jnp.concatenate([jnp.ones(1), jnp.full(256, 1 / 256)]).astype("bfloat16")
    value, gradient = replicant.value_and_grad(lambda w, x: jnp.sum(w * x), accumulate_steps=257)(jnp.ones((), "bfloat16"), x)
    assert (value.dtype, gradient.dtype) == ("bfloat16", "bfloat16")
    assert (float(value), float(gradient)) == (2, 2)


def test_without_a_count_the_mean_is_over_all_rows() -> None:
    strategy = STRATEGIES["mirrored"]()
    found = replicant.value_and_grad(lambda w, x: replicant.compute_average_loss(w * x), accumulate_steps=2)
    batch = next(iter(strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(np.arange(8.0, dtype="f")).batch(8))))
    value, gradient = strategy.run(lambda x: found(jnp.float32(2), x), args=(batch,))
    assert float(strategy.reduce("SUM", value, axis=None)) == 7
    assert float(strategy.reduce("SUM", gradient, axis=None)) == 3.5


def test_layers_draw_for_each_micro_batch() -> None:
    with replicant.OneDeviceStrategy("cpu:0").scope() as strategy:
        drop, weight = layers.Dropout(0.5, seed=1), replicant.Variable(jnp.ones(64))
    gradients_of = replicant.value_and_grad(lambda x: jnp.sum(drop(weight * x, training=True)), weight, accumulate_steps=4)
    before = np.asarray(drop.seed_generator.state)
    _, gradient = strategy.run(gradients_of, args=(jnp.ones((4, 64)),))
    assert set(np.asarray(gradient)) == {0, 2, 4, 6, 8}
    once = keras.random.SeedGenerator(1)
    for _ in range(4):
        once.next()
    assert not np.array_equal(before, drop.seed_generator.state)
    np.testing.assert_array_equal(once.state, drop.seed_generator.state)


def test_batch_normalization_is_told() -> None:
    with replicant.OneDeviceStrategy("cpu:0").scope() as strategy:
        normal = layers.BatchNormalization(name="normal")
        normal.build((None, FEATURES))
    gradients_of = replicant.value_and_grad(lambda x: jnp.sum(normal(x, training=True) ** 3), normal.gamma, accumulate_steps=2)
    with pytest.warns(ReductionWarning, match=r"'normal' normalizes each micro-batch by its own statistics \(accumulate_steps\)"):
        strategy.run(gradients_of, args=(data(8)[0],))
    mean = np.zeros(FEATURES)
    for part in (data(8)[0][:4], data(8)[0][4:]):
        mean = 0.99 * mean + 0.01 * part.mean(0)
    np.testing.assert_allclose(normal.moving_mean, mean, rtol=1e-5)


# What is in the compiled program.


def program(strategy: Any, steps: int, *, rows: int = 32) -> Any:
    """Return the compiled program of one step: of a model with a frozen layer and a trained one."""
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((FEATURES,)), *[layers.Dense(64, activation="tanh") for _ in range(4)], layers.Dense(CLASSES)]
        )
        model.layers[1].trainable = False
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

    def loss_of(x: Any, y: Any) -> Any:
        return replicant.compute_average_loss(LOSS(y, model(x, training=True)), global_batch_size=rows)

    gradients_of = replicant.value_and_grad(loss_of, model.trainable_variables, accumulate_steps=steps)

    def step(batch: Any) -> None:
        optimizer.apply_gradients(zip(gradients_of(*batch)[1], model.trainable_variables, strict=True))

    compiled: list[Any] = []
    compile_it = jax.stages.Lowered.compile

    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        compiled.append(compile_it(self, *args, **kwargs))
        return compiled[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", noting)
        strategy.memory(step, data(rows))
    return compiled[-1]


@pytest.mark.cases("fully sharded")
@pytest.mark.parametrize("name", ["mirrored", "fully sharded"])
def test_replicas_exchange_gradients_once(name: str) -> None:
    text = program(STRATEGIES[name](), 4).as_text()
    assert "tanh" in in_loops(text)
    assert sums_of(text)
    assert not sums_of(in_loops(text))
    if name == "fully sharded":
        assert in_loops(text).count(" all-gather") >= 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one device", "mirrored", "fully sharded"])
def test_it_takes_the_memory_of_one_micro_batch(name: str) -> None:
    needed = [program(STRATEGIES[name](), steps, rows=8192).memory_analysis().temp_size_in_bytes for steps in (1, 16)]
    assert needed[1] < 0.3 * needed[0]


# What is refused.


def by_mean(w: Any, x: Any) -> Any:
    return jnp.mean(w * x)


def by_mean_of_all(w: Any, x: Any) -> Any:
    return jnp.mean(w * jnp.stack([x, x], axis=1)) * 2.0


def by_penalty(w: Any, x: Any) -> Any:
    return jnp.sum(w * x) + 0.1 * w**2


def by_constant(w: Any, x: Any) -> Any:
    return jnp.sum(w * x) + 1.0


def by_weights(w: Any, x: Any) -> Any:
    return jnp.sum(w * x) / jnp.sum(x)


def by_mean_by_k(w: Any, x: Any) -> Any:
    return jnp.mean(w * x) / 4  # right only if all micro-batches have equally many rows


def by_half_of_mean(w: Any, x: Any) -> Any:
    return 0.25 * jnp.mean(w * x)


def by_mean_of_means(w: Any, x: Any) -> Any:
    return jnp.mean(jnp.mean(w * jnp.stack([x] * 4, axis=1), axis=1))


def by_keras_mean(w: Any, x: Any) -> Any:
    return keras.ops.mean(keras.losses.mean_squared_error(jnp.stack([x] * 4, axis=1), w * jnp.ones((len(x), 4))))


def by_keras_loss(w: Any, x: Any) -> Any:
    return keras.losses.MeanSquaredError()(jnp.stack([x] * 4, axis=1), w * jnp.ones((len(x), 4)))


def by_sum_of_stack(w: Any, x: Any) -> Any:
    return keras.ops.sum([jnp.sum(w * x), 0.1 * w**2])


WRONG = {
    by_weights: "The loss is divided by a number that is computed from the rows of a micro-batch, and the losses of 4",
    by_mean: "This mean is taken over the rows of one micro-batch, but the losses of 4 micro-batches are added up, whatever number "
    "of rows each has. Write replicant.compute_average_loss",
    by_mean_of_all: "This mean is taken over the rows of one micro-batch",
    by_mean_by_k: "This mean is taken over the rows of one micro-batch",
    by_half_of_mean: "This mean is taken over the rows of one micro-batch",
    by_mean_of_means: "This mean is taken over the rows of one micro-batch",
    by_keras_mean: "This mean is taken over the rows of one micro-batch",
    by_keras_loss: "This mean is taken over the rows of one micro-batch",
    by_sum_of_stack: "A term of the loss does not depend on the rows of the micro-batch",
    by_penalty: "A term of the loss does not depend on the rows of the micro-batch, and is added once for each of 4 micro-batches.",
    by_constant: "A term of the loss does not depend on the rows of the micro-batch",
}


@pytest.mark.parametrize("fn", WRONG, ids=lambda fn: fn.__name__)
def test_losses_that_do_not_add_up_are_refused(fn: Any) -> None:
    with pytest.raises(ReductionError, match=WRONG[fn]) as told:
        replicant.value_and_grad(fn, accumulate_steps=4)(jnp.float32(1), jnp.arange(8.0))
    if fn is not by_constant:
        assert "test_accumulate.py:" in str(told.value)


@pytest.mark.parametrize(
    "fn",
    [
        lambda w, x: jnp.sum(w * x) / 8,
        lambda w, x: replicant.compute_average_loss(w * x, global_batch_size=2) / 4,
        lambda w, x: jnp.sum(jnp.mean(w * jnp.stack([x] * 3, axis=1), axis=1)) / 8,
        lambda w, x: jnp.sum(w * x + 1.0) / 8 - 1.0 * jnp.sum(jnp.where(x < 9, 1.0, w)) / 8,
        lambda w, x: jnp.sum(w * x) / 8 + replicant.scale_regularization_loss(0.0 * w),
    ],
    ids=["sum", "count of a micro-batch by k", "mean of columns", "constants in sums", "penalty"],
)
def test_losses_that_add_up_are_not(fn: Any) -> None:
    value, gradient = replicant.value_and_grad(fn, accumulate_steps=4)(jnp.float32(1), jnp.arange(8.0))
    np.testing.assert_allclose([value, gradient], [3.5, 3.5], rtol=1e-6)


def test_a_function_for_one_number_of_rows_is_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"needs a function that takes any number of rows. This one took 2, .* with 4 it raised"
    ):
        replicant.value_and_grad(lambda w, x: jnp.sum(w * x.reshape(2)), accumulate_steps=4)(jnp.float32(1), jnp.arange(8.0))


@pytest.mark.parametrize("factor", [0.5, 0.125, 1 / 3])
def test_factors_that_look_like_divisors_by_rows_are_factors(factor: float) -> None:
    summed = replicant.value_and_grad(lambda w, x: factor * jnp.sum(w * x), accumulate_steps=4)
    np.testing.assert_allclose(summed(jnp.float32(1), jnp.arange(8.0))[1], factor * 28.0, rtol=1e-6)


def test_arguments_are_checked() -> None:
    with pytest.raises(ArgumentError, match="value_and_grad: accumulate_steps must be at least 1; got 0"):
        replicant.value_and_grad(by_mean, accumulate_steps=0)
    with pytest.raises(ArgumentTypeError, match=r"value_and_grad: accumulate_steps must be an int, .*; got True of type bool"):
        replicant.value_and_grad(by_mean, accumulate_steps=True)
    with pytest.raises(ArgumentError, match=r"need equally many: args\[0\] has 8, kwargs\['y'\] has 3"):
        replicant.value_and_grad(lambda w, x, y: w, accumulate_steps=2)(jnp.float32(1), jnp.arange(8.0), y=jnp.arange(3.0))
    with pytest.raises(ArgumentError, match=r"none of them is an array with rows\. Pass the batch as an argument"):
        replicant.value_and_grad(by_mean, accumulate_steps=2)(jnp.float32(1), 2.0)


def test_results_are_checked() -> None:
    with pytest.raises(ArgumentError, match=r"must return a scalar loss; got an array of shape \(2,\)"):
        replicant.value_and_grad(lambda w, x: w * x, replicant.Variable(1.0), accumulate_steps=4)(2.0, jnp.arange(8.0))
    with pytest.raises(
        ArgumentError, match=r"but one has shape \(\) where the micro-batch has 2 rows. Return one entry per example"
    ):
        replicant.value_and_grad(lambda w, x: (jnp.sum(w * x), w), has_aux=True, accumulate_steps=4)(
            jnp.float32(1), jnp.arange(8.0)
        )


def test_variables_of_replicant_are_assigned_in_each_micro_batch() -> None:
    seen, weight = replicant.Variable(0.0, name="seen"), replicant.Variable(1.0)

    def loss_of(x: Any) -> Any:
        seen.assign_add(jnp.sum(x))
        return jnp.sum(weight * x)

    replicant.value_and_grad(loss_of, weight, accumulate_steps=2)(jnp.arange(8.0))
    assert float(seen) == 28.0


def test_a_counted_size_and_a_short_last_step() -> None:
    """Replicas with 3 and 2 rows divide by a number of rows that they count themselves, and that may be 0."""

    def values(strategy: Any) -> list[float]:
        def step(x: Any) -> Any:
            rows = replicant.get_replica_context().all_reduce("SUM", jnp.asarray(x.shape[0]))

            def loss(w: Any, x: Any) -> Any:
                return replicant.compute_average_loss((w * x) ** 2, global_batch_size=rows)

            return replicant.value_and_grad(loss, accumulate_steps=2)(jnp.float32(2), x)[0]

        batches = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(np.arange(13.0, dtype="f")).batch(5))
        return [float(strategy.reduce("SUM", strategy.run(step, args=(batch,)), axis=None)) for batch in batches]

    two = replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=False)
    np.testing.assert_allclose(values(two), [24.0, 204.0, 4 * 365 / 3], rtol=1e-5)
    np.testing.assert_allclose(values(two), values(replicant.MirroredStrategy(["cpu:0"])), rtol=1e-6)


def test_clipping_by_norms_under_a_model_axis_is_no_sum_twice(recwarn: Any) -> None:
    strategy = replicant.FullyShardedStrategy([f"cpu:{i}" for i in range(4)], min_size=4, model_parallel_size=2)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(4)])
        optimizer = keras.optimizers.Adam(0.01, clipnorm=0.1)

    def step(x: Any) -> None:
        def loss(x: Any) -> Any:
            return replicant.compute_average_loss(jnp.sum(model(x) ** 2, axis=1), global_batch_size=8)

        _, gradients = replicant.value_and_grad(loss, model.trainable_variables)(x)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for batch in strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(np.ones((8, 4), "f")).batch(8)):
        strategy.run(step, args=(batch,))
    assert [str(each.message) for each in recwarn if issubclass(each.category, ReductionWarning)] == []
