"""``fit``, ``evaluate`` and ``predict`` with steps in TensorFlow's form, ``train_step(self, data)``: equal to one device.

The references are Keras's own ``train_step`` for plain models, and loops by hand on one device for the others.
"""

import functools
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras import layers, ops

import replicant
from replicant.errors import ArgumentError, ContextError, LostStateError, MixedStrategyError
from replicant.keras.callbacks import BackupAndRestore, TerminateOnNaN
from replicant.keras.steps._stateful_step import is_stateful

TOLERANCE = 1e-6
ROWS = np.random.default_rng(0).normal(size=(11, 4)).astype(np.float32)  # batches of 4: 4, 4, 3
LABELS = np.random.default_rng(1).integers(0, 3, 11)
MANY = functools.partial(replicant.MirroredStrategy, ["cpu:0", "cpu:1"])
STRATEGIES: Mapping[str, Callable[[], Any]] = {
    "none": replicant.get_strategy,
    "fused": MANY,
    "apart": lambda: MANY(fuse_replicas=False),
    "three": lambda: replicant.MirroredStrategy([f"cpu:{i}" for i in range(3)], fuse_replicas=False),
    "sliced": lambda: MANY(fuse_replicas=False, shard_optimizer_state=True),
    "one": lambda: replicant.OneDeviceStrategy("cpu:1"),
}


@pytest.fixture(autouse=True)
def connected() -> None:
    """Connect Replicant and Keras, as the first strategy of a program does."""
    replicant.get_strategy()


# A plain model, in both forms


class Plain(keras.Model):
    """Keras's own steps."""

    def __init__(self) -> None:
        super().__init__()
        self.normalize, self.drop = layers.BatchNormalization(), layers.Dropout(0.3, seed=3)
        self.dense = layers.Dense(3, kernel_regularizer=keras.regularizers.L2(0.1))

    def call(self, x: Any, training: bool = False) -> Any:
        return self.dense(self.drop(self.normalize(x, training=training), training=training))


class Taped(Plain):
    """The same steps, as TensorFlow's guide writes them."""

    def train_step(self, data: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with replicant.GradientTape() as tape:
            predictions = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=predictions, sample_weight=weights)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self.updated(x, y, predictions, weights, loss)

    def test_step(self, data: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        predictions = self(x, training=False)
        return self.updated(x, y, predictions, weights, self.compute_loss(x=x, y=y, y_pred=predictions, sample_weight=weights))

    def predict_step(self, data: Any) -> Any:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return self(x, training=False)

    def updated(self, x: Any, y: Any, predictions: Any, weights: Any, loss: Any) -> Any:
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=x.shape[0])
            else:
                metric.update_state(y, predictions, sample_weight=weights)
        return {m.name: m.result() for m in self.metrics}


class Calling(Plain):
    """Keras's steps, called with the data alone."""

    def train_step(self, data: Any) -> Any:
        return super().train_step(data)

    def test_step(self, data: Any) -> Any:
        return super().test_step(data)

    def predict_step(self, data: Any) -> Any:
        return super().predict_step(data)


class Applying(Taped):
    """With `optimizer.apply`, in a function of its own."""

    @replicant.function
    def train_step(self, data: Any) -> Any:
        x, y = data
        with replicant.GradientTape() as tape:
            predictions = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=predictions)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return self.updated(x, y, predictions, None, loss)


def trained(kind: type[Any], strategy: str, *, optimizer: Any = None, weights: Any = None, **options: Any) -> Any:
    """What a fit with validation, an evaluation and predictions give."""
    keras.utils.set_random_seed(1)
    with STRATEGIES[strategy]().scope():
        model = kind()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer or keras.optimizers.Adam(0.01, clipnorm=1.0), loss, metrics=["accuracy"], **options)
    data = (ROWS, LABELS, weights)
    history = model.fit(*data[:2], sample_weight=weights, batch_size=4, epochs=2, shuffle=False, verbose=0).history
    tested = model.evaluate(ROWS, LABELS, batch_size=4, verbose=0, return_dict=True)
    once = model.train_on_batch(ROWS[:5], LABELS[:5], return_dict=True)
    return [history, tested, once, model.predict(ROWS, batch_size=4, verbose=0), model.get_weights()]


