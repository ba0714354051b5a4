"""What users of other libraries asked for in public, as programs: docs/reports.md has a row for each, and names its test.

All replicas have devices of their own here, and the batches do not divide evenly: 21 rows in batches of 8 are 3, 3 and 2 rows on
three devices, and 2, 2 and 1 at the end. What one device computes is what is expected.
"""

import re
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant.data import Dataset, TarDataset

ROOT = Path(__file__).resolve().parents[2]
ROWS, BATCH = 21, 8
FEATURES = np.random.default_rng(0).normal(size=(ROWS, 6)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 3, ROWS)


def apart(num_replicas: int) -> Any:
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)], fuse_replicas=False)


def batches(size: int = BATCH, rows: int = ROWS) -> Dataset:
    return Dataset.from_tensor_slices((FEATURES[:rows], LABELS[:rows])).batch(size)


def classifier(*middle: Any) -> keras.Model:
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, "tanh"), *middle, keras.layers.Dense(3)])


def compiled(strategy: Any, make: Callable[[], keras.Model] = classifier, metrics: Any = ("accuracy",), rate: Any = 0.1) -> Any:
    with strategy.scope():
        model = make()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss, metrics=list(metrics))
    return model


def assert_same(found: Any, expected: Any) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def one() -> Any:
    return replicant.get_strategy()


def trainer(strategy: Any, model: Any, optimizer: Any, loss_of: Callable[..., Any] | None = None) -> Any:
    """A step of a loop of one's own. The loss is the mean over the rows that all replicas have together."""
    loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def step(inputs: Any) -> Any:
        x, y = inputs
        count = replicant.get_replica_context().all_reduce("SUM", jnp.asarray(x.shape[0]))
        with replicant.GradientTape() as tape:
            losses = loss_object(y, model(x, training=True)) if loss_of is None else loss_of(x, y)
            loss = jnp.sum(losses) / count
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        return loss

    return replicant.function(lambda inputs: strategy.reduce("SUM", strategy.run(step, args=(inputs,)), axis=None))


def trained(strategy: Any, dataset: Dataset, *, make: Callable[[], keras.Model] = classifier, epochs: int = 2) -> tuple[Any, Any]:
    with strategy.scope():
        model, optimizer = make(), keras.optimizers.SGD(0.1, momentum=0.9)
    train = trainer(strategy, model, optimizer)
    shared = strategy.experimental_distribute_dataset(dataset)
    return [float(train(batch)) for _ in range(epochs) for batch in shared], model.get_weights()


# Rows that the devices cannot share evenly.


def test_every_row_is_evaluated_and_predicted_once() -> None:
    expected, found = compiled(one()), compiled(apart(3))
    expected.fit(batches(), epochs=2, verbose=0)
    found.fit(batches(), epochs=2, verbose=0)
    assert_same(found.get_weights(), expected.get_weights())
    assert_same(found.evaluate(batches(), verbose=0), expected.evaluate(batches(), verbose=0))
    predicted = found.predict(batches(), verbose=0)
    assert predicted.shape == (21, 3)
    np.testing.assert_allclose(predicted, expected.predict(batches(), verbose=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_replicas", [2, 3, 4])
def test_validation_does_not_depend_on_the_number_of_devices(num_replicas: int) -> None:
    """Five rows, of which some devices may have none: accuracies are fifths."""
    loss, accuracy = compiled(apart(num_replicas)).evaluate(batches(8, rows=5), verbose=0)
    assert_same([loss, accuracy], compiled(one()).evaluate(batches(8, rows=5), verbose=0))
    assert round(accuracy * 5, 4) in range(6)


@pytest.mark.parametrize("rows", [9, 17])
def test_a_replica_without_rows_makes_no_nan(rows: int) -> None:
    """The last batch has one row for four replicas."""
    expected, found = trained(one(), batches(rows=rows)), trained(apart(4), batches(rows=rows))
    assert np.isfinite(found[0]).all()
    assert_same(found[0], expected[0])
    assert_same(found[1], expected[1])


def test_batch_normalization_in_fit_on_a_short_last_batch() -> None:
    def make() -> keras.Model:
        return classifier(keras.layers.BatchNormalization())

    expected, found = compiled(one(), make), compiled(apart(4), make)
    expected.fit(batches(rows=17), epochs=2, verbose=0)
    found.fit(batches(rows=17), epochs=2, verbose=0)
    assert_same(found.get_weights(), expected.get_weights())


def test_batch_normalization_in_a_loop_with_a_replica_without_rows() -> None:
    """Each replica normalizes its own rows, as in TensorFlow; who has none changes no statistics."""
    losses, weights = trained(apart(4), batches(rows=17), make=lambda: classifier(keras.layers.BatchNormalization()))
    assert len(losses) == 6
    assert np.isfinite(losses).all()
    assert all(np.isfinite(weight).all() for weight in weights)


def test_accuracy_is_a_share_on_any_number_of_devices() -> None:
    metrics = ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2, name="top")]
    history = compiled(apart(3), metrics=metrics).fit(batches(), verbose=0).history
    expected = compiled(one(), metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2, name="top")])
    assert 0 < history["accuracy"][0] <= history["top"][0] <= 1
    theirs = expected.fit(batches(), verbose=0).history
    assert_same([history[name] for name in ("loss", "accuracy", "top")], [theirs[name] for name in ("loss", "accuracy", "top")])


