"""Mixed precision under a strategy, in custom loops and in ``fit``.

Weights and losses are of float32, but layers compute in 16 bits. How much two runs may differ: a number in bfloat16 has 8
significant bits, so rounding changes it by up to 2**-9 of itself, and one in float16 by up to 2**-12. One device multiplies the
rows of the whole batch at once, and replicas their own rows, so the sum of products that makes a gradient of a weight is rounded
to 16 bits once, or once for each replica. A gradient of n rounded parts has an error of up to n * 2**-9 of the largest part (2**-12
for float16), which shifts a weight by that times the learning rate in each step. Compared with one device, each step of SGD may
therefore move a weight by RATE * n * 2**-9 * LARGEST away. Compared with one device that computes the same parts in the same order,
all is as exact as in float32: that is the second test.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant.data import Dataset

FEATURES, CLASSES, ROWS, BATCH, RATE = 6, 4, 32, 8, 0.1
ROUNDING = {"mixed_bfloat16": 2.0**-9, "mixed_float16": 2.0**-12}
LARGEST = 2.0  # no gradient of these programs is larger
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
MEAN_LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
DEVICES = [f"cpu:{i}" for i in range(4)]
STRATEGIES: dict[str, Callable[[], Any]] = {
    "fused 2": lambda: replicant.MirroredStrategy(DEVICES[:2]),
    "mirrored 2": lambda: replicant.MirroredStrategy(DEVICES[:2], fuse_replicas=False),
    "mirrored 4": lambda: replicant.MirroredStrategy(DEVICES, fuse_replicas=False),
    "fully sharded 2": lambda: replicant.FullyShardedStrategy(DEVICES[:2], min_size=8),
    "fully sharded 4": lambda: replicant.FullyShardedStrategy(DEVICES, min_size=8),
}


def data(overflows: dict[int, float] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return features and labels. `overflows` multiplies some rows."""
    x = np.random.default_rng(0).normal(size=(ROWS, FEATURES)).astype("f")
    for row, factor in (overflows or {}).items():
        x[row] *= factor
    return x, np.arange(ROWS) % CLASSES


def make(policy: str, growth: int) -> tuple[Any, Any]:
    """Return a model and an optimizer, with a loss scale in float16."""
    keras.utils.set_random_seed(3)
    inner = [keras.layers.Dense(16, activation="relu", dtype=policy), keras.layers.Dense(CLASSES, dtype=policy)]
    model, optimizer = (
        keras.Sequential([keras.Input((FEATURES,)), *inner, keras.layers.Activation("linear", dtype="float32")]),
        None,
    )
    optimizer = keras.optimizers.SGD(RATE)
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**8, dynamic_growth_steps=growth)
    return model, optimizer


def scale_of(optimizer: Any) -> float:
    return float(optimizer.dynamic_scale.numpy()) if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else 1.0


def loop(strategy: Any, policy: str, rows: Any, *, parts: int = 1, growth: int = 3, steps: int = 1) -> Any:
    """Train one epoch. Return the loss scale and the weights after each step.

    With `parts`, a replica computes the gradients of so many parts of its rows, and adds them up.
    """
    with strategy.scope():
        model, optimizer = make(policy, growth)

    def loss_of(x: Any, y: Any) -> Any:
        return optimizer.scale_loss(replicant.compute_average_loss(LOSS(y, model(x, training=True)), global_batch_size=BATCH))

    gradients_of = replicant.value_and_grad(loss_of, model.trainable_variables, accumulate_steps=steps)

    def step(batch: Any) -> None:
        size = len(batch[1]) // parts
        found = [gradients_of(batch[0][i * size :][:size], batch[1][i * size :][:size])[1] for i in range(parts)]
        total = [sum(each[1:], start=each[0]) for each in zip(*found, strict=True)]
        optimizer.apply_gradients(zip(total, model.trainable_variables, strict=True))

    states = []
    for batch in strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(rows).batch(BATCH)):
        strategy.run(step, args=(batch,))
        states.append((scale_of(optimizer), model.get_weights()))
    return states


def fitted(strategy: Any, policy: str, rows: Any, *, growth: int = 3, steps: int = 1, per_execution: int = 1) -> Any:
    """Train one epoch with `fit`. Return the final loss scale and weights, and the loss."""
    with strategy.scope():
        model, optimizer = make(policy, growth)
        model.compile(optimizer, MEAN_LOSS, steps_per_execution=per_execution)
    replicant.keras.use_micro_batches(model, steps)
    history = model.fit(*rows, batch_size=BATCH, shuffle=False, verbose=0).history
    return scale_of(optimizer), model.get_weights(), history["loss"][0]


