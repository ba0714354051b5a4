"""Checkpoints of Keras's objects: models that are not built yet, optimizers, metrics, seeds, under strategies and without."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import replicant
from replicant.errors import CheckpointError

NUM_CLASSES = 3
GLOBAL_BATCH_SIZE = 12
TOPOLOGIES = [None, 1, 2, 3]


def strategy_of(num_replicas: int | None) -> replicant.Strategy:
    """The default strategy for None."""
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)]) if num_replicas else replicant.get_strategy()


def images(num_rows: int = 48) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, NUM_CLASSES, num_rows)
    return (rng.normal(size=(num_rows, 6, 6, 1)) + labels[:, None, None, None]).astype(np.float32), labels


def create_model(dropout: float = 0.0) -> keras.Model:
    """Without an input shape: its weights come into being in the first step."""
    return keras.Sequential(
        [
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(NUM_CLASSES),
        ]
    )


class Training:
    """A model that is trained under a strategy, as a user's program does it."""

    def __init__(self, num_replicas: int | None, dropout: float = 0.0, **optimizer_options: Any):
        self.strategy = strategy_of(num_replicas)
        with self.strategy.scope():
            self.model = create_model(dropout)
            self.optimizer = keras.optimizers.Adam(0.01, **optimizer_options)
            self.accuracy = keras.metrics.SparseCategoricalAccuracy()
        self.checkpoint = replicant.Checkpoint(model=self.model, optimizer=self.optimizer, accuracy=self.accuracy)
        self._loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        self._step = replicant.function(lambda batch: self.strategy.run(self._replica_step, args=(batch,)))

    def run(self, rows: slice) -> None:
        data = replicant.data.Dataset.from_tensor_slices(tuple(part[rows] for part in images())).batch(GLOBAL_BATCH_SIZE)
        for batch in self.strategy.experimental_distribute_dataset(data):
            self._step(batch)

    def _replica_step(self, batch: Any) -> None:
        rows, labels = batch
        with replicant.GradientTape() as tape:
            predictions = self.model(rows, training=True)
            loss = replicant.compute_average_loss(self._loss(labels, predictions), global_batch_size=GLOBAL_BATCH_SIZE)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        self.accuracy.update_state(labels, predictions)

    def state(self) -> list[np.ndarray]:
        return [np.asarray(variable.value) for variable in [*self.model.variables, *self.optimizer.variables]]


