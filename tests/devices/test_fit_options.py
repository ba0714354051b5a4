"""The options of ``fit``: under a strategy as in plain Keras on one device."""

import itertools
from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras import layers

import replicant
from replicant.data import Dataset

TOLERANCE = 1e-5
RNG = np.random.default_rng(0)
X, Y, W = RNG.normal(size=(32, 6)).astype(np.float32), RNG.integers(0, 3, 32), RNG.uniform(0.2, 2, 32).astype(np.float32)
XENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def mirrored(n: int) -> replicant.Strategy:
    """n replicas; 0 is no strategy: plain Keras."""
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(n)]) if n else replicant.get_strategy()


def make_model() -> keras.Model:
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((6,)), layers.Dense(4, activation="tanh"), layers.Dense(3)])


def compiled(n: int, **options: Any) -> keras.Model:
    with mirrored(n).scope():
        model = make_model()
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), XENTROPY, **options)
    return model


def assert_equal(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE), actual, expected)


class Case:
    """Arguments of compile, and of fit beside x, y and batches of 4."""

    def __init__(self, compile: dict[str, Any] | None = None, rows: int = 10, **fit: Any) -> None:  # noqa: A002 - as Keras
        self.compile, self.rows, self.fit = compile or {}, rows, fit

    def __call__(self, n: int) -> Any:
        model = compiled(n, **self.compile)
        arguments = {"batch_size": 4, "epochs": 2, "shuffle": False} | self.fit
        return model.fit(X[: self.rows], Y[: self.rows], verbose=0, **arguments).history, model.get_weights()


OPTIONS = {
    "sample_weight": Case({"metrics": ["accuracy"]}, sample_weight=W[:10]),
    "weighted_metrics": Case({"weighted_metrics": ["accuracy"]}, sample_weight=W[:10]),
    "weights of zero": Case({"weighted_metrics": ["accuracy"]}, sample_weight=(np.arange(10) % 4 == 0).astype(np.float32)),
    "class_weight": Case({"metrics": ["accuracy"]}, class_weight={0: 0.5, 1: 2.0, 2: 1.0}),
    "validation_data": Case({"metrics": ["accuracy"]}, validation_data=(X[10:17], Y[10:17])),
    "weighted validation": Case({"weighted_metrics": ["accuracy"]}, validation_data=(X[10:17], Y[10:17], W[10:17])),
    "validation dataset": Case(validation_data=Dataset.from_tensor_slices((X[10:17], Y[10:17])).batch(4)),
    "validation_split": Case({"metrics": ["accuracy"]}, rows=16, validation_split=0.35),  # 10 rows train, 6 validate
    "validation_freq": Case(epochs=3, validation_data=(X[10:17], Y[10:17]), validation_freq=2, validation_batch_size=7),
    "validation_steps": Case(validation_data=(X[10:], Y[10:]), validation_steps=2),
    "steps_per_epoch": Case(steps_per_epoch=2, epochs=1),
    "steps_per_execution": Case({"steps_per_execution": 2}, rows=18),  # 4, 4 | 4, 4 | 2
    "many steps per execution": Case({"steps_per_execution": 8}, validation_data=(X[10:17], Y[10:17])),  # 4, 4, 2 in one call
    "initial_epoch": Case(initial_epoch=2, epochs=4),
    "shuffle": Case(shuffle=True, rows=16),
    "top 2": Case({"metrics": [keras.metrics.SparseTopKCategoricalAccuracy(2)]}, rows=7),
}


@pytest.mark.cases(
    "weights of zero-3",
    "validation_split-8",
    "validation_steps-4",
    "many steps per execution-2",
    "initial_epoch-4",
    "shuffle-3",
)
@pytest.mark.parametrize(("name", "n"), list(zip(OPTIONS, itertools.cycle([2, 4, 3, 8]), strict=False)))
@pytest.mark.long_cases("many steps per execution-2", "validation_split-8", "weights of zero-3")
def test_options(name: str, n: int) -> None:
    assert_equal(OPTIONS[name](n), OPTIONS[name](0))


@pytest.mark.long
def test_on_batch_methods() -> None:
    """3 rows on 4 devices, then 8: `train_on_batch` reports this batch alone, and remembers the rest."""

    def run(n: int) -> Any:
        model = compiled(n, metrics=["accuracy"])
        return (
            model.train_on_batch(X[:3], Y[:3]),
            model.train_on_batch(X[:8], Y[:8], sample_weight=W[:8], return_dict=True),
            model.train_on_batch(X[:8], Y[:8], class_weight={0: 1.0, 1: 2.0, 2: 0.5}),
            model.test_on_batch(X[:3], Y[:3], return_dict=True),
            model.predict_on_batch(X[:3]),
            model.get_weights(),
        )

    assert_equal(run(4), run(0))


class Counter(keras.layers.Layer):
    """Counts its calls in training, on each replica."""

    def build(self, shape: Any) -> None:
        self.count = keras.Variable(0.0, trainable=False, synchronization="on_read", aggregation="sum")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.count.assign_add(1.0)
        return x


