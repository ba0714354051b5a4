"""``fit``, ``evaluate`` and ``predict`` under a strategy give the numbers of plain Keras on one device, whatever the batches.

Every row trains twice from the same seed, with a strategy and without one, and compares what Keras reports in each epoch, what
``evaluate`` and ``predict`` say afterwards, and all weights.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import keras
import numpy as np
import pytest
from keras import layers, optimizers

import replicant

pytestmark = pytest.mark.again
TOLERANCE = 1e-5


def mirrored(n: int) -> replicant.Strategy:
    """n replicas; 0 is no strategy: plain Keras."""
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(n)]) if n else replicant.get_strategy()


RNG = np.random.default_rng(0)
X, Y, W = RNG.normal(size=(40, 6)).astype(np.float32), RNG.integers(0, 3, 40), RNG.uniform(0.2, 2, 40).astype(np.float32)
XENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def dense(*middle: Any) -> keras.Model:
    return keras.Sequential([keras.Input((6,)), layers.Dense(4, activation="tanh"), *middle, layers.Dense(3)])


def two_inputs_two_outputs() -> keras.Model:
    a, b = keras.Input((2,), name="a"), keras.Input((4,), name="b")
    both = layers.Dense(4, activation="tanh")(layers.concatenate([a, b]))
    return keras.Model({"a": a, "b": b}, {"label": layers.Dense(3, name="label")(both), "size": layers.Dense(1, name="size")(both)})


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = layers.Dense(4, activation="tanh"), layers.Dense(3)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.out(self.hidden(x))


class OwnTrainStep(Subclassed):
    """Plain gradient descent on its own loss; the optimizer only counts."""

    def train_step(self, state: Any, data: Any) -> Any:
        weights, others, slots, metrics = state
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)

        def loss_of(weights: Any) -> Any:
            logits, _ = self.stateless_call(weights, others, x, training=True)
            return XENTROPY(y, logits, sample_weight)

        loss, gradients = jax.value_and_grad(loss_of)(weights)
        weights = [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]
        return {"loss": loss}, (weights, others, slots, metrics)


class OwnLoss(Subclassed):
    """A loss that is no mean over examples: it depends on the whole batch at once."""

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, **_: Any) -> Any:
        return XENTROPY(y, y_pred) + keras.ops.max(keras.ops.logsumexp(y_pred, axis=0))


class Spread(keras.metrics.Metric):
    """A user's metric: the largest minus the smallest logit seen."""

    def __init__(self) -> None:
        super().__init__(name="spread")
        self.low = self.add_variable((), "zeros", name="low")
        self.high = self.add_variable((), "zeros", name="high")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.low.assign(keras.ops.minimum(self.low, keras.ops.min(y_pred)))
        self.high.assign(keras.ops.maximum(self.high, keras.ops.max(y_pred)))

    def result(self) -> Any:
        return self.high - self.low


def regularized() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(4, kernel_regularizer="l2", activity_regularizer=keras.regularizers.L1(0.1)),
            layers.Dense(3),
        ]
    )


MODELS: dict[str, Callable[[], keras.Model]] = {
    "sequential": dense,
    "built by fit": lambda: keras.Sequential([layers.Dense(4, activation="tanh"), layers.Dense(3)]),
    "two inputs, two outputs": two_inputs_two_outputs,
    "subclassed": Subclassed,
    "own train_step": OwnTrainStep,
    "own compute_loss": OwnLoss,
    "lstm": lambda: keras.Sequential([layers.Reshape((3, 2)), layers.LSTM(2), layers.Dense(3)]),
    "convolution": lambda: keras.Sequential(
        [layers.Reshape((6, 1)), layers.Conv1D(2, 3), layers.MaxPooling1D(), layers.Flatten(), layers.Dense(3)]
    ),
    # No bias before it: its gradient is zero but for rounding, which Adam would blow up.
    "batch norm": lambda: keras.Sequential([layers.Dense(4, use_bias=False), layers.BatchNormalization(), layers.Dense(3)]),
    "dropout": lambda: dense(layers.Dropout(0.5)),
    "regularized": regularized,
}

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optimizers.SGD(0.1),
    "momentum": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optimizers.Adam(0.01),
    "adamw": lambda: optimizers.AdamW(0.01, weight_decay=0.1),
    "rmsprop": lambda: optimizers.RMSprop(0.01),
    "global_clipnorm": lambda: optimizers.SGD(0.1, global_clipnorm=0.1),
    "accumulation": lambda: optimizers.SGD(0.1, gradient_accumulation_steps=2),  # 5 batches: the last one accumulates alone
    "ema": lambda: optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=None),
    "loss scaling": lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1)),
    "schedule": lambda: optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
}


