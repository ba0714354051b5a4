"""The kernel "flat_update" updates variables with short rows to the bits that Keras computes, and leaves all others to Keras."""

from typing import Any, cast

import jax
import keras
import numpy as np
import pytest

import replicant
from replicant import kernels
from replicant.keras.optimizers import _flat_update

RNG = np.random.default_rng(0)
SHAPES = ((2048, 16), (2000, 2, 6), (1024, 31), (2048, 8), (1024, 32), (40, 16), (40_000,))
SHORT = SHAPES[:3]
DECAY = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
GRADIENTS = [[RNG.normal(size=shape).astype(np.float32) for shape in SHAPES] for _ in range(4)]


@pytest.fixture
def updated(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the variables that the kernel updates, in each trace."""
    shapes: list[tuple[int, ...]] = []
    original = _flat_update._update_flat

    def noted(optimizer: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
        shapes.append(tuple(variable.shape))
        original(optimizer, gradient, variable, learning_rate)

    monkeypatch.setattr(_flat_update, "_update_flat", noted)
    return shapes


def trained(optimizer: Any, strategy: Any, dtype: str = "float32") -> list[np.ndarray]:
    """All variables, those of the optimizer too, after some updates with the same gradients on each replica."""
    with strategy.scope():
        variables = [keras.Variable(np.linspace(-1, 1, int(np.prod(s))).reshape(s), dtype=dtype) for s in SHAPES]
        optimizer.build(variables)

    def replica_fn(gradients: Any) -> None:
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    @replicant.function
    def step(gradients: Any) -> None:
        strategy.run(replica_fn, args=(gradients,))

    for gradients in GRADIENTS:
        step([g.astype(dtype) for g in gradients])
    return [np.asarray(v.value) for v in (*variables, *optimizer.variables)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.Adam(0.1),
        lambda: keras.optimizers.Adam(0.1, amsgrad=True, clipnorm=0.5, use_ema=True, ema_overwrite_frequency=3),
        lambda: keras.optimizers.Adam(cast("Any", DECAY), gradient_accumulation_steps=2),
        lambda: keras.optimizers.AdamW(0.1, weight_decay=0.1),
    ],
    ids=["adam", "amsgrad-clip-ema", "schedule-accumulation", "adamw"],
)
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.long_cases(
    "1-adam", "1-adamw", "1-amsgrad-clip-ema", "1-schedule-accumulation", "2-adamw", "2-amsgrad-clip-ema", "2-schedule-accumulation"
)
def test_variables_and_slots_have_the_bits_that_keras_computes(make: Any, replicas: int, updated: list[Any]) -> None:
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(replicas)], fuse_replicas=replicas > 1)
    found = trained(make(), strategy)
    assert sorted(set(updated)) == sorted(SHORT)
    updated.clear()
    with kernels.disabled("flat_update"):
        expected = trained(make(), strategy)
    assert updated == []
    for a, b in zip(found, expected, strict=True):
        if jax.__version_info__ >= (0, 12):
            np.testing.assert_array_equal(a, b)
        else:  # XLA rounds a product and a sum at once in one of the two loops
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


class OwnAdam(keras.optimizers.Adam):
    """An optimizer whose update looks at whole rows."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        rows: Any = keras.ops.max(keras.ops.abs(gradient), axis=-1, keepdims=True)
        super().update_step(gradient / (rows + 1), variable, learning_rate)


@pytest.mark.parametrize("make", [OwnAdam, keras.optimizers.SGD, keras.optimizers.Adafactor, keras.optimizers.Nadam])
@pytest.mark.long_cases("Adafactor")
def test_other_optimizers_are_left_to_keras(make: Any, updated: list[Any]) -> None:
    trained(make(0.1), replicant.MirroredStrategy(["cpu:0"]))
    assert updated == []


@pytest.mark.long
def test_other_dtypes_are_left_to_keras(updated: list[Any]) -> None:
    trained(keras.optimizers.Adam(0.1), replicant.MirroredStrategy(["cpu:0"]), "bfloat16")
    assert updated == []


@pytest.mark.long
def test_variables_on_several_devices_are_left_to_keras(updated: list[Any]) -> None:
    trained(keras.optimizers.Adam(0.1), replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=False))
    assert updated == []


@pytest.mark.long
def test_fit_uses_the_kernel_and_trains_as_without(updated: list[Any]) -> None:
    x = RNG.integers(0, 2048, 64).astype(np.int32)
    y = RNG.normal(size=(64, 1)).astype(np.float32)

    def weights() -> list[np.ndarray]:
        keras.utils.set_random_seed(0)
        with replicant.MirroredStrategy(["cpu:0"]).scope():
            model = keras.Sequential([keras.Input((), dtype="int32"), keras.layers.Embedding(2048, 16), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        model.fit(x, y, batch_size=16, epochs=2, verbose=cast("Any", 0))
        return model.get_weights()

    found = weights()
    assert set(updated) == {(2048, 16)}
    with kernels.disabled("flat_update"):
        expected = weights()
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
