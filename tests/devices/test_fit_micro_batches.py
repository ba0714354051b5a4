"""``use_micro_batches``: ``fit`` in micro-batches gives the numbers of Keras on one device and on whole batches."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
import pytest

import replicant
from replicant.errors import ArgumentError, ArgumentTypeError, ReductionWarning

from ._loops import in_loops, sums_of

FEATURES, CLASSES, STEPS = 6, 4, 5
TWO = ["cpu:0", "cpu:1"]
layers = keras.layers
Cross = keras.losses.SparseCategoricalCrossentropy


def on_model_axis(n: int, k: int, layout_map: Any = None) -> replicant.FullyShardedStrategy:
    devices = [f"cpu:{i}" for i in range(n)]
    return replicant.FullyShardedStrategy(devices, min_size=8, model_parallel_size=k, layout_map=layout_map)


STRATEGIES: dict[str, Callable[[], Any]] = {
    "no strategy": lambda: None,
    "one device": lambda: replicant.OneDeviceStrategy("cpu:0"),
    "fused": lambda: replicant.MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"]),
    "mirrored": lambda: replicant.MirroredStrategy(TWO, fuse_replicas=False),
    "sharded optimizer state": lambda: replicant.MirroredStrategy(TWO, shard_optimizer_state=True),
    "fully sharded": lambda: replicant.FullyShardedStrategy(TWO, min_size=8),
    "model axis": lambda: on_model_axis(4, 2),
    "one replica": lambda: on_model_axis(2, 2),
    "eight devices": lambda: on_model_axis(8, 2),
    "layout map": lambda: on_model_axis(4, 2, {".*kernel": ("model", None), "^(?!b/).*bias": ("model",)}),
    "four": lambda: replicant.FullyShardedStrategy([f"cpu:{i}" for i in range(4)], min_size=8),
}


def rows(num: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(num, FEATURES)).astype("f")


class Sums(layers.Layer):
    """A layer with losses of its own: a sum and a mean over rows."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.01 * keras.ops.sum(keras.ops.square(x)))
        self.add_loss(keras.losses.MeanSquaredError()(keras.ops.zeros_like(x), x))
        return x