def test_batches_after_a_custom_loop_go_on_from_its_copies() -> None:
    """In the loop each of 2 replicas has a copy of the count. A step of `train_on_batch` counts once."""
    strategy = mirrored(2)
    with strategy.scope():
        counter = Counter()
        model = keras.Sequential([keras.Input(X[0].shape), keras.layers.Flatten(), counter, keras.layers.Dense(3)])
        model.compile("sgd", XENTROPY)
    strategy.run(lambda: model(X[:2], training=True))
    counts = [float(counter.count.numpy())]
    for _ in range(3):
        model.train_on_batch(X[:8], Y[:8])
        counts.append(float(counter.count.numpy()))
    assert counts == [2.0, 3.0, 4.0, 5.0]


def batches() -> Dataset:
    """Batches of 4, 4, 2."""
    return Dataset.from_tensor_slices((X[:10], Y[:10])).batch(4)


@pytest.fixture(scope="module")
def ten_rows_on_one_device() -> Any:
    """NumPy arrays without a strategy."""
    model = compiled(0)
    history = model.fit(X[:10], Y[:10], batch_size=4, shuffle=False, verbose=0).history
    return history, model.evaluate(X[:10], Y[:10], batch_size=4, verbose=0), model.get_weights()


@pytest.mark.long
def test_class_weight_beside_a_dataset() -> None:
    model, plain = compiled(4), compiled(0)
    weights = {0: 0.5, 1: 2.0}
    history = model.fit(batches(), class_weight=weights, verbose=0).history
    assert_equal(history, plain.fit(X[:10], Y[:10], batch_size=4, shuffle=False, class_weight=weights, verbose=0).history)
    assert_equal(model.get_weights(), plain.get_weights())


def test_predict_of_a_dataset_keeps_the_order() -> None:
    expected = compiled(0).predict(X[:10], verbose=0)
    np.testing.assert_allclose(compiled(4).predict(batches(), verbose=0), expected, atol=TOLERANCE)
    only_x = Dataset.from_tensor_slices(X[:10]).batch(4)
    np.testing.assert_allclose(compiled(4, steps_per_execution=2).predict(only_x, verbose=0), expected, atol=TOLERANCE)


def test_an_infinite_dataset_needs_steps_per_epoch() -> None:
    """It goes on where the last epoch ended: 10 rows, batches of 4, 2 steps per epoch, 3 epochs."""
    model, plain = compiled(2), compiled(0)
    history = model.fit(batches().repeat(), steps_per_epoch=2, epochs=3, verbose=0).history
    x, y = np.concatenate([X[:10], X[:10]]), np.concatenate([Y[:10], Y[:10]])
    for part in (slice(0, 4), slice(4, 8), slice(8, 10), slice(10, 14), slice(14, 18), slice(18, 20)):
        plain.train_on_batch(x[part], y[part])
    assert len(history["loss"]) == 3
    assert_equal(model.get_weights(), plain.get_weights())


def in_scope(where: str, n: int = 4) -> keras.Model:
    """A model of which only one part was made under the strategy."""
    strategy = mirrored(n)
    arguments = (keras.optimizers.SGD(0.1, momentum=0.9), XENTROPY)
    if where == "the model only":
        with strategy.scope():
            model = make_model()
        model.compile(*arguments)
    else:
        model = make_model()
        with strategy.scope():
            model.compile(*arguments)
    return model


@pytest.mark.parametrize("where", ["the model only", "compile only"])
@pytest.mark.parametrize("fit_inside", [False, True])
def test_what_is_made_in_the_scope(ten_rows_on_one_device: Any, where: str, fit_inside: bool) -> None:
    """Nothing need be made inside but one of them: the variables move to the devices with the first step."""
    model = in_scope(where)
    with mirrored(4).scope() if fit_inside else replicant.get_strategy().scope():
        history = model.fit(X[:10], Y[:10], batch_size=4, shuffle=False, verbose=0).history
        evaluated = model.evaluate(X[:10], Y[:10], batch_size=4, verbose=0)
    assert all(len(v.value.sharding.device_set) == 4 for v in model.trainable_variables)
    assert_equal((history, evaluated, model.get_weights()), ten_rows_on_one_device)


@pytest.mark.parametrize("options", [{}, {"fuse_replicas": False}], ids=["fused", "apart"])
@pytest.mark.parametrize("n", [1, 2])
def test_a_step_is_compiled_once(n: int, options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """New weights, weights that a step has made, and metrics after a reset lie on the same device, each in its own way."""
    with replicant.MirroredStrategy([f"cpu:{i}" for i in range(n)], **options).scope():
        model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
        model.compile("adam", "mse", metrics=["mae"])
    x, y = np.ones((12, 3), "float32"), np.ones((12, 2), "float32")
    with jax.log_compiles():
        for _ in range(3):
            model.fit(x, y, batch_size=4, epochs=2, verbose=0)
    assert sum("Finished XLA compilation of jit(_with_token)" in record.getMessage() for record in caplog.records) == 1