def assert_equal(actual: Any, expected: Any, tolerance: float = TOLERANCE) -> None:
    a, b = keras.tree.flatten(actual), keras.tree.flatten(expected)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


@functools.cache
def reference() -> Any:
    return trained(Plain, "none")


@pytest.mark.cases("none-Taped", "apart-Calling", "none-Applying")
@pytest.mark.parametrize("kind", [Taped, Calling, Applying])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.long_cases("apart-Calling", "none-Taped")
@pytest.mark.long_cases("none-Applying")
def test_it_equals_keras_own_steps(strategy: str, kind: type[Any]) -> None:
    assert_equal(trained(kind, strategy), reference())


@pytest.mark.cases("fused-options0")
@pytest.mark.parametrize("options", [{"steps_per_execution": 2}, {"jit_compile": False}, {"run_eagerly": True}])
@pytest.mark.parametrize("strategy", ["none", "fused", "apart"])
@pytest.mark.long
def test_options_of_compile(strategy: str, options: dict[str, Any]) -> None:
    assert_equal(trained(Taped, strategy, **options)[0], trained(Plain, "none", **options)[0])


OPTIMIZERS: Mapping[str, Callable[[], Any]] = {
    "scaling": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)),
    "accumulating": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2, use_ema=True, ema_overwrite_frequency=2),
}


@pytest.mark.cases("scaling")
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.long
def test_sample_weights_and_other_optimizers(name: str) -> None:
    def run(kind: type[Any], strategy: str) -> Any:
        weights = np.linspace(0, 2, 11).astype(np.float32)
        return trained(kind, strategy, optimizer=OPTIMIZERS[name](), weights=weights)

    assert_equal(run(Taped, "apart"), run(Plain, "none"))


class Printing(Taped):
    """Uses the values of a batch in Python."""

    def train_step(self, data: Any) -> Any:
        assert float(ops.sum(data[1])) >= 0
        return super().train_step(data)


class CallingAndPrinting(Calling):
    """Does, too, and takes Keras's step."""

    def train_step(self, data: Any) -> Any:
        assert float(ops.sum(data[1])) >= 0
        return super().train_step(data)


@pytest.mark.cases("apart-CallingAndPrinting")
@pytest.mark.parametrize("kind", [Printing, CallingAndPrinting])
@pytest.mark.parametrize("strategy", ["none", "apart"])
@pytest.mark.long
def test_eager_steps_see_values(strategy: str, kind: type[Any]) -> None:
    keras.utils.set_random_seed(1)
    with STRATEGIES[strategy]().scope():
        model = kind()
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    first = model.train_on_batch(ROWS[:4], LABELS[:4])
    assert model.train_on_batch(ROWS[:4], LABELS[:4]) != first


def test_the_statistics_of_the_replicas() -> None:
    def run(kind: type[Any]) -> Any:
        keras.utils.set_random_seed(1)
        with MANY(fuse_replicas=False).scope():
            model = kind()
            model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        replicant.keras.use_replica_statistics(model)
        model.fit(ROWS, LABELS, batch_size=4, shuffle=False, verbose=0)
        return model.get_weights()

    assert_equal(run(Taped), run(Plain))


# A GAN, a VAE and a distillation: several models and optimizers, no `call`


class Gan(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.discriminator = keras.Sequential([layers.Dense(6), layers.LeakyReLU(0.2), layers.Dense(1)])
        self.generator = keras.Sequential([layers.Dense(6, activation="tanh"), layers.Dense(4)])
        self.seeds = keras.random.SeedGenerator(5)

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:  # type: ignore[override]  # as in the guides
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn
        self.d_loss, self.g_loss = keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.d_loss, self.g_loss]

    def train_step(self, real: Any) -> Any:
        n = ops.shape(real)[0]
        generated = self.generator(keras.random.normal((n, 2), seed=self.seeds))
        labels = ops.concatenate([ops.ones((n, 1)), ops.zeros((n, 1))], axis=0)
        with replicant.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(ops.concatenate([generated, real], axis=0)))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))
        noise = keras.random.normal((n, 2), seed=self.seeds)
        with replicant.GradientTape() as tape:
            g_loss = self.loss_fn(ops.zeros((n, 1)), self.discriminator(self.generator(noise)))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {"d_loss": self.d_loss.result(), "g_loss": self.g_loss.result()}


