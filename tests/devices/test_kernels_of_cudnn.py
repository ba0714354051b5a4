"""Steps with cuDNN's attention and LSTM, as on GPUs: each device gets its own rows, and the results are those of one device.

Virtual devices compute what the kernels compute. JAX and XLA divide them among the devices as on GPUs.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant import kernels
from replicant.data import Dataset
from replicant.keras.cpu import _recurrent

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import _gpu
import gpu_lowering

BATCHES = (8, 5)  # rows; the second batch does not divide evenly
LENGTH, CLASSES = gpu_lowering.LENGTH, 10
RNG = np.random.default_rng(0)
X = RNG.integers(0, gpu_lowering.VOCABULARY, (sum(BATCHES), LENGTH)).astype(np.int32)
Y = RNG.integers(0, CLASSES, sum(BATCHES)).astype(np.int32)


@pytest.fixture
def rows_of_kernels() -> Iterator[set[int]]:
    """The numbers of rows that each device's kernels were given, on a machine that says that it has GPUs."""
    with _gpu.as_on_a_gpu(), _gpu.kernels_on_cpu() as rows, kernels.disabled("lstm"):  # the devices are CPUs all the same
        yield rows


@pytest.fixture
def policy(request: pytest.FixtureRequest) -> Iterator[None]:
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_global_policy(request.param)
    yield
    keras.mixed_precision.set_global_policy(before)


def classifier(name: str) -> keras.Model:
    keras.utils.set_random_seed(1)
    return gpu_lowering.MODELS[name][0]()


def fitted(name: str, num_replicas: int) -> np.ndarray:
    strategy = strategy_of(num_replicas)
    with strategy.scope():
        model: Any = classifier(name)
        model.compile(keras.optimizers.SGD(0.5, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return np.array(model.fit(X, Y, batch_size=BATCHES[0], epochs=3, shuffle=False, verbose=0).history["loss"])


def looped(name: str, num_replicas: int) -> np.ndarray:
    strategy = strategy_of(num_replicas)
    with strategy.scope():
        model, optimizer = classifier(name), keras.optimizers.SGD(0.5, momentum=0.9)
        losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(x: Any, y: Any) -> Any:
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss(losses(y, model(x, training=True)), global_batch_size=BATCHES[0])
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    @replicant.function
    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch))

    batches = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices((X, Y)).batch(BATCHES[0]).repeat(2))
    return np.array([float(step(batch)) for batch in batches])


def strategy_of(num_replicas: int) -> Any:
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])


# model, how it trains, replicas, dtype policy, tolerance, the rows that each device's kernels are given. A replica with 2 of 5 rows
# and one with 3 compute both in a custom loop, and in `fit` each device computes all 5.
CASES = [
    ("masked transformer", fitted, 2, "mixed_bfloat16", 1e-2, {4, 5}),
    ("masked transformer", looped, 2, "mixed_bfloat16", 1e-2, {4, 2, 3}),
    ("LSTM", fitted, 2, "float32", 1e-5, {4, 5}),
    ("LSTM", fitted, 6, "float32", 1e-5, {4, 5}),  # 8 rows are cut two ways, and repeated on the other devices
    ("LSTM", looped, 2, "float32", 1e-5, {4, 2, 3}),
    ("bidirectional LSTM", fitted, 4, "float32", 1e-5, {2, 5}),
    ("LSTM", fitted, 2, "mixed_bfloat16", 1e-2, set()),  # cuDNN has no such LSTM
    ("LSTM", looped, 2, "mixed_bfloat16", 1e-2, set()),
]


CASE_NAMES = [f"{name}-{train.__name__}-{n}-{dtype}" for name, train, n, dtype, _, _ in CASES]


@pytest.mark.cases("LSTM-fitted-2-float32")
@pytest.mark.parametrize(("policy", "case"), [(case[3], case) for case in CASES], indirect=["policy"], ids=CASE_NAMES)
@pytest.mark.long
def test_kernels_compute_each_devices_own_rows(policy: None, case: Any, rows_of_kernels: set[int]) -> None:
    name, train, num_replicas, _, tolerance, rows = case
    expected = train(name, 1)
    assert rows_of_kernels == (set(BATCHES) if rows else set())
    rows_of_kernels.clear()
    np.testing.assert_allclose(train(name, num_replicas), expected, rtol=tolerance)
    assert rows_of_kernels == rows


@pytest.mark.parametrize("policy", ["mixed_bfloat16"], indirect=True)
def test_an_lstm_that_asks_for_cudnn_in_bfloat16_is_told_that_there_is_none(policy: None, rows_of_kernels: set[int]) -> None:
    strategy = strategy_of(2)
    with strategy.scope():
        layer = keras.layers.LSTM(3, use_cudnn=True)
        layer.build((None, 4, 2))
    with pytest.raises(ValueError, match="cuDNN is not supported for this layer configuration"):
        strategy.run(lambda: layer(np.zeros((2, 4, 2), np.float32)))
    assert rows_of_kernels == set()
    with _recurrent.in_global_view(strategy.placement), pytest.raises(NotImplementedError) as error:
        _recurrent.lstm(lambda inputs: inputs, jnp.zeros((2, 4, 2), jnp.bfloat16))
    assert str(error.value) == "cuDNN's LSTM has no 16-bit floats in JAX"