@pytest.mark.parametrize("rows", [5, 16, 21])
def test_every_row_is_gathered_once(rows: int) -> None:
    """Also the last batch, whether it divides evenly (16) or not."""
    strategy = apart(3)
    shared = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(np.arange(rows)).batch(BATCH))
    gathered = [strategy.gather(strategy.run(lambda x: x, args=(batch,)), axis=0) for batch in shared]
    assert np.concatenate(gathered).tolist() == list(range(rows))


def test_metrics_in_a_step_count_every_row_once() -> None:
    strategy = apart(3)
    with strategy.scope():
        mean, rows = keras.metrics.Mean(), keras.metrics.Sum()

    def step(x: Any) -> None:
        mean.update_state(x)
        rows.update_state(jnp.ones_like(x))

    shared = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(np.arange(21, dtype=np.float32)).batch(BATCH))
    for batch in shared:
        strategy.run(step, args=(batch,))
    assert (float(mean.result()), float(rows.result())) == (10.0, 21.0)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras warns where the length is not known
def test_batches_of_unknown_and_different_sizes_are_fitted() -> None:
    def pieces() -> Any:
        for begin, end in ((0, 3), (3, 4), (4, 11), (11, 21)):
            yield FEATURES[begin:end], LABELS[begin:end]

    expected, found = compiled(one()), compiled(apart(3))
    expected.fit(Dataset.from_generator(pieces), verbose=0)
    found.fit(Dataset.from_generator(pieces), verbose=0)
    assert_same(found.get_weights(), expected.get_weights())


def test_the_shares_of_input_pipelines_are_disjoint_and_complete() -> None:
    strategy = apart(3)
    shared = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(np.arange(21)).batch(BATCH))
    shares = [[np.asarray(x).tolist() for x in strategy.experimental_local_results(batch)] for batch in shared]
    assert shares == [
        [[0, 1, 2], [3, 4, 5], [6, 7]],
        [[8, 9, 10], [11, 12, 13], [14, 15]],
        [[16, 17], [18, 19], [20]],
    ]


def test_an_order_of_ones_own_is_kept() -> None:
    """A loader of another library, with a sampler of its user's: nothing is put in its place."""
    order = [5, 5, 1, 20, 2, 2, 2, 0, 7]
    strategy = apart(2)
    shared = strategy.experimental_distribute_dataset([FEATURES[order[:5]], FEATURES[order[5:]]])
    seen = [strategy.gather(batch, axis=0) for batch in shared]
    np.testing.assert_array_equal(np.concatenate(seen), FEATURES[order])


def test_a_shuffle_takes_another_order_in_every_epoch() -> None:
    strategy = apart(3)
    shared = strategy.experimental_distribute_dataset(Dataset.range(21).shuffle(21, seed=4).batch(BATCH))
    first, second = ([x for batch in shared for x in np.asarray(strategy.gather(batch, axis=0)).tolist()] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(21))
    assert first != second != list(range(21))


def test_a_part_of_a_shuffle_stays_the_same_part() -> None:
    part = Dataset.range(10).shuffle(10, seed=42, reshuffle_each_iteration=False).take(4)
    seen = [int(x) for x in part.repeat(3).as_numpy_iterator()]
    assert len(set(seen)) == 4
    assert seen == seen[:4] * 3


def test_one_archive_is_enough_for_four_devices(tmp_path: Path) -> None:
    path = tmp_path / "valid-000000.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(5):
            member = tarfile.TarInfo(f"{number:03d}.cls")
            member.size = 1
            archive.addfile(member, BytesIO(str(number).encode()))
    strategy = apart(4)
    samples = TarDataset(str(path)).map(lambda sample: int(sample["cls"])).batch(BATCH)
    (batch,) = strategy.experimental_distribute_dataset(samples)
    assert [np.asarray(x).tolist() for x in strategy.experimental_local_results(batch)] == [[0, 1], [2, 3], [4], []]


# Losses, schedules and steps of one's own.