class Vae(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = keras.Sequential([layers.Dense(4)]), keras.Sequential([layers.Dense(4)])
        self.seeds = keras.random.SeedGenerator(7)
        self.total, self.kl = keras.metrics.Mean(name="loss"), keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.total, self.kl]

    def train_step(self, data: Any) -> Any:
        with replicant.GradientTape() as tape:
            mean, log_var = ops.split(self.encoder(data), 2, axis=-1)
            z = mean + ops.exp(0.5 * log_var) * keras.random.normal(ops.shape(mean), seed=self.seeds)
            reconstruction = ops.mean(ops.sum(ops.square(data - self.decoder(z)), axis=-1))
            kl = ops.mean(ops.sum(-0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var)), axis=1))
            total = reconstruction + kl
        gradients = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.total.update_state(total)
        self.kl.update_state(kl)
        return {m.name: m.result() for m in self.metrics}


class Distiller(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = keras.Sequential([layers.Dense(3)]), keras.Sequential([layers.Dense(8), layers.Dense(3)])
        self.teacher.trainable = False
        self.temperature = replicant.Variable(3.0, trainable=False)

    def compile(self, optimizer: Any, metrics: Any, student_loss: Any, distillation_loss: Any) -> None:  # type: ignore[override]
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss, self.distillation_loss = student_loss, distillation_loss

    def call(self, x: Any) -> Any:
        return self.student(x)

    def train_step(self, data: Any) -> Any:
        x, y = data
        teachers = self.teacher(x, training=False)
        with replicant.GradientTape() as tape:
            students = self.student(x, training=True)
            own = self.student_loss(y, students)
            soft = [ops.softmax(each / self.temperature, axis=1) for each in (teachers, students)]
            loss = 0.1 * own + 0.9 * self.distillation_loss(*soft) * self.temperature**2
        weights = self.student.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.temperature.assign(self.temperature * 0.9)
        self.compute_metrics(x, y, students)
        return {"accuracy": self.get_metrics_result()["accuracy"], "student_loss": own}

    def test_step(self, data: Any) -> Any:
        x, y = data
        students = self.student(x, training=False)
        self.compute_metrics(x, y, students)
        return {"accuracy": self.get_metrics_result()["accuracy"], "student_loss": self.student_loss(y, students)}


def make(kind: type[Any], strategy: Any) -> Any:
    """Make and compile one of these models."""
    keras.utils.set_random_seed(2)
    with strategy.scope():
        model = kind()
        if issubclass(kind, Gan):
            model.compile(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1), keras.losses.BinaryCrossentropy(from_logits=True))
        elif kind is Vae:
            model.compile(keras.optimizers.Adam(0.01))
        else:
            own = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.Adam(0.01), ["accuracy"], own, keras.losses.KLDivergence())
    return model


def data_of(kind: type[Any]) -> tuple[Any, ...]:
    return (ROWS, LABELS) if kind is Distiller else (ROWS,)


def state_of(model: Any) -> list[np.ndarray]:
    optimizers = [model.d_optimizer, model.g_optimizer] if isinstance(model, Gan) else [model.optimizer]
    return [np.asarray(v.value) for v in [*model.variables, *[v for each in optimizers for v in each.variables]]]


@functools.cache
def by_hand(kind: type[Any]) -> tuple[Any, Any]:
    """A loop around the step as a function on one device: the logs of the last steps of the epochs, and the state."""
    model = make(kind, replicant.get_strategy())
    step = replicant.function(model.train_step)
    logs: list[Any] = []
    for _ in range(2):
        model.reset_metrics()
        for i in range(0, len(ROWS), 4):
            batch = [each[i : i + 4] for each in data_of(kind)]
            last = step(tuple(map(jnp.asarray, batch)) if len(batch) > 1 else jnp.asarray(batch[0]))
        logs.append(last)
    return [{name: float(value) for name, value in each.items()} for each in logs], state_of(model)


