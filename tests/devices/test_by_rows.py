"""Steps that are cut by rows: the numbers of one device, and as few exchanges as the step needs."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from replicant.replicas._collectives import ALL, AXIS, MeshAxis
from replicant.replicas._placement import Placement
from replicant.tracing.replicas._batch_split import compute_by_rows, plan_by_rows

EXCHANGES = r" (all-reduce|all-gather|collective-permute|reduce-scatter|all-to-all)(?:-start)?\("
ROWS = 12
L = keras.layers
rng = np.random.default_rng(0)

FLAT = rng.normal(size=(ROWS, 6)).astype(np.float32)
IMAGES = rng.normal(size=(ROWS, 8, 8, 4)).astype(np.float32)
SERIES = rng.normal(size=(ROWS, 8, 3)).astype(np.float32)
WORDS = rng.integers(0, 20, (ROWS, 7))
LABELS = rng.integers(0, 4, ROWS)
DECAY: Any = keras.optimizers.schedules.CosineDecay(0.1, 10, warmup_target=0.2, warmup_steps=3)
WEIGHTS = rng.uniform(size=ROWS).astype(np.float32)


def attention():
    inputs = keras.Input((7,), dtype="int32")
    x = L.Embedding(20, 8)(inputs)
    x = L.LayerNormalization()(L.MultiHeadAttention(2, 4, dropout=0.1)(x, x, use_causal_mask=True))
    return keras.Model(inputs, L.Dense(4)(L.GlobalAveragePooling1D()(x)))


def layers(shape, *rest, dtype="float32"):
    return lambda: keras.Sequential([keras.Input(shape, dtype=dtype), *(make() for make in rest)])


def dense(units, **options):
    return lambda: L.Dense(units, **options)


# name: model, x, y, what differs in compile, exchanges
MODELS = {
    "dense": (layers((6,), dense(8, activation="relu"), dense(4)), FLAT, LABELS, {}, 1),
    "Adam": (layers((6,), dense(8, activation="gelu"), dense(4)), FLAT, LABELS, {"optimizer": "adamw"}, 1),
    "convolutions": (
        layers(
            (8, 8, 4),
            lambda: L.Conv2D(4, 3, groups=2),
            lambda: L.DepthwiseConv2D(2),
            L.MaxPooling2D,
            lambda: L.GroupNormalization(2),
            L.UpSampling2D,
            L.Flatten,
            dense(4),
        ),
        IMAGES,
        LABELS,
        {},
        1,
    ),
    "convolutions of series": (
        layers(
            (8, 3),
            lambda: L.Conv1D(4, 3, dilation_rate=2, padding="causal"),
            lambda: L.Conv1DTranspose(3, 3, strides=2),
            lambda: L.AveragePooling1D(2),
            L.GlobalMaxPooling1D,
            dense(4),
        ),
        SERIES,
        LABELS,
        {},
        1,
    ),
    "embedding": (
        layers((7,), lambda: L.Embedding(20, 5, mask_zero=True), L.GlobalAveragePooling1D, dense(4), dtype="int32"),
        WORDS,
        LABELS,
        {},
        1,
    ),
    "attention": (attention, WORDS, LABELS, {}, 1),
    "dropout": (layers((6,), dense(8), lambda: L.Dropout(0.5, seed=1), dense(4)), FLAT, LABELS, {}, 1),
    # mean and variance forward, and their gradients backward; then the sums of gradients
    "batch statistics": (layers((6,), dense(8), L.BatchNormalization, dense(4)), FLAT, LABELS, {}, 5),
    "penalties": (
        layers((6,), dense(8, kernel_regularizer="l2", activity_regularizer="l1"), dense(4, kernel_constraint="max_norm")),
        FLAT,
        LABELS,
        {"optimizer": keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=1.0, weight_decay=0.1)},
        1,
    ),
    "metrics": (
        layers((6,), dense(1, activation="sigmoid")),
        FLAT,
        LABELS[:, None] % 2,
        {"loss": "binary_crossentropy", "metrics": ["accuracy", "auc", "precision"]},
        1,
    ),
    "top k": (layers((6,), dense(4)), FLAT, LABELS, {"metrics": [keras.metrics.SparseTopKCategoricalAccuracy(2)]}, 1),
    "accumulated": (
        layers((6,), dense(4)),
        FLAT,
        LABELS,
        {"optimizer": keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)},
        1,
    ),
    "schedule": (
        layers((6,), dense(4)),
        FLAT,
        LABELS,
        {"optimizer": keras.optimizers.SGD(DECAY)},
        1,
    ),
}


def prepared(name, *more):
    """Return a model's training step, its state and a batch."""
    make, x, y, options, _ = MODELS[name]
    keras.utils.set_random_seed(0)
    model = make()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(**{"optimizer": keras.optimizers.SGD(0.1), "loss": loss, "metrics": ["accuracy"], **options})
    model.optimizer.build(model.trainable_variables)
    data = jax.tree.map(jnp.asarray, (x, y, *more))
    model._symbolic_build(data_batch=data)
    parts = model.trainable_variables, model.non_trainable_variables, model.optimizer.variables, model.metrics_variables
    state = tuple([variable.value for variable in part] for part in parts)

    def step(state, data):
        logs, state = model.train_step(state, data)
        return logs, tuple(map(list, state))

    return step, state, data