def test_training_gives_the_weights_of_one_device() -> None:
    expected, found = trained(one(), batches()), trained(apart(3), batches())
    assert_same(found[0], expected[0])
    assert_same(found[1], expected[1])


def test_fit_and_a_loop_report_the_same_loss() -> None:
    """Where a batch is short, the mean over an epoch weighs its rows, not its steps."""
    losses, weights = trained(apart(3), batches(), epochs=1)
    model = compiled(apart(3))
    history = model.fit(batches(), verbose=0).history
    assert_same(model.get_weights(), weights)
    np.testing.assert_allclose(history["loss"][0], (8 * losses[0] + 8 * losses[1] + 5 * losses[2]) / 21, rtol=1e-5)


def test_sequences_of_every_length_and_number() -> None:
    """Buckets: batches of 6, 3 and 1 sequences, which are padded to different lengths."""
    rng = np.random.default_rng(2)
    buckets = [(rng.integers(1, 9, (rows, length)), rng.integers(0, 3, rows)) for rows, length in ((6, 2), (3, 5), (1, 11))]

    def make() -> keras.Model:
        keras.utils.set_random_seed(3)
        return keras.Sequential([keras.layers.Embedding(9, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(3)])

    def run(strategy: Any) -> tuple[Any, Any]:
        return trained(strategy, Dataset.from_generator(lambda: iter(buckets)), make=make)

    expected, found = run(one()), run(apart(4))
    assert_same(found[0], expected[0])
    assert_same(found[1], expected[1])


class Halving(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step: Any) -> Any:
        return 0.4 * 0.5 ** keras.ops.cast(step, "float32")


def test_a_schedule_of_ones_own_is_followed() -> None:
    found, expected = compiled(apart(3), rate=Halving()), compiled(one(), rate=Halving())
    for model in (found, expected):
        model.fit(batches(), epochs=2, verbose=0)
    assert_same(found.get_weights(), expected.get_weights())
    assert float(found.optimizer.learning_rate) == pytest.approx(0.4 * 0.5**6)


class OwnStep(keras.Model):
    """A model that trains itself, and adds a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = classifier()

    def call(self, x: Any) -> Any:
        return self.inner(x)

    def train_step(self, state: Any, data: Any) -> Any:
        return super().train_step(state, (data[0], data[1]))


def test_a_model_with_its_own_train_step() -> None:
    found, expected = compiled(apart(3), OwnStep), compiled(one(), OwnStep)
    for model in (found, expected):
        model.fit(batches(), epochs=2, verbose=0)
    assert_same(found.get_weights(), expected.get_weights())


# What goes on after a stop.


def test_a_saved_model_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    whole, first = compiled(apart(3)), compiled(apart(3))
    whole.fit(batches(), epochs=4, verbose=0)
    first.fit(batches(), epochs=2, verbose=0)
    first.save(tmp_path / "model.keras")
    with apart(2).scope():
        second = keras.models.load_model(tmp_path / "model.keras")
    second.fit(batches(), epochs=2, verbose=0)
    assert [metric.name for metric in second.metrics] == [metric.name for metric in first.metrics]
    assert_same(second.get_weights(), whole.get_weights())


def test_a_file_of_keras_does_not_hold_the_seeds_of_dropout(tmp_path: Path) -> None:
    """That is told where training goes on from it, and only there."""
    model = compiled(apart(3), lambda: classifier(keras.layers.Dropout(0.5, seed=7, name="drop")))
    model.fit(batches(), verbose=0)
    model.fit(batches(), verbose=0)
    model.save(tmp_path / "model.keras")
    with apart(3).scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    loaded.evaluate(batches(), verbose=0)
    with pytest.warns(UserWarning, match=r"goes on after 6 steps, but the random seeds of drop begin anew: files of Keras"):
        loaded.fit(batches(), verbose=0)
    loaded.fit(batches(), verbose=0)


def test_a_loop_with_dropout_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """Weights, the optimizer's momentum and the seeds of dropout are in a checkpoint."""

    def begin() -> tuple[Any, Any, Any, Any]:
        strategy = apart(3)
        with strategy.scope():
            model, optimizer = classifier(keras.layers.Dropout(0.5)), keras.optimizers.SGD(0.1, momentum=0.9)
            optimizer.build(model.trainable_variables)
        return strategy, model, trainer(strategy, model, optimizer), replicant.Checkpoint(model=model, optimizer=optimizer)

    def epoch(strategy: Any, train: Any) -> list[float]:
        return [float(train(batch)) for batch in strategy.experimental_distribute_dataset(batches())]

    strategy, _, train, checkpoint = begin()
    epoch(strategy, train)
    path = checkpoint.save(tmp_path / "ckpt")
    expected = epoch(strategy, train)
    strategy, _, train, checkpoint = begin()
    checkpoint.restore(path)
    assert epoch(strategy, train) == expected


@pytest.mark.parametrize("num_devices", [1, 2, 3])
def test_slices_of_four_devices_are_restored_on_others(tmp_path: Path, num_devices: int) -> None:
    def model_on(devices: int) -> keras.Model:
        strategy = replicant.FullyShardedStrategy([f"cpu:{i}" for i in range(devices)])
        return compiled(strategy)

    before = model_on(4)
    before.fit(batches(), verbose=0)
    path = replicant.Checkpoint(model=before).save(tmp_path / "ckpt")
    after = model_on(num_devices)
    replicant.Checkpoint(model=after).restore(path)
    assert_same(after.get_weights(), before.get_weights())
    assert_same(after.evaluate(batches(), verbose=0), before.evaluate(batches(), verbose=0))


def test_a_checkpoint_says_what_is_in_it(tmp_path: Path) -> None:
    """Nothing of the program that wrote it is needed, and none of its devices."""
    model = compiled(replicant.FullyShardedStrategy([f"cpu:{i}" for i in range(4)]))
    path = replicant.Checkpoint(model=model).save(tmp_path / "ckpt")
    shapes = sorted(tuple(shape) for _, shape in replicant.list_variables(path) if len(shape) == 2)
    assert shapes == [(5, 3), (6, 5)]


def test_earlier_steps_are_saved_after_later_ones(tmp_path: Path) -> None:
    """They are written, and it is said that a restart takes the highest number."""
    value = replicant.Variable(1.0)
    with replicant.CheckpointManager(replicant.Checkpoint(value=value), tmp_path, max_to_keep=5) as manager:
        for number in (10, 20, 30):
            manager.save(number)
        value.assign(2.0)
        with pytest.warns(UserWarning, match="save: the number 15 is lower than 30"):
            path = manager.save(15)
        value.assign(3.0)
        replicant.Checkpoint(value=value).restore(path)
        assert float(value.value()) == 2.0
    assert str(replicant.latest_checkpoint(tmp_path)).endswith("ckpt-30")


def test_the_optimizers_of_tables_that_keras_rs_ignores_are_told() -> None:
    keras_rs = pytest.importorskip("keras_rs", reason="pip install keras-rs")
    indices, targets = np.arange(BATCH, dtype=np.int32), np.ones((BATCH, 1), np.float32)

    def model(optimizer: str) -> Any:
        table = keras_rs.layers.TableConfig("words", 10, 4, optimizer="adagrad", placement="default_device")
        features = {"words": keras_rs.layers.FeatureConfig("words", table, (BATCH,), (BATCH, 4))}
        inputs = {"words": keras.Input((), dtype="int32", batch_size=BATCH, name="words")}
        with apart(2).scope():
            embedded = keras_rs.layers.DistributedEmbedding(features)(inputs)["words"]
            made = keras.Model(inputs, keras.layers.Dense(1)(embedded))
            made.compile(optimizer, "mse")
        return made

    with pytest.warns(
        UserWarning, match=r"the model's SGD trains all tables of 'distributed_embedding.*', also 'words' \(adagrad\)"
    ):
        model("sgd").fit({"words": indices}, targets, batch_size=BATCH, verbose=0)
    model("adagrad").fit({"words": indices}, targets, batch_size=BATCH, verbose=0)


# The page.


def rows_of_the_page() -> list[list[str]]:
    text = (ROOT / "docs" / "reports.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.splitlines() if line.startswith("| [")]
    assert len(rows) >= 45
    return rows


def test_every_report_names_a_test_that_exists() -> None:
    libraries = set()
    for report, _, test in rows_of_the_page():
        link = re.fullmatch(r"\[([\w.-]+/[\w.-]+)#(\d+)\]\(https://github\.com/([\w.-]+/[\w.-]+)/issues/(\d+)\)", report)
        assert link is not None, report
        assert link.group(1, 2) == link.group(3, 4), report
        libraries.add(link.group(1))
        file, _, name = test.strip("`").partition("::")
        assert re.search(rf"^def {re.escape(name)}\(", (ROOT / "tests" / file).read_text(encoding="utf-8"), re.MULTILINE), test
    assert len(rows_of_the_page()) == len({row[0] for row in rows_of_the_page()})
    assert libraries >= {
        "tensorflow/tensorflow",
        "keras-team/keras",
        "huggingface/accelerate",
        "Lightning-AI/pytorch-lightning",
        "horovod/horovod",
        "webdataset/webdataset",
        "google/grain",
        "huggingface/datasets",
        "pytorch/pytorch",
        "google/orbax",
        "google/flax",
    }
