"""Steps in TensorFlow's form, ``train_step(self, data)``, when something changes between two steps or two fits, or goes wrong.

The references are Keras's own ``train_step`` on one device.
"""

import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import replicant
from replicant.errors import ArgumentError

ROWS = np.random.default_rng(0).normal(size=(11, 4)).astype(np.float32)  # batches of 4: 4, 4, 3
TARGETS = np.random.default_rng(1).normal(size=(11, 1)).astype(np.float32)
STRATEGIES: Mapping[str, Callable[[], Any]] = {
    "none": replicant.get_strategy,
    "apart": lambda: replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=False),
    "three": lambda: replicant.MirroredStrategy([f"cpu:{i}" for i in range(3)], fuse_replicas=False),
}


@pytest.fixture(autouse=True)
def connected() -> None:
    """Connect Replicant and Keras, as the first strategy of a program does."""
    replicant.get_strategy()


class Plain(keras.Model):
    """Keras's own steps, and two layers that only their names tell apart."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.first, self.second = layers.Dense(4, activation="tanh"), layers.Dense(4, activation="tanh")
        self.last = layers.Dense(1)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.last(self.second(self.first(x)))


class Taped(Plain):
    """The same steps with a tape."""

    scale = 1.0

    def train_step(self, data: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with replicant.GradientTape() as tape:
            predictions = self(x, training=True)
            loss: Any = self.compute_loss(x=x, y=y, y_pred=predictions, sample_weight=weights)
            loss = self.scale * loss
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return self.updated(x, y, predictions, weights, loss)

    def test_step(self, data: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        predictions = self(x, training=False)
        return self.updated(x, y, predictions, weights, self.compute_loss(x=x, y=y, y_pred=predictions, sample_weight=weights))

    def updated(self, x: Any, y: Any, predictions: Any, weights: Any, loss: Any) -> Any:
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=x.shape[0])
            else:
                metric.update_state(y, predictions, sample_weight=weights)
        return {m.name: m.result() for m in self.metrics}


def made(kind: type[Any], strategy: str, optimizer: Any = None, **options: Any) -> Any:
    keras.utils.set_random_seed(1)
    with STRATEGIES[strategy]().scope():
        model = kind()
        model.compile(optimizer or keras.optimizers.SGD(0.1), "mse", **options)
    return model


def fit(model: Any, num_rows: int = 11, **options: Any) -> Any:
    options = {"batch_size": 4, "shuffle": False, "verbose": 0, **options}
    return model.fit(ROWS[:num_rows], TARGETS[:num_rows], **options).history


def assert_equal(actual: Any, expected: Any) -> None:
    a, b = keras.tree.flatten(actual), keras.tree.flatten(expected)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


# Changes


@pytest.mark.cases("apart")
@pytest.mark.parametrize("strategy", ["none", "apart"])
@pytest.mark.long
def test_other_layers_that_are_frozen(strategy: str) -> None:
    """The layers are alike, so the program of one choice would take the state of another."""

    def run(kind: type[Any], strategy: str, *, again: bool) -> Any:
        model = made(kind, strategy)
        fit(model)
        for frozen, free in ((model.first, model.second), (model.second, model.first)):
            frozen.trainable, free.trainable = False, True
            if again:
                model.compile(keras.optimizers.SGD(0.1), "mse")
            before = frozen.kernel.numpy()
            fit(model, 4)
            np.testing.assert_array_equal(frozen.kernel.numpy(), before)
        return model.get_weights()

    assert_equal(run(Taped, strategy, again=False), run(Plain, "none", again=True))


class Thaw(keras.callbacks.Callback):
    """Freezes the second layer instead of the first, in the middle of an epoch."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        model: Any = self.model
        model.first.trainable, model.second.trainable = batch == 1, batch == 0


def test_a_callback_that_freezes_other_layers() -> None:
    model = made(Taped, "none")
    model(ROWS)
    first, second = model.first.kernel.numpy(), model.second.kernel.numpy()
    fit(model, 4, callbacks=[Thaw()])
    np.testing.assert_array_equal(model.first.kernel.numpy(), first)
    assert not np.allclose(model.second.kernel.numpy(), second)
    fit(model, 8, callbacks=[Thaw()])
    assert not np.allclose(model.first.kernel.numpy(), first)


@pytest.mark.cases("three")
@pytest.mark.parametrize("strategy", ["none", "three"])
@pytest.mark.long
def test_a_model_that_is_compiled_again(strategy: str) -> None:
    def run(kind: type[Any], strategy: str) -> Any:
        model = made(kind, strategy)
        histories = [fit(model)]
        loss = keras.losses.MeanAbsoluteError(reduction="sum")
        model.compile(keras.optimizers.Adam(0.1), loss, metrics=["mae", "mse"])  # outside the scope
        histories.append(fit(model))
        model.optimizer.learning_rate = 0.3
        histories.append(fit(model))
        return histories, model.get_weights(), [v.numpy() for v in model.optimizer.variables]

    assert_equal(run(Taped, strategy), run(Plain, "none"))