def check_near(found: list[Any], wanted: list[Any], policy: str, num_parts: int) -> None:
    allowed = RATE * num_parts * ROUNDING[policy] * LARGEST * (ROWS // BATCH)
    for x, y in zip(found, wanted, strict=True):
        assert x.dtype == y.dtype == np.float32
        np.testing.assert_allclose(x, y, rtol=0, atol=allowed)


ONE = replicant.OneDeviceStrategy


@pytest.mark.cases("mixed_bfloat16-fully sharded 2")
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("policy", ROUNDING)
@pytest.mark.long
def test_a_loop_is_as_near_one_device_as_16_bits_allow(policy: str, name: str) -> None:
    strategy = STRATEGIES[name]()
    wanted = loop(ONE("cpu:0"), policy, data())
    found = loop(strategy, policy, data())
    assert [scale for scale, _ in found] == [scale for scale, _ in wanted]
    check_near(found[-1][1], wanted[-1][1], policy, strategy.num_replicas_in_sync)
    assert max(np.abs(x - y).max() for x, y in zip(found[-1][1], found[0][1], strict=True)) > 0.01  # it has learned


@pytest.mark.cases("mixed_float16-mirrored 2")
@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "fused 2"])
@pytest.mark.parametrize("policy", ROUNDING)
@pytest.mark.long
def test_a_loop_is_one_device_that_computes_the_same_parts(policy: str, name: str) -> None:
    strategy = STRATEGIES[name]()
    wanted = loop(ONE("cpu:0"), policy, data(), parts=strategy.num_replicas_in_sync)
    found = loop(strategy, policy, data())
    for (scale, weights), (wanted_scale, wanted_weights) in zip(found, wanted, strict=True):
        assert scale == wanted_scale
        for x, y in zip(weights, wanted_weights, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("policy", ROUNDING)
def test_fit_is_as_near_one_device_as_16_bits_allow(policy: str, name: str, steps: int) -> None:
    strategy = STRATEGIES[name]()
    wanted = fitted(ONE("cpu:0"), policy, data())
    found = fitted(strategy, policy, data(), steps=steps, per_execution=2)
    assert found[0] == wanted[0]
    check_near(found[1], wanted[1], policy, steps * strategy.num_replicas_in_sync)


def test_bfloat16_needs_no_loss_scale_and_float16_gets_one() -> None:
    """`compile` wraps the optimizer as Keras does, and replicas agree on its scale."""
    for policy, wrapped in (("mixed_bfloat16", False), ("mixed_float16", True)):
        before = keras.mixed_precision.dtype_policy()
        keras.mixed_precision.set_dtype_policy(policy)
        try:
            with STRATEGIES["fully sharded 2"]().scope():
                model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
                model.compile("sgd", MEAN_LOSS)
        finally:
            keras.mixed_precision.set_dtype_policy(before)
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) is wrapped


# Overflows: in the second of four batches, two rows of the first replica are so large that its gradients are not finite in float16.
# The others would go on. The scale begins at 256, is halved after that step, and doubled after two good ones.
ALONE = {BATCH: 2.0**13, BATCH + 1: -(2.0**13)}
SCALES = [256.0, 128.0, 128.0, 256.0]


@pytest.mark.cases("fully sharded 4")
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.long
def test_if_one_replica_overflows_all_skip_the_step(name: str) -> None:
    strategy = STRATEGIES[name]()
    found, wanted = (loop(each, "mixed_float16", data(ALONE), growth=2) for each in (strategy, ONE("cpu:0")))
    assert [scale for scale, _ in found] == [scale for scale, _ in wanted] == SCALES
    for x, y in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_array_equal(x, y)  # the second step changes nothing
    check_near(found[-1][1], wanted[-1][1], "mixed_float16", strategy.num_replicas_in_sync)
    assert all(np.isfinite(x).all() for x in found[-1][1])


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("name", STRATEGIES)
def test_an_overflow_in_fit(name: str, steps: int) -> None:
    found, wanted = fitted(STRATEGIES[name](), "mixed_float16", data(ALONE), growth=2, steps=steps), None
    wanted = fitted(ONE("cpu:0"), "mixed_float16", data(ALONE), growth=2)
    assert found[0] == wanted[0] == SCALES[-1]
    check_near(found[1], wanted[1], "mixed_float16", 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_an_overflow_in_one_micro_batch_skips_the_step(name: str) -> None:
    found = loop(STRATEGIES[name](), "mixed_float16", data(ALONE), growth=2, steps=2)
    assert [scale for scale, _ in found] == SCALES
    for x, y in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_array_equal(x, y)


def test_replicas_hold_the_same_scale() -> None:
    strategy = STRATEGIES["mirrored 4"]()
    with strategy.scope():
        model, optimizer = make("mixed_float16", 2)
    optimizer.build(model.trainable_variables)
    seen = []
    for row in range(4):  # only replica `row` overflows
        grads = jnp.where(jnp.arange(4)[:, None] == row, jnp.inf, jnp.ones((4, 1)))
        each = strategy.experimental_distribute_values_from_function(
            lambda context, grads=grads: np.asarray(grads[int(context.replica_id_in_sync_group)])
        )

        def step(factor: Any) -> Any:
            optimizer.apply_gradients([(jnp.ones(v.shape) * factor, v) for v in model.trainable_variables])
            return optimizer.dynamic_scale.value + 0.0

        seen.append([float(x) for x in strategy.experimental_local_results(strategy.run(step, args=(each,)))])
    assert seen == [[256.0 / 2**i] * 4 for i in range(1, 5)] or seen == [[256.0 / 2**i] for i in range(1, 5)]
