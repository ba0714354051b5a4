"""Optimizer state in slices, one per replica: the numbers of one device, at a share of the memory."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import replicant
from replicant.errors import ArgumentError

from ._sliced_training import BATCH, CLASSES, FEATURES, LOSS, MEAN_LOSS, OPTIMIZERS, ROWS, batches, data, step_of

RARE = {"adadelta", "adagrad", "adamax", "clipped values", "clipped norm", "lamb", "lion", "sgd", "sgd with momentum"}


def make_model(constraint: Any = None) -> keras.Model:
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(16, activation="tanh", kernel_constraint=constraint),
            keras.layers.Dense(CLASSES),  # its bias has 4 values: no slice of 8 replicas
        ]
    )


def custom_loop(strategy: Any, make_optimizer: Callable[[], Any], constraint: Any = None) -> tuple[list[np.ndarray], Any]:
    with strategy.scope():
        model, optimizer = make_model(constraint), make_optimizer()

    step = step_of(model, optimizer)
    for _ in range(2):
        for batch in batches(strategy):
            strategy.run(step, args=(batch,))
    return model.get_weights(), optimizer


def fit(strategy: Any, make_optimizer: Callable[[], Any]) -> tuple[list[np.ndarray], Any]:
    with strategy.scope():
        model = make_model()
        model.compile(make_optimizer(), MEAN_LOSS)
    model.fit(*data(), batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    return model.get_weights(), model.optimizer


def sharded(n: int) -> replicant.MirroredStrategy:
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(n)], shard_optimizer_state=True)


def values_per_device(optimizer: Any) -> list[int]:
    """Values of optimizer state on each device, but for single numbers such as the learning rate."""
    held: dict[Any, int] = {}
    for variable in (v for v in optimizer.variables if v.shape):
        for shard in variable._value.addressable_shards:
            held[shard.device] = held.get(shard.device, 0) + shard.data.size
    return [held[device] for device in sorted(held, key=lambda d: d.id)]


@pytest.mark.cases("custom_loop-global norm", "fit-adam")
@pytest.mark.parametrize(
    ("train", "name"),
    [
        *[pytest.param(custom_loop, name, marks=[pytest.mark.slow] if name in RARE else []) for name in OPTIMIZERS],
        (fit, "adam"),
        (fit, "global norm"),
        (fit, "accumulation"),
    ],
)
@pytest.mark.long_cases("custom_loop-global norm")
def test_weights_are_those_of_one_device(name: str, train: Any) -> None:
    expected, _ = train(replicant.OneDeviceStrategy("cpu:0"), OPTIMIZERS[name])
    weights, _ = train(sharded(2), OPTIMIZERS[name])
    for actual, wanted in zip(weights, expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.cases("3")
@pytest.mark.parametrize("n", [3, 8])
@pytest.mark.long
def test_ragged_steps_and_shapes_that_do_not_divide(n: int) -> None:
    expected, _ = custom_loop(replicant.OneDeviceStrategy("cpu:0"), OPTIMIZERS["adam"])
    for actual, wanted in zip(custom_loop(sharded(n), OPTIMIZERS["adam"])[0], expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_a_constraint_sees_the_whole_weight() -> None:
    constraint = keras.constraints.UnitNorm()
    expected, _ = custom_loop(replicant.OneDeviceStrategy("cpu:0"), OPTIMIZERS["adam"], constraint)
    for actual, wanted in zip(custom_loop(sharded(2), OPTIMIZERS["adam"], constraint)[0], expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5)


# Adam's two moments of a 6x16 and a 16x4 kernel, and of biases of 16 and 4.
@pytest.mark.cases("custom_loop-2-values0", "fit-8-values1")
@pytest.mark.parametrize(
    ("n", "values"),
    [
        (2, [2 * (48 + 8 + 32 + 2)] * 2),
        (8, [2 * (12 + 2 + 8 + 4)] * 8),  # the second bias is mirrored
    ],
)
@pytest.mark.parametrize("train", [custom_loop, fit])
@pytest.mark.long
def test_each_device_holds_its_slice(train: Any, n: int, values: list[int]) -> None:
    _, optimizer = train(sharded(n), OPTIMIZERS["adam"])
    assert values_per_device(optimizer) == values


@pytest.mark.slow
def test_the_state_itself_is_that_of_one_device() -> None:
    _, expected = custom_loop(replicant.OneDeviceStrategy("cpu:0"), OPTIMIZERS["adam"])
    _, optimizer = custom_loop(sharded(4), OPTIMIZERS["adam"])
    for actual, wanted in zip(optimizer.variables, expected.variables, strict=True):
        np.testing.assert_allclose(np.asarray(actual.value), np.asarray(wanted.value), rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_a_checkpoint_goes_on_with_another_number_of_slices(tmp_path: Any) -> None:
    _, optimizer = custom_loop(sharded(4), OPTIMIZERS["adam"])
    path = replicant.Checkpoint(optimizer=optimizer).save(str(tmp_path / "c"))
    with sharded(2).scope():
        model, restored = make_model(), keras.optimizers.Adam()
        restored.build(model.trainable_variables)
    replicant.Checkpoint(optimizer=restored).restore(path).assert_consumed()
    for actual, wanted in zip(restored.variables, optimizer.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(actual.value), np.asarray(wanted.value))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.both_ways
def test_gradients_travel_in_a_narrow_dtype(fuse_replicas: str, dtype: str) -> None:
    """One step of SGD at rate 1: the weights move by the sum of the rounded gradients of both replicas."""
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"], gradient_dtype=dtype)
    with strategy.scope():
        weight, optimizer = keras.Variable([0.0, 0.0]), keras.optimizers.SGD(1.0)
    rows = np.asarray([[1.001, 2.0], [3.003, 1e-3]], "float32")
    gradients = replicant.PerReplica.from_stacked(rows)
    strategy.run(lambda g: optimizer.apply([g], [weight]), args=(gradients,))
    narrow = np.dtype(dtype)
    np.testing.assert_array_equal(np.asarray(weight), -(rows[0].astype(narrow) + rows[1].astype(narrow)).astype("float32"))


@pytest.mark.long
def test_narrow_gradients_learn_as_well() -> None:
    def last_loss(**options: Any) -> float:
        strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"], **options)
        with strategy.scope():
            model, optimizer = make_model(), keras.optimizers.Adam(0.05)

        def step(x: Any, y: Any) -> Any:
            with replicant.GradientTape() as tape:
                loss = replicant.compute_average_loss(LOSS(y, model(x, training=True)), global_batch_size=ROWS)
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            return loss

        x, y = (replicant.PerReplica([half[: ROWS // 2], half[ROWS // 2 :]]) for half in data())
        losses = [float(strategy.reduce("SUM", strategy.run(step, args=(x, y)))) for _ in range(60)]
        assert losses[0] > 1.0
        return losses[-1]

    exact, narrow = last_loss(), last_loss(gradient_dtype="bfloat16")
    assert exact < 0.05
    assert narrow < 0.05


def test_fit_sums_gradients_itself() -> None:
    with replicant.MirroredStrategy(["cpu:0", "cpu:1"], gradient_dtype="bfloat16").scope():
        model = make_model()
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(
        ArgumentError, match=r"gradient_dtype='bfloat16', which only applies where the replicas sum their gradients"
    ):
        model.fit(*data(), verbose=0)


def test_a_dtype_that_is_not_narrow() -> None:
    with pytest.raises(ArgumentError, match=r"gradient_dtype must be one of \('bfloat16', 'float16'\) or None; got 'int8'"):
        replicant.MirroredStrategy(["cpu:0"], gradient_dtype="int8")


def test_sliced_and_fused_contradict_each_other() -> None:
    with pytest.raises(ArgumentError, match="fused replicas compute on one device"):
        replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=True, shard_optimizer_state=True)


@pytest.mark.long
def test_without_it_state_is_mirrored() -> None:
    _, optimizer = custom_loop(replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=False), OPTIMIZERS["adam"])
    assert values_per_device(optimizer) == [2 * (96 + 16 + 64 + 4)] * 2