class Scaled(Taped):
    """Has a variable for what changes."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = replicant.Variable(1.0, trainable=False)

    @property
    def scale(self) -> Any:  # type: ignore[override]  # a number in the other class
        return self.factor.value()


@pytest.mark.long
def test_a_variable_that_changes_counts_at_once_and_an_attribute_once_the_model_is_compiled() -> None:
    losses = {}
    for kind in (Taped, Scaled):
        model = made(kind, "none", keras.optimizers.SGD(0.0))
        losses[kind] = fit(model, 8)["loss"]
        if kind is Scaled:
            model.factor.assign(3.0)
        else:
            model.scale = 3.0
        losses[kind] += fit(model, 8)["loss"]
        model.compile(keras.optimizers.SGD(0.0), "mse")
        losses[kind] += fit(model, 8)["loss"]
    once = losses[Taped][0]
    assert losses[Taped] == pytest.approx([once, once, 3 * once])
    assert losses[Scaled] == pytest.approx([once, 3 * once, 3 * once])


# Options of fit


@pytest.mark.cases("three")
@pytest.mark.parametrize("strategy", ["none", "three"])
@pytest.mark.long
def test_weights_of_classes_validation_and_several_steps_at_once(strategy: str) -> None:
    def run(kind: type[Any], strategy: str) -> Any:
        model = made(kind, strategy, steps_per_execution=3)
        validation = (ROWS[:7], TARGETS[:7], np.arange(7.0))
        labels = np.arange(11) % 2
        options = {"batch_size": 2, "epochs": 2, "shuffle": False, "verbose": 0, "validation_batch_size": 4}
        history = model.fit(ROWS, labels, class_weight={0: 1.0, 1: 3.0}, validation_data=validation, **options).history
        return history, model.get_weights()

    assert_equal(run(Taped, strategy), run(Plain, "none"))


def test_fit_in_a_thread() -> None:
    results: list[Any] = []

    def run() -> None:
        model = made(Taped, "apart")
        results.append([fit(model), model.get_weights()])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    run()
    assert_equal(*results)


@keras.saving.register_keras_serializable("replicant_tests")
class Saved(Taped):
    pass


@pytest.mark.long
def test_a_model_that_is_saved_and_loaded_goes_on(tmp_path: Path) -> None:
    model = made(Saved, "apart", keras.optimizers.Adam(0.1))
    fit(model)
    model.save(tmp_path / "model.keras")
    loaded: Any = keras.models.load_model(tmp_path / "model.keras")
    assert_equal(fit(loaded), fit(model))
    assert_equal(loaded.get_weights(), model.get_weights())


class NoCall(keras.Model):
    """A model whose layers are only called by its step."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = layers.Dense(1)

    def train_step(self, data: Any) -> Any:
        x, y = data
        with replicant.GradientTape() as tape:
            loss = ops.mean((self.inner(x) - y) ** 2)
        variables = self.inner.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


@pytest.mark.parametrize("steps", [1, 2])
def test_a_model_without_a_call_needs_no_warning(steps: int) -> None:
    model = made(NoCall, "none", steps_per_execution=steps)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        fit(model)
        fit(model)
    assert not [str(each.message) for each in seen if "build" in str(each.message)]
    assert model.optimizer.iterations == 6


# Mistakes


class Returning(Plain):
    """Returns what it is told to."""

    returned: Any = None

    def train_step(self, data: Any) -> Any:
        return self.returned(self)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (
            lambda self: {"note": "text"},
            r"the train_step of 'returning.*' returned 'text' at \['note'\], which is neither a number",
        ),
        (lambda self: {m.name: m for m in self.metrics}, r"returned <Mean name=loss> at \['loss'\], .* return metric\.result\(\)"),
        (lambda self: ops.ones(()), r"the train_step of 'returning.*' must return a dict of logs, .*; it returned .*Tracer"),
    ],
)
def test_logs_that_are_no_numbers(returned: Any, message: str) -> None:
    model = made(Returning, "none")
    model.returned = returned
    with pytest.raises(ArgumentError, match=message):
        fit(model)


def test_logs_of_any_shape() -> None:
    model = made(Returning, "three")
    model.returned = lambda self: {"rows": ops.arange(6.0), "number": 2, "nested": {"one": ops.ones(())}}
    history = fit(model, 4)
    np.testing.assert_array_equal(history["rows"][0], range(6))
    assert (history["number"], history["one"]) == ([2], [1])


class Failing(Taped):
    """Has two optimizers, and fails for batches of two rows when it has used both."""

    def __init__(self) -> None:
        super().__init__()
        self.other = keras.optimizers.Adam(0.1)

    def train_step(self, data: Any) -> Any:
        logs = super().train_step(data)
        self.other.apply_gradients([(ops.ones((4, 4)), self.first.kernel)])
        if data[0].shape[0] == 2:
            raise ZeroDivisionError("two rows")
        return logs


@pytest.mark.parametrize("options", [{}, {"steps_per_execution": 2}, {"run_eagerly": True}])
@pytest.mark.long_cases("options2")
def test_after_an_error_the_model_is_that_of_the_steps_before(options: dict[str, Any]) -> None:
    models = []
    for num_rows in (10, 8):  # batches of 4, 4 and 2 rows
        model = made(Failing, "apart", keras.optimizers.Adam(0.1), **options)
        if num_rows == 10:
            with pytest.raises(ZeroDivisionError, match="two rows"):
                fit(model, num_rows)
        else:
            fit(model, num_rows)
        models.append(model)
    broken, whole = models
    assert_equal(broken.get_weights(), whole.get_weights())
    assert_equal(fit(broken, 8), fit(whole, 8))
    assert_equal(*[[v.numpy() for each in (m.optimizer, m.other) for v in each.variables] for m in models])