def assert_identical(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> None:
    assert [array.shape for array in first] == [array.shape for array in second]
    assert [array.tobytes() for array in first] == [array.tobytes() for array in second]


def evaluate(model: keras.Model) -> float:
    rows, labels = images()
    return float(np.mean(np.argmax(np.asarray(model(rows, training=False)), axis=-1) == labels))


# The flow of the guide: trained under a strategy, restored into new objects that have no variables yet


@pytest.mark.long
def test_a_lazily_built_model_is_restored_without_a_strategy(tmp_path: Path) -> None:
    training = Training(2)
    training.run(slice(0, 48))
    replicant.Checkpoint(optimizer=training.optimizer, model=training.model).save(tmp_path / "ckpt")

    model, optimizer = create_model(), keras.optimizers.Adam()
    checkpoint = replicant.Checkpoint(optimizer=optimizer, model=model)
    checkpoint.restore(replicant.latest_checkpoint(tmp_path)).assert_consumed()
    assert evaluate(model) == evaluate(training.model)
    restored = [np.asarray(variable.value) for variable in [*model.variables, *optimizer.variables]]
    assert_identical(restored, training.state())
    assert int(optimizer.iterations.value) == 4


def test_restored_weights_do_not_depend_on_the_names_that_keras_invents(tmp_path: Path) -> None:
    path = replicant.Checkpoint(model=built_model()).save(tmp_path / "ckpt")
    keras.layers.Dense(1), create_model()  # they take names away
    replicant.Checkpoint(model=built_model()).restore(path).assert_consumed()


@pytest.mark.cases("2-None", "3-2")
@pytest.mark.parametrize(("num_saved", "num_restored"), [(1, 2), (2, None), (2, 3), (3, 1), (3, 2)])
@pytest.mark.long_cases("2-None")
def test_training_continues_on_other_devices(tmp_path: Path, num_saved: int, num_restored: int | None) -> None:
    first = Training(num_saved)
    first.run(slice(0, 24))
    path = first.checkpoint.save(tmp_path / "ckpt")
    second = Training(num_restored)
    second.checkpoint.restore(path).assert_consumed()
    assert_identical(second.state(), first.state())
    assert float(second.accuracy.result()) == float(first.accuracy.result())
    second.run(slice(24, 48))
    assert int(second.optimizer.iterations.value) == 4
    assert float(np.asarray(second.accuracy.count.value)) == pytest.approx(48)


@pytest.mark.cases("2-{'gradient_accumulation_steps': 3}", "3-{}")
@pytest.mark.parametrize(
    ("num_replicas", "options"),
    [(None, {}), (2, {}), (3, {}), (2, {"use_ema": True, "amsgrad": True}), (2, {"gradient_accumulation_steps": 3})],
    ids=str,
)
@pytest.mark.long
def test_training_continues_exactly(tmp_path: Path, num_replicas: int | None, options: dict[str, Any]) -> None:
    """The same bits as a run that was never interrupted, dropout included."""
    keras.utils.set_random_seed(3)
    whole = Training(num_replicas, dropout=0.4, **options)
    whole.run(slice(0, 24))
    path = whole.checkpoint.save(tmp_path / "ckpt")
    whole.run(slice(24, 48))

    keras.utils.set_random_seed(4)
    continued = Training(num_replicas, dropout=0.4, **options)
    continued.checkpoint.restore(path).assert_consumed()
    continued.run(slice(24, 48))
    assert_identical(continued.state(), whole.state())


def test_going_back_in_a_running_program_repeats_it(tmp_path: Path) -> None:
    """Restored into variables that compiled steps already own."""
    keras.utils.set_random_seed(3)
    training = Training(2, dropout=0.4)
    training.run(slice(0, 24))
    training.checkpoint.save(tmp_path / "ckpt")
    training.run(slice(24, 48))
    expected = training.state()
    training.checkpoint.restore(tmp_path / "ckpt-1").assert_consumed()
    training.run(slice(24, 48))
    assert_identical(training.state(), expected)


# Optimizers


def built_model(units: int = 2) -> keras.Model:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(units, name="first"), keras.layers.Dense(1)])


def fill(optimizer: Any, model: keras.Model) -> None:
    """Build, and give every variable a value of its own."""
    optimizer.build(model.trainable_variables)
    for i, variable in enumerate(optimizer.variables):
        variable.assign(np.full(variable.shape, i + 1))


OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)),
    "RMSprop": lambda: keras.optimizers.RMSprop(centered=True, momentum=0.1),
    "Adafactor": keras.optimizers.Adafactor,
    "Muon": keras.optimizers.Muon,
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
}