@pytest.mark.cases("none-Gan", "three-Vae")
@pytest.mark.parametrize("kind", [Gan, Vae, Distiller])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.long_cases("none-Gan")
@pytest.mark.long_cases("three-Vae")
def test_several_models_and_optimizers(strategy: str, kind: type[Any]) -> None:
    model = make(kind, STRATEGIES[strategy]())
    history = model.fit(*data_of(kind), batch_size=4, epochs=2, shuffle=False, verbose=0).history
    logs, state = by_hand(kind)
    found = [{name: values[epoch] for name, values in history.items()} for epoch in range(2)]
    for each, expected in zip(found, logs, strict=True):
        assert {name: pytest.approx(expected[name], rel=1e-5) for name in each} == each
    assert_equal(state_of(model), state, 1e-5)


@pytest.mark.cases("apart")
@pytest.mark.parametrize("strategy", ["none", "apart"])
@pytest.mark.long
def test_several_steps_per_execution(strategy: str) -> None:
    model = make(Gan, STRATEGIES[strategy]())
    model.steps_per_execution = 2
    model.fit(ROWS, batch_size=4, epochs=2, shuffle=False, verbose=0)
    assert_equal(state_of(model), by_hand(Gan)[1], 1e-5)


@pytest.mark.cases("1", "16")
@pytest.mark.parametrize("size", [1, 2, 16])
@pytest.mark.long
def test_batches_of_any_size(size: int) -> None:
    histories = []
    for strategy in ("none", "three"):
        model = make(Vae, STRATEGIES[strategy]())
        histories.append(model.fit(ROWS[:5], batch_size=size, shuffle=False, verbose=0).history)
    assert_equal(*histories, 1e-5)


@pytest.mark.long
def test_a_test_step_of_its_own() -> None:
    results = []
    for strategy in ("none", "apart"):
        model = make(Distiller, STRATEGIES[strategy]())
        tested = model.evaluate(ROWS, LABELS, batch_size=4, verbose=0, return_dict=True)
        results.append([tested, model.test_on_batch(ROWS[:3], LABELS[:3], return_dict=True)])
    assert_equal(*results)


@pytest.mark.long
def test_a_second_fit_goes_on() -> None:
    states = []
    for strategy in ("none", "apart"):
        model = make(Gan, STRATEGIES[strategy]())
        for _ in range(2):
            model.fit(ROWS[:6], batch_size=4, shuffle=False, verbose=0)
        held = model.d_optimizer.variables[-1].value
        model.d_optimizer.learning_rate = 0.5
        model.fit(ROWS[:6], batch_size=4, shuffle=False, verbose=0)
        assert not held.is_deleted()  # what somebody holds is not overwritten
        states.append(state_of(model))
    assert_equal(*states, 1e-5)


# Callbacks


class Stop(keras.callbacks.Callback):
    """Interrupts training after so many steps."""

    def __init__(self, num_steps: int) -> None:
        super().__init__()
        self.seen = iter(range(num_steps - 1)) if num_steps else iter(lambda: 0, 1)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if next(self.seen, None) is None:
            raise KeyboardInterrupt


@pytest.mark.long
def test_a_backup_holds_all_optimizers(tmp_path: Path) -> None:
    whole = make(Gan, STRATEGIES["apart"]())
    whole.fit(ROWS, batch_size=4, epochs=3, verbose=0)
    broken = make(Gan, STRATEGIES["apart"]())
    with pytest.raises(KeyboardInterrupt):
        broken.fit(ROWS, batch_size=4, epochs=3, verbose=0, callbacks=[BackupAndRestore(tmp_path / "b", save_freq=1), Stop(5)])
    again = make(Gan, STRATEGIES["none"]())
    again.fit(ROWS, batch_size=4, epochs=3, verbose=0, callbacks=[BackupAndRestore(tmp_path / "b", save_freq=1), Stop(0)])
    assert_equal(state_of(again), state_of(whole), 1e-5)


class Hiding(Plain):
    """A model whose step uses a variable that is no part of it."""

    def train_step(self, data: Any) -> Any:
        HIDDEN[-1].assign_add(1.0)
        return super().train_step(data)


HIDDEN: list[Any] = []


@pytest.mark.long
def test_a_backup_names_what_it_lacks(tmp_path: Path) -> None:
    HIDDEN.append(replicant.Variable(0.0, name="hidden"))
    model = Hiding()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.warns(UserWarning, match=r"A backup does not hold the variables \['hidden'\], which the train_step of 'hiding"):
        model.fit(ROWS, LABELS, batch_size=4, verbose=0, callbacks=[BackupAndRestore(tmp_path / "b", save_freq=1)])
    assert float(HIDDEN[-1].value()) == 3