class Row(NamedTuple):
    """One configuration; `options` are further arguments of compile."""

    n: int
    model: str = "sequential"
    optimizer: str = "sgd"
    rows: int = 6  # in batches of 8: one partial batch, which 2 devices share evenly, 4 by halves, and 3 and 8 in some way
    batch: int = 8
    options: tuple[tuple[str, Any], ...] = ()


ROWS = [
    # how the rows fall on the devices
    Row(1),
    Row(2, rows=11),
    Row(3, rows=11),
    Row(4, rows=11),
    Row(8, rows=11),
    Row(4, rows=35),
    Row(4, rows=2),  # fewer rows than replicas
    Row(2, rows=1),  # a single row
    Row(3, optimizer="momentum", rows=9, batch=4),  # batches that 3 does not divide, the last one of 1 row
    Row(8, rows=5, batch=2),  # every batch smaller than the replicas
    # models
    Row(2, "built by fit", "adam"),
    Row(2, "two inputs, two outputs", "adam"),
    Row(8, "two inputs, two outputs", "adam"),
    Row(3, "subclassed", "adam"),
    Row(2, "own train_step"),
    Row(4, "own compute_loss", "adam"),
    Row(2, "lstm", "rmsprop"),
    Row(2, "convolution", "adamw"),
    Row(2, "batch norm", "adam"),
    Row(3, "batch norm", "adam", rows=11),
    Row(4, "batch norm", "adam"),
    Row(2, "dropout", "momentum"),
    Row(4, "regularized"),
    # optimizers
    Row(2, optimizer="global_clipnorm"),
    Row(2, optimizer="accumulation", rows=5, batch=2),  # 3 batches: the last one accumulates alone
    Row(4, optimizer="ema"),
    Row(2, optimizer="loss scaling"),
    Row(2, optimizer="schedule"),
    # how the step is compiled
    Row(2, options=(("jit_compile", False),)),
    Row(3, rows=2, options=(("run_eagerly", True),)),
]


def data_of(row: Row) -> tuple[Any, Any, dict[str, Any]]:
    """x, y and what compile needs to know of them."""
    x, y = X[: row.rows], Y[: row.rows]
    if row.model == "two inputs, two outputs":
        targets = {"label": y, "size": np.sum(x, axis=1, keepdims=True)}
        return (
            {"a": x[:, :2], "b": x[:, 2:]},
            targets,
            {"loss": {"label": XENTROPY, "size": "mse"}, "loss_weights": {"label": 1.0, "size": 0.3}},
        )
    return x, y, {"loss": XENTROPY, "metrics": ["accuracy", Spread()]}


@functools.cache
def train(row: Row) -> dict[str, Any]:
    """What a run leaves."""
    keras.utils.set_random_seed(1)
    x, y, compile_arguments = data_of(row)
    with mirrored(row.n).scope():
        model = MODELS[row.model]()
        model.compile(OPTIMIZERS[row.optimizer](), **compile_arguments, **dict(row.options))
    history = model.fit(x, y, batch_size=row.batch, epochs=2, verbose=0, shuffle=False).history
    return {
        "history": history,
        "evaluate": model.evaluate(x, y, batch_size=row.batch, verbose=0, return_dict=True),
        "predict": model.predict(x, batch_size=row.batch, verbose=0),
        "weights": model.get_weights(),
    }