@pytest.mark.parametrize("create", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("built", [False, True], ids=["unbuilt", "built"])
def test_optimizers_come_back(tmp_path: Path, create: Any, built: bool) -> None:
    model, optimizer = built_model(), create()
    fill(optimizer, model)
    path = replicant.Checkpoint(model=model, optimizer=optimizer).save(tmp_path / "ckpt")
    other, restored = built_model(), create()
    if built:
        restored.build(other.trainable_variables)
    replicant.Checkpoint(optimizer=restored, model=other).restore(path).assert_consumed()
    assert len(restored.variables) == len(optimizer.variables)
    for i, variable in enumerate(restored.variables):
        assert np.unique(np.asarray(variable.value)).tolist() == [i + 1]


def test_a_new_optimizer_knows_its_slots_by_what_they_are(tmp_path: Path) -> None:
    """A schedule instead of a rate shifts no other value."""
    model, optimizer = built_model(), keras.optimizers.SGD(0.1, momentum=0.9)
    fill(optimizer, model)
    path = replicant.Checkpoint(model=model, optimizer=optimizer).save(tmp_path / "ckpt")
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    restored = keras.optimizers.SGD(schedule, momentum=0.9)
    status = replicant.Checkpoint(model=model, optimizer=restored).restore(path).assert_existing_objects_matched()
    assert status.unexpected == ("optimizer/learning_rate",)
    assert [float(np.max(np.asarray(v.value))) for v in restored.variables] == [1, 3, 4, 5, 6]


def test_an_unbuilt_optimizer_without_its_model_says_what_to_do(tmp_path: Path) -> None:
    model, optimizer = built_model(), keras.optimizers.SGD(momentum=0.9)
    fill(optimizer, model)
    alone = replicant.Checkpoint(optimizer=optimizer).save(tmp_path / "alone")
    with pytest.raises(CheckpointError, match=r"'optimizer' \(SGD\) is not built, .* Add the model to the Checkpoint"):
        replicant.Checkpoint(optimizer=keras.optimizers.SGD(momentum=0.9)).restore(alone)
    together = replicant.Checkpoint(optimizer=optimizer, model=model).save(tmp_path / "together")
    message = r"\(not found: \['model/weights/0\.kernel', .*or build the optimizer first: optimizer\.build\("
    with pytest.raises(CheckpointError, match=message):
        replicant.Checkpoint(optimizer=keras.optimizers.SGD(momentum=0.9)).restore(together)

    restored = keras.optimizers.SGD(momentum=0.9)
    restored.build(built_model().trainable_variables)
    replicant.Checkpoint(optimizer=restored).restore(alone).assert_consumed()
    assert [float(np.max(np.asarray(v.value))) for v in restored.variables] == [1, 2, 3, 4, 5, 6]


def test_an_optimizer_built_in_another_order_is_refused(tmp_path: Path) -> None:
    model, optimizer = built_model(), keras.optimizers.SGD(momentum=0.9)
    fill(optimizer, model)
    path = replicant.Checkpoint(model=model, optimizer=optimizer).save(tmp_path / "ckpt")
    other, reversed_order = built_model(), keras.optimizers.SGD(momentum=0.9)
    reversed_order.build(other.trainable_variables[::-1])
    with pytest.raises(
        CheckpointError, match=r"'optimizer' was saved for the variables \['model/weights/0\.kernel', .*, in this order"
    ):
        replicant.Checkpoint(model=other, optimizer=reversed_order).restore(path)


def test_an_optimizer_that_was_never_used_comes_back(tmp_path: Path) -> None:
    path = replicant.Checkpoint(optimizer=keras.optimizers.Adam(0.25)).save(tmp_path / "ckpt")
    restored = keras.optimizers.Adam(0.5)
    replicant.Checkpoint(optimizer=restored).restore(path).assert_consumed()
    assert float(restored.learning_rate.value) == 0.25


# Models


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.first = keras.layers.Dense(4)
        self.blocks = [keras.Sequential([keras.layers.Dense(4)]) for _ in range(2)]
        self.norm = keras.layers.BatchNormalization()

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.norm(x, training=training)


class TwoInputs(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x: Any, y: Any) -> Any:
        return self.dense(x) + self.dense(y)


def test_a_subclassed_model_is_built_and_restored(tmp_path: Path) -> None:
    model, restored = Subclassed(), Subclassed()
    rows = np.linspace(0, 1, 10, dtype=np.float32).reshape(2, 5)
    expected = np.asarray(model(rows))
    path = replicant.Checkpoint(model=model).save(tmp_path / "ckpt")
    replicant.Checkpoint(model=restored).restore(path).assert_consumed()
    assert len(restored.weights) == 10
    assert np.asarray(restored(rows)).tobytes() == expected.tobytes()


def test_layers_are_saved_as_models_are(tmp_path: Path) -> None:
    layer, restored = keras.layers.Embedding(5, 2), keras.layers.Embedding(5, 2)
    layer.build((None,))
    path = replicant.Checkpoint(table=layer).save(tmp_path / "ckpt")
    replicant.Checkpoint(table=restored).restore(path).assert_consumed()
    assert np.asarray(restored.embeddings.value).tobytes() == np.asarray(layer.embeddings.value).tobytes()


class Configured(keras.layers.Layer):
    """A layer whose build config is not JSON."""

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(shape=(input_shape[-1],), name="kernel")

    def call(self, inputs: Any) -> Any:
        return inputs * self.kernel

    def get_build_config(self) -> Any:
        return {"input_shape": object()}


class Refusing(keras.layers.Layer):
    """A layer that cannot always be built."""

    ready = True

    def build(self, input_shape: Any) -> None:
        if not self.ready:
            raise ValueError("not today")
        self.kernel = self.add_weight(shape=(input_shape[-1],), name="kernel")

    def call(self, inputs: Any) -> Any:
        return inputs * self.kernel


@pytest.mark.parametrize(("saved", "found"), [(Configured(), Configured()), (Refusing(name="willing"), Refusing(name="other"))])
def test_a_layer_that_cannot_be_built_waits_for_its_first_call(tmp_path: Path, saved: Any, found: Any) -> None:
    """Why it cannot does not matter: the layer has no config, or its build needs something else first."""
    saved.build((2, 3))
    saved.kernel.assign([1.0, 2.0, 3.0])
    path = replicant.Checkpoint(layer=saved).save(tmp_path / "ckpt")
    Refusing.ready = False
    status = replicant.Checkpoint(layer=found).restore(path)
    assert status.deferred == ("layer/weights/0.kernel",)
    Refusing.ready = True
    found(np.ones((2, 3), np.float32))
    assert np.asarray(found.kernel.value).tolist() == [1.0, 2.0, 3.0]
    status.assert_consumed()


def test_a_layer_without_weights_waits_in_vain(tmp_path: Path) -> None:
    embedding, layer = keras.layers.Embedding(5, 2), keras.layers.Flatten()
    embedding.build((2, 3))
    path = replicant.Checkpoint(layer=embedding).save(tmp_path / "ckpt")
    status = replicant.Checkpoint(layer=layer).restore(path)
    with pytest.raises(CheckpointError, match=r"Waiting for variables that are not made yet .*:\n    layer/weights/0\.embeddings$"):
        status.assert_consumed()
    layer = keras.layers.Flatten()
    status = replicant.Checkpoint(layer=layer).restore(path)
    with pytest.warns(UserWarning, match=r"restored in part\.\n  In the checkpoint, .*\n    layer/weights/0\.embeddings\n"):
        layer(np.ones((2, 3), np.float32))
    layer(np.ones((2, 3), np.float32))


def test_other_shapes_are_listed(tmp_path: Path) -> None:
    path = replicant.Checkpoint(model=built_model(2)).save(tmp_path / "ckpt")
    with pytest.raises(
        CheckpointError, match=r"Other shape or dtype:\n    model/weights/0\.kernel: stored float32\[3, 2\], found float32\[3, 4\]"
    ):
        replicant.Checkpoint(model=built_model(4)).restore(path)


def test_another_model_leaves_open_ends(tmp_path: Path) -> None:
    path = replicant.Checkpoint(model=built_model(2)).save(tmp_path / "ckpt")
    longer = keras.Sequential([keras.Input((3,)), *built_model(2).layers, keras.layers.Dense(4)])
    status = replicant.Checkpoint(model=longer, epoch=0).restore(path)
    assert status.missing == ("epoch", "model/weights/4.kernel", "model/weights/5.bias")
    status.expect_partial()


def test_two_models_in_a_dict_share_a_layer(tmp_path: Path) -> None:
    def create() -> dict[str, keras.Model]:
        shared = keras.layers.Dense(3)
        return {"a": keras.Sequential([keras.Input((2,)), shared]), "b": keras.Sequential([keras.Input((2,)), shared])}

    models, restored = create(), create()
    path = replicant.Checkpoint(models=models).save(tmp_path / "ckpt")
    replicant.Checkpoint(models=restored).restore(path).assert_consumed()
    assert np.asarray(restored["b"](np.eye(2))).tobytes() == np.asarray(models["a"](np.eye(2))).tobytes()


# Metrics, variables, seeds


@pytest.mark.parametrize("num_restored", TOPOLOGIES)
def test_metrics_are_saved_as_their_sum_over_replicas(tmp_path: Path, num_restored: int | None) -> None:
    def create(num_replicas: int | None) -> tuple[replicant.Strategy, keras.metrics.Mean]:
        strategy = strategy_of(num_replicas)
        with strategy.scope():
            return strategy, keras.metrics.Mean()

    def update(strategy: replicant.Strategy, metric: keras.metrics.Mean, rows: list[float]) -> None:
        data = replicant.data.Dataset.from_tensor_slices(np.asarray(rows, np.float32)).batch(len(rows))
        for batch in strategy.experimental_distribute_dataset(data):
            strategy.run(metric.update_state, args=(batch,))

    strategy, metric = create(2)
    update(strategy, metric, [1.0, 2.0, 3.0])
    path = replicant.Checkpoint(m=metric).save(tmp_path / "ckpt")
    strategy, restored = create(num_restored)
    replicant.Checkpoint(m=restored).restore(path).assert_consumed()
    assert [float(np.asarray(v.value)) for v in restored.variables] == [6.0, 3.0]
    update(strategy, restored, [4.0])
    assert [float(np.asarray(v.value)) for v in restored.variables] == pytest.approx([10.0, 4.0])
    assert float(restored.result()) == pytest.approx(2.5)


def test_keras_variables_and_seed_generators_come_back(tmp_path: Path) -> None:
    variable, seeds = keras.Variable([1.0, 2.0], dtype="bfloat16"), keras.random.SeedGenerator(5)
    keras.random.normal((2,), seed=seeds)
    path = replicant.Checkpoint(v=variable, state=[seeds, 3]).save(tmp_path / "ckpt")
    expected = np.asarray(keras.random.normal((2,), seed=seeds))
    restored, other = keras.Variable([0.0, 0.0], dtype="bfloat16"), keras.random.SeedGenerator(6)
    replicant.Checkpoint(v=restored, state=[other, 0]).restore(path).assert_consumed()
    assert np.asarray(restored.value).tolist() == [1.0, 2.0]
    assert np.asarray(keras.random.normal((2,), seed=other)).tobytes() == expected.tobytes()


def test_dropout_of_a_model_continues_identically(tmp_path: Path) -> None:
    def create() -> keras.Model:
        return keras.Sequential([keras.Input((50,)), keras.layers.Dropout(0.5), keras.layers.GaussianNoise(1.0)])

    model, restored, rows = create(), create(), np.ones((1, 50), np.float32)
    model(rows, training=True)
    path = replicant.Checkpoint(model=model).save(tmp_path / "ckpt")
    replicant.Checkpoint(model=restored).restore(path).assert_consumed()
    for _ in range(2):
        assert np.asarray(restored(rows, training=True)).tobytes() == np.asarray(model(rows, training=True)).tobytes()


@pytest.mark.parametrize("topologies", [(1, 4), pytest.param((1, 2, 4, 8), marks=pytest.mark.slow)], ids=str)
@pytest.mark.long
def test_evaluation_does_not_depend_on_the_devices_that_saved_or_restore(tmp_path: Path, topologies: tuple[int, ...]) -> None:
    """Saved on n, restored on m: the same loss and accuracy, for all n and m."""
    rows, labels = images()

    def compiled(num_replicas: int) -> keras.Model:
        with strategy_of(num_replicas).scope():
            model = create_model()
            model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
        return model

    models = {m: compiled(m) for m in topologies}
    for n in topologies:
        trained = compiled(n)
        trained.fit(rows, labels, batch_size=16, epochs=1, verbose=0)
        path = replicant.Checkpoint(model=trained).save(tmp_path / f"on-{n}")
        expected = trained.evaluate(rows, labels, batch_size=48, verbose=0)
        for m in topologies:
            replicant.Checkpoint(model=models[m]).restore(path).assert_consumed()
            found = models[m].evaluate(rows, labels, batch_size=48, verbose=0)
            assert [array.tobytes() for array in models[m].get_weights()] == [array.tobytes() for array in trained.get_weights()]
            assert found == pytest.approx(expected, rel=1e-6)


def test_a_normalization_computes_anew_from_restored_statistics(tmp_path: Path) -> None:
    adapted = keras.layers.Normalization()
    adapted.adapt(np.array([[1.0], [3.0]], np.float32))
    path = replicant.Checkpoint(layer=adapted).save(tmp_path / "ckpt")
    fresh = keras.layers.Normalization()
    fresh.build((None, 1))
    replicant.Checkpoint(layer=fresh).restore(path).assert_consumed()
    assert np.asarray(fresh(np.array([[4.0]], np.float32))).tolist() == [[2.0]]