@pytest.mark.long
def test_a_bad_batch_leaves_no_trace_in_any_optimizer() -> None:
    bad = ROWS.copy()
    bad[5] = np.nan
    states = []
    for rows in (bad, np.concatenate([ROWS[:4], ROWS[8:]])):
        model = make(NoisyGan, STRATEGIES["apart"]())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(rows, batch_size=4, epochs=1, shuffle=False, verbose=0, callbacks=[TerminateOnNaN("skip")])
        states.append([np.asarray(v.value) for each in (model.d_optimizer, model.g_optimizer) for v in each.variables])
    assert_equal(*states)


class NoisyGan(Gan):
    """One whose logs have a loss."""

    def train_step(self, real: Any) -> Any:
        logs = super().train_step(real)
        return logs | {"loss": logs["d_loss"]}


# The form


class Forms:
    def tensorflow(self, data: Any) -> None: ...
    def keras(self, state: Any, data: Any) -> None: ...
    def either(self, *args: Any, **kwargs: Any) -> None: ...
    def with_option(self, data: Any, scale: float = 1.0) -> None: ...
    @replicant.function
    def compiled(self, data: Any) -> None: ...


def test_the_signature_decides() -> None:
    forms = Forms()
    stateful = [forms.tensorflow, forms.with_option, forms.compiled]
    assert [is_stateful(step) for step in [*stateful, forms.keras, forms.either]] == [True] * 3 + [False] * 2


class Both(Plain):
    """Chooses a form by the backend, as Keras's pages do."""

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        return super().train_step(*args, **kwargs)


@pytest.mark.long
def test_a_model_with_both_forms() -> None:
    assert_equal(trained(Both, "apart"), reference())


# Mistakes


def fit_with(step: Callable[[Any, Any], Any], strategy: str = "none") -> Any:
    kind = type("Wrong", (Plain,), {"train_step": step})
    with STRATEGIES[strategy]().scope():
        model = kind()
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model.fit(ROWS, LABELS, batch_size=4, verbose=0)


def test_a_step_without_logs() -> None:
    with pytest.raises(ArgumentError, match=r"the train_step of 'wrong.*' must return a dict of logs, .* it returned NoneType"):
        fit_with(lambda self, data: None)


def test_a_traced_value_that_would_be_lost() -> None:
    def step(self: Any, data: Any) -> Any:
        self.last = data[0] + 1
        return {}

    with pytest.raises(LostStateError, match=r"the train_step of 'wrong.*' stores a traced value in .*last"):
        fit_with(step)


def test_run_inside_a_step() -> None:
    strategy = MANY()

    def step(self: Any, data: Any) -> Any:
        return {"loss": strategy.run(lambda x: x.sum(), args=(data[0],))}

    with pytest.raises(ContextError, match=r"strategy.run was called inside the train_step of 'wrong"):
        fit_with(step, "fused")


def test_another_error_of_the_step_is_the_users() -> None:
    def step(self: Any, data: Any) -> Any:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        fit_with(step)


def test_an_endless_supply_of_variables() -> None:
    def step(self: Any, data: Any) -> Any:
        return {"loss": layers.Dense(1)(data[0]).sum()}

    with pytest.raises(replicant.errors.ReplicantError, match=r"made variables in each of its 16 traces"):
        fit_with(step)


def test_an_error_in_the_middle_keeps_the_model() -> None:
    model = make(Gan, STRATEGIES["apart"]())

    class Broken(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return (ROWS[:4] if index < 2 else ROWS[:4, :2],)

    with pytest.raises(Exception, match=r"(?s)."):
        model.fit(Broken(), verbose=0, shuffle=False)
    assert all(np.isfinite(each).all() for each in state_of(model))


def test_keras_distribution() -> None:
    model = Taped()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0"]))
    try:
        with pytest.raises(MixedStrategyError, match=r"train_step of the model 'taped.*' takes only the data, and"):
            model.fit(ROWS, LABELS, verbose=0)
    finally:
        keras.distribution.set_distribution(None)