def by_rows(step, state, data, num_replicas):
    """Return what the step computes on some devices, and the exchanges of its program."""
    placement = Placement(tuple(jax.devices()[:num_replicas]))
    rows = jax.tree.map(lambda _: -1, state), jax.tree.map(lambda _: 0, data)
    group = MeshAxis(num_replicas, bucket=ALL)
    program = jax.jit(lambda *args: compute_by_rows(step, args, rows, placement.mesh, group))
    cut = jax.sharding.NamedSharding(placement.mesh, jax.sharding.PartitionSpec(AXIS))
    args = jax.device_put(state, placement.mirrored), jax.device_put(data, cut)
    compiled = program.lower(*args).compile()
    return compiled(*args), re.findall(EXCHANGES, compiled.as_text() or ""), args


def check_close(found, expected, tolerance=1e-5):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


@pytest.mark.cases("dense", "batch statistics", "metrics")
@pytest.mark.parametrize("name", MODELS)
def test_the_numbers_are_those_of_one_device(name):
    step, state, data = prepared(name)
    found, exchanges, _ = by_rows(step, state, data, 3)
    check_close(found, jax.jit(step)(state, data))
    assert exchanges == ["all-reduce"] * MODELS[name][-1]


@pytest.mark.cases("2")
@pytest.mark.parametrize("num_replicas", [2, 3])
def test_with_sample_weights_it_is_one_exchange_as_well(num_replicas):
    step, state, data = prepared("dense", WEIGHTS)
    found, exchanges, _ = by_rows(step, state, data, num_replicas)
    check_close(found, jax.jit(step)(state, data))
    assert exchanges == ["all-reduce"]


def test_the_bits_of_two_devices_are_those_of_xlas_own_cut():
    step, state, data = prepared("dense")
    found, _, args = by_rows(step, state, data, 2)
    own = jax.jit(step)(*args)
    assert all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(*map(jax.tree.leaves, (found, own)), strict=True))


def plan_of(fn, *shapes, num_replicas=3):
    closed = jax.make_jaxpr(fn)(*[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes])
    return plan_by_rows(closed, [0] * len(shapes), num_replicas)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x @ x.T,  # each row with each
        lambda x: x[::-1],
        lambda x: jnp.cumsum(x, 0),
        lambda x: jnp.sort(x, 0),
        lambda x: jnp.max(x, 0),
        lambda x: x[1:],
        lambda x: x[:, 0][jnp.array([3, 1])],
        lambda x: x.T.reshape(-1),
        lambda x: jnp.concatenate([x, x]),
        lambda x: jnp.pad(x, ((1, 0), (0, 0))),
        lambda x: jnp.any(x > 0, 0),
        lambda x: jax.lax.scan(lambda c, row: (c + row, c), jnp.zeros(4), x)[1],
        lambda x: jax.lax.map(jnp.sin, x),
        lambda x: jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((12, 4), jnp.float32), x),
        lambda x: jnp.linalg.qr(x)[0],
    ],
)
def test_what_mixes_rows_otherwise_is_left_to_xla(fn):
    assert plan_of(fn, (ROWS, 4)) is None


def test_what_prints_is_left_to_xla():
    def fn(x):
        jax.debug.print("{}", jnp.sum(x))
        return x

    assert plan_of(fn, (ROWS, 4)) is None


@pytest.mark.parametrize(
    ("fn", "ranks", "outputs"),
    [
        (lambda x: x * 2, 0, [0]),
        (lambda x: x.T, 0, [1]),
        (lambda x: x.reshape(6, 2, 4), 0, [0]),
        (lambda x: x.reshape(48), 0, [0]),
        (lambda x: (jnp.sum(x), jnp.sum(x * 2)), 1, [None, None]),
        (lambda x: x - jnp.mean(x, 0), 1, [0]),
        (lambda x: jnp.sum((x - jnp.mean(x, 0)) ** 2), 2, [None]),
        (lambda x: (jnp.zeros(3), x[:, None, :2]), 0, [None, 0]),
        (lambda x: jnp.take_along_axis(x, jnp.argmax(x, 1)[:, None], 1), 0, [0]),
        (lambda x: jnp.stack([x, x]), 0, [1]),
        (lambda x: jnp.where(jnp.arange(12)[:, None] > 3, x, 0), 0, [0]),
    ],
)
def test_where_rows_lie_and_how_many_exchanges_come_before(fn, ranks, outputs):
    plan = plan_of(fn, (ROWS, 4))
    assert plan is not None
    assert (plan.num_exchanges, plan.outputs) == (ranks, outputs)
    x = jnp.asarray(rng.normal(size=(ROWS, 4)), jnp.float32)
    placement = Placement(tuple(jax.devices()[:3]))
    group = MeshAxis(3, bucket=ALL)
    found = jax.jit(lambda x: compute_by_rows(fn, (x,), (0,), placement.mesh, group))(x)
    check_close(found, fn(x), 1e-6)


def test_rows_that_cannot_be_cut_are_left_to_xla():
    assert plan_of(lambda x: x.reshape(2, 18), (ROWS, 3), num_replicas=3) is None  # 2 are not a multiple of 3
    closed = jax.make_jaxpr(jnp.sum)(jnp.zeros((4, 3)))
    assert plan_by_rows(closed, [None], 2) is None  # no rows


def test_what_nobody_reads_is_not_sent():
    def fn(x):
        jnp.sum(x, 0)
        return x + 1

    plan = plan_of(fn, (ROWS, 4))
    assert plan is not None
    assert plan.num_exchanges == 0