def assert_equal(actual: Any, expected: Any, tolerance: float = TOLERANCE) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), actual, expected)


@pytest.mark.cases(
    "2 sequential sgd 1/8 {}",
    "8 two inputs, two outputs adam 6/8 {}",
    "2 own train_step sgd 6/8 {}",
    "4 own compute_loss adam 6/8 {}",
    "4 batch norm adam 6/8 {}",
    "2 dropout momentum 6/8 {}",
)
@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: f"{row.n} {row.model} {row.optimizer} {row.rows}/{row.batch} {dict(row.options)}"
)
@pytest.mark.long_cases(
    "2 dropout momentum 6/8 {}",
    "2 sequential sgd 1/8 {}",
    "4 batch norm adam 6/8 {}",
    "4 own compute_loss adam 6/8 {}",
    "8 two inputs, two outputs adam 6/8 {}",
)
def test_a_run_equals_plain_keras(row: Row) -> None:
    plain = train(row._replace(n=0))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(plain))  # else equality would say nothing
    assert_equal(train(row), plain)


@pytest.mark.cases("4 sequential 35/8", "2 built by fit 6/8")
@pytest.mark.parametrize("row", ROWS[::5], ids=lambda row: f"{row.n} {row.model} {row.rows}/{row.batch}")
@pytest.mark.long_cases("4 sequential 35/8")
def test_fused_replicas_equal_plain_keras(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the last bits: how XLA cuts a sum into vectors depends on the processor, and a fused program has its own shapes."""
    monkeypatch.setenv("REPLICANT_FUSE_REPLICAS", "1")
    assert_equal(train(row), train(row._replace(n=0)), tolerance=2e-6)


@pytest.mark.long
def test_mixed_precision() -> None:
    """bfloat16 has 8 bits, and each device rounds the partial sums of its own share: equal to those 8 bits only."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        plain, run = train(Row(0, "built by fit", "adam", rows=8)), train(Row(2, "built by fit", "adam", rows=8))
    finally:
        keras.config.set_dtype_policy("float32")
    assert [w.dtype for w in run["weights"]] == [np.float32] * 4
    assert_equal(run["history"]["loss"], plain["history"]["loss"], 2**-7)
    assert_equal(run["weights"], plain["weights"], 2**-7)


def test_a_model_is_spread_over_the_devices() -> None:
    """Equality alone would also hold on one device."""
    placed = []

    class Probe(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            placed.extend(v.sharding.device_set for v in self.model._jax_state["trainable_variables"])

    with mirrored(4).scope():
        model = dense()
        model.compile("sgd", XENTROPY)
    model.fit(X[:8], Y[:8], batch_size=8, verbose=0, callbacks=[Probe()])
    assert placed == [set(jax.devices("cpu")[:4])] * 4


@pytest.mark.parametrize("steps_per_execution", [1, 2])
@pytest.mark.long_cases("1")
def test_each_remainder_is_compiled_once(caplog: pytest.LogCaptureFixture, steps_per_execution: int) -> None:
    with mirrored(4).scope():
        model = dense()
        model.compile("adam", XENTROPY, steps_per_execution=steps_per_execution)
    with jax.log_compiles():
        model.fit(X[:35], Y[:35], batch_size=8, epochs=3, verbose=0)  # 8, 8, 8, 8, 3
        model.fit(X[:35], Y[:35], batch_size=8, verbose=0)
        model.evaluate(X[:35], Y[:35], batch_size=8, verbose=0)
    said = "Finished XLA compilation of jit(_with_token)"
    compiled = [r.getMessage() for r in caplog.records if r.getMessage().startswith(said)]
    assert len(compiled) == 4, compiled  # training and testing, 8 rows and 3
