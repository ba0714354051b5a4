"""What variables in slices cost: the bytes that each device keeps, and all exchanges of a compiled step."""

import gc
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
import pytest

import replicant
from replicant.data import Dataset
from replicant.plan._chips import parse_target
from replicant.plan._compile import find_step
from replicant.plan._exchanges import Exchange, exchanges_in
from replicant.replicas._placement import Placement

LAYERS, WIDTH, HEADS, LENGTH, WORDS = 4, 128, 2, 8, 256
ROWS = 2  # of each replica
FLOAT = 4  # bytes


def transformer() -> keras.Model:
    layers = keras.layers
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, WIDTH)(tokens)
    for _ in range(LAYERS):
        normal = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(normal, normal, use_causal_mask=True)
        x = x + layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, activation="gelu")(layers.LayerNormalization()(x)))
    return keras.Model(tokens, layers.Dense(WORDS)(layers.LayerNormalization()(x)))


def mlp() -> keras.Model:
    sizes = (40, 24, 8)  # so that bytes tell which weight is gathered
    return keras.Sequential([keras.Input((64,)), *[keras.layers.Dense(size, activation="tanh") for size in sizes]])


def texts(rows: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((rows, LENGTH), "int32"), np.zeros((rows, LENGTH), "int32")


def numbers(rows: int) -> tuple[np.ndarray, np.ndarray]:
    return np.ones((rows, 64), "f"), np.ones((rows, 8), "f")


def fit(strategy: Any, make_model: Callable[[], Any], data: Any, loss: Any, metrics: Any = None) -> Any:
    """Take one step of ``fit``, and return what holds its state."""
    with strategy.scope():
        model = make_model()
        model.compile(keras.optimizers.Adam(), loss(), metrics=metrics)
    rows = ROWS * strategy.num_replicas_in_sync
    model.fit(*data(rows), batch_size=rows, verbose=0)
    return model


def loop(strategy: Any, make_model: Callable[[], Any], data: Any, loss: Any, metrics: Any = None) -> Any:
    """Take one step of a custom loop, and return what holds its state."""
    rows = ROWS * strategy.num_replicas_in_sync
    with strategy.scope():
        model, optimizer, losses = make_model(), keras.optimizers.Adam(), loss(reduction="none")

    def step(x: Any, y: Any) -> Any:
        with replicant.GradientTape() as tape:
            each = keras.ops.reshape(losses(y, model(x, training=True)), (ROWS, -1))
            total = replicant.compute_average_loss(keras.ops.mean(each, axis=-1), global_batch_size=rows)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(total, variables), variables, strict=True))
        return total

    train = replicant.function(lambda batch: strategy.reduce("SUM", strategy.run(step, args=batch)))
    for batch in strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(data(rows)).batch(rows)):
        train(batch)
    return model, optimizer, train


# Bytes at rest


def live_bytes(make: Callable[[], Any]) -> list[int]:
    """Return, for each device, the bytes of all arrays that are left after `make`, as long as its result is there."""
    gc.collect()
    before = jax.live_arrays()
    known = set(map(id, before))
    kept = make()
    gc.collect()
    held: Counter[int] = Counter()
    for array in jax.live_arrays():
        if id(array) not in known:
            for shard in array.addressable_shards:
                held[shard.device.id] += shard.data.nbytes
    assert kept is not None
    assert len(before) == len(known)
    return [held[device] for device in sorted(held)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train", "n"), [pytest.param(loop, 2, id="loop-2"), pytest.param(fit, 4, id="fit-4"), pytest.param(loop, 8, id="loop-8")]
)
def test_each_device_keeps_its_share_of_a_transformer(train: Any, n: int) -> None:
    devices = [f"cpu:{i}" for i in range(n)]

    def softmax(**options: Any) -> Any:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)

    def state(strategy: Any) -> list[int]:
        return live_bytes(lambda: train(strategy, transformer, texts, softmax))

    mirrored = state(replicant.MirroredStrategy(devices, fuse_replicas=False))
    sliced = state(replicant.FullyShardedStrategy(devices))
    weights = sum(math.prod(v.shape) for v in transformer().weights)
    assert len(sliced) == len(mirrored) == n
    assert 3 * FLOAT * weights <= min(mirrored)  # weights, and two moments of each
    assert max(sliced) <= 1.1 / n * min(mirrored)


# Exchanges


def exchanges(train: Any, metrics: Any = None) -> Counter[Exchange]:
    """Compile a step of the MLP for two devices, and return its exchanges."""

    def program() -> None:
        train(replicant.FullyShardedStrategy(min_size=100), mlp, numbers, keras.losses.MeanSquaredError, metrics)

    step = find_step(program, parse_target("cpu:2"))
    return Counter(exchanges_in(step.lower(Placement(tuple(jax.devices("cpu")[:2]))).compile().as_text()))


@pytest.mark.parametrize(
    ("train", "metrics", "scalars"),
    [(loop, None, 1), (fit, None, 1), (fit, ["mae"], 2), (fit, ["mae", "cosine_similarity"], 3)],
    ids=["loop", "fit", "a metric", "two metrics"],
)
@pytest.mark.long_cases("loop")
def test_a_step_gathers_in_each_direction_and_sums_once(train: Any, metrics: Any, scalars: int) -> None:
    first, second, third = 64 * 40, 40 * 24, 24 * 8
    gathers = {size * FLOAT: count for size, count in ((first, 1), (second, 2), (third, 2))}  # no gradient goes before the first
    # One sum of all gradients, also those of the small biases, and with it the loss and the metrics, of which each is one number.
    total = (first + second + third + 40 + 24 + 8 + scalars) * FLOAT
    found = exchanges(train, metrics)
    assert {x.num_bytes: count for x, count in found.items() if x.kind == "all-gather"} == gathers
    assert {(x.kind, x.num_bytes): count for x, count in found.items() if x.kind != "all-gather"} == {("all-reduce", total): 1}