class Largest(keras.metrics.Metric):
    """A metric that is no sum: the largest mean of a batch."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.value = self.add_weight(initializer="zeros", name="value")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.value.assign(keras.ops.maximum(self.value, keras.ops.mean(y_pred)))

    def result(self) -> Any:
        return keras.ops.convert_to_tensor(self.value)


def plain(num: int) -> tuple[Any, ...]:
    model = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(16, activation="gelu"), layers.Dense(CLASSES)])
    return model, Cross(from_logits=True), rows(num), np.arange(num) % CLASSES, {"metrics": ["accuracy", Largest()]}


def penalties(num: int) -> tuple[Any, ...]:
    """Losses that do not depend on rows, and losses of layers that do."""
    first = layers.Dense(16, activation="tanh", kernel_regularizer="l2", activity_regularizer="l1")
    model = keras.Sequential([keras.Input((FEATURES,)), first, Sums(), layers.Dense(CLASSES)])
    return model, Cross(from_logits=True, reduction="sum"), rows(num), np.arange(num) % CLASSES, {}


def mask(num: int, reduction: str = "sum_over_batch_size") -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    inner = [layers.Embedding(8, 8, mask_zero=True), layers.Dense(16, activation="gelu"), layers.Dense(CLASSES)]
    model = keras.Sequential([keras.Input((STEPS,), dtype="int32"), *inner])
    x, y = rng.integers(0, 3, size=(num, STEPS)), rng.integers(0, CLASSES, size=(num, STEPS))
    x[:2] = 0  # two rows without any that counts
    return model, Cross(from_logits=True, reduction=reduction), x, y, {"metrics": ["accuracy"]}


def weighted_mask(num: int) -> tuple[Any, ...]:
    model, loss, x, y, compiled = mask(num, "mean_with_sample_weight")
    weights = np.random.default_rng(1).uniform(size=(num, STEPS)).astype("f")
    return model, loss, x, y, compiled | {"weighted_metrics": ["accuracy"], "sample_weight": weights}


def two_outputs(num: int) -> tuple[Any, ...]:
    inputs = keras.Input((FEATURES,))
    inner = layers.Dense(16, activation="tanh")(inputs)
    model = keras.Model(inputs, {"a": layers.Dense(CLASSES, name="a")(inner), "b": layers.Dense(1, name="b")(inner)})
    y = {"a": np.arange(num) % CLASSES, "b": rows(num)[:, :1]}
    weights = {name: np.random.default_rng(i).uniform(size=num).astype("f") for i, name in enumerate("ab")}
    compiled = {"metrics": {"a": "accuracy"}, "loss_weights": {"a": 0.5, "b": 2.0}, "sample_weight": weights}
    return model, {"a": Cross(from_logits=True), "b": "mse"}, rows(num), y, compiled


PROGRAMS = {each.__name__: each for each in (plain, penalties, mask, weighted_mask, two_outputs)}
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "accumulating": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, clipnorm=0.1), dynamic_growth_steps=2),
}


def fitted(
    strategy: Any, steps: int, program: str, *, num: int = 22, batch: int = 8, optimizer: str = "adam", **compiled: Any
) -> Any:
    """Train. Return the losses and metrics of each epoch, and the final weights."""
    keras.utils.set_random_seed(0)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model, loss, x, y, more = PROGRAMS[program](num)
        weights = more.pop("sample_weight", None)
        model.compile(OPTIMIZERS[optimizer](), loss, **more, **compiled)
    replicant.keras.use_micro_batches(model, steps)
    history = model.fit(x, y, batch_size=batch, epochs=2, verbose=0, shuffle=False, sample_weight=weights).history
    assert int(np.asarray(model.optimizer.iterations)) == 2 * -(-num // batch) // (2 if optimizer == "accumulating" else 1)
    return history, model.get_weights()


def check_equal(found: Any, wanted: Any) -> None:
    assert found[0].keys() == wanted[0].keys()
    for name, values in wanted[0].items():
        np.testing.assert_allclose(found[0][name], values, rtol=1e-5, atol=1e-6, err_msg=name)
    for x, y in zip(found[1], wanted[1], strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.cases("fully sharded-penalties", "mirrored-weighted_mask")
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.long
def test_it_gives_the_numbers_of_whole_batches(name: str, program: str) -> None:
    """Of 22 rows, batches have 8, 8 and 6: micro-batches of one row, of several, and of a rest on some replicas only."""
    check_equal(fitted(STRATEGIES[name](), 3, program), fitted(None, 1, program))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["fused", "mirrored", "fully sharded", "model axis", "one replica"])
def test_optimizers_see_whole_batches(name: str, optimizer: str) -> None:
    found = fitted(STRATEGIES[name](), 2, "plain", num=24, optimizer=optimizer, steps_per_execution=2)
    check_equal(found, fitted(None, 1, "plain", num=24, optimizer=optimizer))


@pytest.mark.slow
@pytest.mark.parametrize(("num", "batch", "steps"), [(3, 3, 2), (1, 1, 4), (9, 9, 100), (40, 20, 3)])
@pytest.mark.parametrize("name", ["four", "eight devices"])
def test_any_number_of_rows(name: str, num: int, batch: int, steps: int) -> None:
    check_equal(
        fitted(STRATEGIES[name](), steps, "weighted_mask", num=num, batch=batch),
        fitted(None, 1, "weighted_mask", num=num, batch=batch),
    )


def step_text(strategy: Any, steps: int, monkeypatch: pytest.MonkeyPatch, *, remat: bool = False, num: int = 32) -> tuple[str, Any]:
    """Return the compiled program of a training step, and what it needs of memory."""
    texts: list[tuple[str, Any]] = []
    compile_it = jax.stages.Lowered.compile

    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        compiled = compile_it(self, *args, **kwargs)
        texts.append((compiled.as_text(), None))
        return compiled

    with strategy.scope(), keras.RematScope(mode="full" if remat else None):
        inner = [layers.Dense(64, activation="tanh") for _ in range(4)]
        model = keras.Sequential([keras.Input((FEATURES,)), *inner, layers.Dense(CLASSES)])
        model.compile("sgd", Cross(from_logits=True))
    replicant.keras.use_micro_batches(model, steps)
    with monkeypatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", noting)
        memory = strategy.memory(model, (rows(num), (np.arange(num) % CLASSES).astype("int32")))
    return texts[-1][0], memory


@pytest.mark.cases("fully sharded")
@pytest.mark.parametrize("name", ["mirrored", "fully sharded"])
def test_replicas_exchange_gradients_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, _ = step_text(STRATEGIES[name](), 4, monkeypatch)
    assert "tanh" in in_loops(text)
    assert sums_of(text)
    assert not sums_of(in_loops(text))
    if name == "fully sharded":
        assert "all-gather" in in_loops(text)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one device", "mirrored", "fully sharded", "model axis"])
def test_it_takes_the_memory_of_one_micro_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = [step_text(STRATEGIES[name](), steps, monkeypatch, num=4096)[1].activations for steps in (1, 16)]
    assert needed[1] < 0.3 * needed[0]
    again = step_text(STRATEGIES[name](), 16, monkeypatch, num=4096, remat=True)[1].activations
    assert again <= needed[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mirrored", "fully sharded", "model axis"])
def test_with_rematerialized_layers(name: str) -> None:
    with keras.RematScope(mode="full"):
        found = fitted(STRATEGIES[name](), 2, "plain")
    check_equal(found, fitted(None, 1, "plain"))


def small(*inner: Any, loss: Any = "mse", **compiled: Any) -> Any:
    model = keras.Sequential([keras.Input((FEATURES,)), *inner, layers.Dense(1)])
    model.compile("sgd", loss, **compiled)
    return model


def test_batch_normalization_is_told(recwarn: pytest.WarningsRecorder) -> None:
    with STRATEGIES["mirrored"]().scope():
        model = small(layers.BatchNormalization(name="normal"))
    replicant.keras.use_micro_batches(model, 2)
    model.fit(rows(8), rows(8)[:, :1], batch_size=8, verbose=0)
    told = [str(each.message) for each in recwarn if issubclass(each.category, ReductionWarning)]
    assert told
    assert all("'normal' normalizes each micro-batch by its own statistics (accumulate_steps)" in each for each in told)


def test_replicas_drop_different_units() -> None:
    """A model that only drops units has the loss of what it drops, which is the same on both replicas only if they draw alike."""
    with STRATEGIES["mirrored"]().scope():
        model = keras.Sequential([keras.Input((64,)), layers.Dropout(0.5, seed=1), layers.Dense(64, use_bias=False)])
        model.compile(keras.optimizers.SGD(1.0), lambda y, y_pred: keras.ops.sum(y_pred, axis=-1))
    model.set_weights([np.zeros((64, 64), "f")])
    replicant.keras.use_micro_batches(model, 1)
    replicant.keras.use_micro_batches(model, 2)
    model.fit(np.ones((4, 64), "f"), np.ones((4, 64), "f"), batch_size=4, verbose=0)
    drawn = -np.round(model.get_weights()[0][:, 0] * 4 / 2)  # how many of the four rows have kept each input
    assert set(drawn) == {0, 1, 2, 3, 4}


class Keeping(layers.Layer):
    """A layer that counts rows, and micro-batches with a positive sum."""

    def build(self, _: Any) -> None:
        self.rows = self.add_weight(shape=(), initializer="zeros", trainable=False, name="rows")
        self.positive = self.add_weight(shape=(), initializer="zeros", trainable=False, name="positive", dtype="int32")

    def call(self, x: Any) -> Any:
        self.rows.assign_add(keras.ops.cast(keras.ops.shape(x)[0], "float32"))
        self.positive.assign_add(keras.ops.cast(keras.ops.sum(x) > 0, "int32"))
        return x


def test_replicas_agree_on_what_layers_keep() -> None:
    """Of 9 rows, one replica has five and the other four, so only one computes a third micro-batch that counts."""
    with STRATEGIES["mirrored"]().scope():
        model = small(layers.Dropout(0.5, seed=1), Keeping(name="keeping"))
    replicant.keras.use_micro_batches(model, 2)
    with pytest.warns(ReductionWarning) as told:
        model.fit(np.ones((9, FEATURES), "f"), np.ones((9, 1), "f"), batch_size=9, verbose=0, epochs=2)
    kept = {v.path.split("/")[-1]: [np.asarray(x.data).tolist() for x in v._value.addressable_shards] for v in model.variables}
    drawn = kept["seed_generator_state"]
    assert drawn[0] == drawn[1] == [1, 2 * 3]  # for three micro-batches in each of two epochs
    assert kept["rows"] == [2 * 4.5] * 2
    assert kept["positive"] == [2 * 3] * 2
    messages = {str(each.message) for each in told}
    assert any("rows' is assigned in each micro-batch" in each and "keep the mean of what they have" in each for each in messages)
    assert any("positive' is assigned in" in each and "keep what the first one has" in each for each in messages)
    assert not any("seed_generator" in each for each in messages)


@pytest.mark.slow
def test_a_guard_against_nan_keeps_micro_batches() -> None:
    """The guarded step computes micro-batches too, and writes nothing for a batch that is not finite."""
    seen: list[int] = []
    with STRATEGIES["mirrored"]().scope():
        model = small(layers.Lambda(lambda x: (seen.append(x.shape[0]), x)[1]))
    replicant.keras.use_micro_batches(model, 2)
    x = rows(16)
    x[9] = np.nan
    seen.clear()
    guard = replicant.keras.callbacks.TerminateOnNaN(policy="skip")
    with pytest.warns(UserWarning, match="nan"):
        model.fit(x, rows(16)[:, :1], batch_size=8, shuffle=False, verbose=0, callbacks=[guard])
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert 2 in seen  # rows of a micro-batch of one of two replicas


def own_loss(y: Any, y_pred: Any) -> Any:
    return keras.ops.mean(keras.ops.square(y - y_pred))


class Mixing(layers.Layer):
    """A layer whose loss is a product of means."""

    def call(self, x: Any) -> Any:
        self.add_loss(keras.ops.mean(x) * keras.ops.mean(x))
        return x


class Masked(layers.Layer):
    """A layer that computes a loss of Keras with a mask."""

    def call(self, x: Any) -> Any:
        loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
        self.add_loss(loss(keras.ops.zeros_like(x), x, sample_weight=x[:, 0]))
        return x


class OwnStep(keras.Sequential):
    """A model with a training step of its own."""

    def train_step(self, state: Any, data: Any) -> Any:
        return super().train_step(state, data)


class OwnLoss(keras.Sequential):
    """A model with a loss of its own."""

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        return keras.ops.mean(y_pred)


class Twice(keras.losses.Loss):
    """A loss that reduces its values by itself."""

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return keras.ops.mean(y_pred)


def compiled(model: Any) -> Any:
    model.compile("sgd", "mse")
    return model


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "scalar": (lambda: small(loss=own_loss), "a loss function returned one number for all rows"),
    "own call": (lambda: small(loss=Twice()), "does not leave the reduction of its values to Keras exactly once"),
    "product": (lambda: small(Mixing()), "a layer adds a loss .* that is neither a sum nor a mean over the rows"),
    "masked": (lambda: small(Masked()), "a layer computes a loss of Keras with a mask or with reduction='mean_with_sample_weight'"),
    "own step": (lambda: compiled(OwnStep([keras.Input((FEATURES,)), layers.Dense(1)])), "OwnStep has a train_step of its own"),
    "own loss": (lambda: compiled(OwnLoss([keras.Input((FEATURES,)), layers.Dense(1)])), "OwnLoss has a compute_loss of its own"),
    "eager": (lambda: small(run_eagerly=True), "the steps of this model are not compiled"),
    "output": (
        lambda: small(layers.Lambda(lambda x: keras.ops.sum(x, axis=0, keepdims=True)), metrics=["mae"]),
        r"an output of the model does not have the rows of the batch along its first axis: \(1, 1\) for 4 rows",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exact_is_refused(name: str) -> None:
    make, message = REFUSED[name]
    with replicant.OneDeviceStrategy("cpu:0").scope():
        model = make()
    replicant.keras.use_micro_batches(model, 2)
    with pytest.raises(ArgumentError, match=message):
        model.fit(rows(8), rows(8)[:, :1], batch_size=8, verbose=0)


def test_calls_of_the_host_under_a_model_axis() -> None:
    with STRATEGIES["model axis"]().scope():
        model = small(layers.Lambda(lambda x: jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)))
    replicant.keras.use_micro_batches(model, 2)
    message = r"the model calls the host \(pure_callback\), but each replica has 2 devices .*Use accumulate_steps=1 or"
    with pytest.raises(ArgumentError, match=message):
        model.fit(rows(8), rows(8)[:, :1], batch_size=8, verbose=0)


def test_replica_statistics_contradict_it() -> None:
    with STRATEGIES["mirrored"]().scope():
        model = small(layers.BatchNormalization())
    replicant.keras.use_micro_batches(model, 2)
    replicant.keras.use_replica_statistics(model)
    with pytest.raises(ArgumentError, match="use_micro_batches and use_replica_statistics contradict each other"):
        model.fit(rows(8), rows(8)[:, :1], batch_size=8, verbose=0)


def test_arguments_are_checked() -> None:
    with pytest.raises(ArgumentTypeError, match=r"use_micro_batches: model must be a keras\.Model; got Dense"):
        replicant.keras.use_micro_batches(layers.Dense(1), 2)
    with pytest.raises(ArgumentError, match="use_micro_batches: accumulate_steps must be at least 1; got 0"):
        replicant.keras.use_micro_batches(small(), 0)
    with pytest.raises(ArgumentTypeError, match=r"use_micro_batches: accumulate_steps must be an int, .*; got 2\.0 of type float"):
        replicant.keras.use_micro_batches(small(), 2.0)  # type: ignore[arg-type]
