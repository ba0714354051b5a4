"""Batches that are NaN or infinite leave no trace: training equals one whose data never had them."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import replicant
from replicant.data import Dataset
from replicant.errors import ArgumentError, CheckpointError, NonFiniteError
from replicant.keras.callbacks import BackupAndRestore, TerminateOnNaN
from replicant.keras.loops._nan_guard import _is_good, switch_of
from replicant.keras.loops._train_function import TrainFunction

BATCH_SIZE = 4
ROWS = np.random.default_rng(0).normal(size=(28, 5)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 3, 28)


def data(bad: Sequence[int] = (), without: Sequence[int] = (), value: float = np.nan, num_rows: int = 28) -> Dataset:
    """Seven batches, of which some are bad and some are left out."""
    rows = ROWS.copy()
    for number in bad:
        rows[number * BATCH_SIZE + 1, 2] = value
    keep = np.array([i for i in range(num_rows) if i // BATCH_SIZE not in without])
    return Dataset.from_tensor_slices((rows[keep], LABELS[keep])).batch(BATCH_SIZE)


def create(num_replicas: int = 0, **options: Any) -> Any:
    keras.utils.set_random_seed(1)
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)]) if num_replicas else replicant.get_strategy()
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Dense(6, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(3),
            ]
        )
        model.compile(
            keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.01, 3, 0.9)),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            **options,
        )
    return model


def create_small(num_replicas: int = 0, **options: Any) -> Any:
    """One that compiles fast."""
    keras.utils.set_random_seed(1)
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)]) if num_replicas else replicant.get_strategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), **options)
    return model


def state(model: Any) -> list[np.ndarray]:
    return [np.asarray(v.value) for v in [*model.variables, *model.optimizer.variables, *model.metrics_variables]]


def fit(model: Any, dataset: Any, *callbacks: Any, epochs: int = 2, **options: Any) -> dict[str, list[float]]:
    """Without the warnings, which have a test."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The loss became|The step would")
        return model.fit(dataset, epochs=epochs, verbose=0, callbacks=list(callbacks), **options).history


@pytest.mark.parametrize(
    ("num_replicas", "options", "value", "bad"),
    [
        pytest.param(0, {}, np.nan, (0, 3), marks=pytest.mark.slow),
        (2, {}, np.inf, (2, 6)),
        pytest.param(0, {"run_eagerly": True}, np.nan, (3,), marks=pytest.mark.slow),
        pytest.param(2, {"steps_per_execution": 3}, np.nan, (1, 5), marks=pytest.mark.slow),
        pytest.param(0, {"steps_per_execution": 2}, np.nan, (6,), marks=pytest.mark.slow),
    ],
    ids=["plain", "two replicas", "eager", "several steps on two replicas", "several steps"],
)
@pytest.mark.long_cases("two replicas")
def test_a_skipped_batch_was_never_there(num_replicas: int, options: dict[str, Any], value: float, bad: Sequence[int]) -> None:
    model, expected = create(num_replicas, **options), create(num_replicas, **options)
    skip = TerminateOnNaN("skip")
    history = fit(model, data(bad, value=value, num_rows=26), skip)  # the last batch has two rows
    wanted = fit(expected, data(without=bad, num_rows=26), TerminateOnNaN("skip"))
    assert skip.num_skipped == 2 * len(bad)
    tolerance = 1e-6 if "steps_per_execution" in options else 0.0  # other steps are one program, then
    for name in wanted:
        np.testing.assert_allclose(history[name], wanted[name], rtol=tolerance, atol=tolerance)
    for x, y in zip(state(model), state(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("num_replicas", [0, 2])
def test_one_of_several_steps_is_skipped(num_replicas: int) -> None:
    model, expected = create_small(num_replicas, steps_per_execution=3), create_small(num_replicas, steps_per_execution=3)
    skip = TerminateOnNaN("skip")
    history = fit(model, data((1, 2, 5)), skip, epochs=1)
    wanted = fit(expected, data(without=(1, 2, 5)), TerminateOnNaN("skip"), epochs=1)
    assert skip.num_skipped == 3
    np.testing.assert_allclose(history["loss"], wanted["loss"], rtol=1e-6)
    for x, y in zip(state(model), state(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)


def test_good_batches_are_trained_on_as_ever() -> None:
    model, expected = create_small(), create_small()
    history, wanted = fit(model, data(), TerminateOnNaN()), fit(expected, data())
    np.testing.assert_allclose(history["loss"], wanted["loss"], rtol=1e-6)
    for x, y in zip(state(model), state(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    assert not isinstance(expected.train_function, TrainFunction)


def test_what_is_skipped_is_told() -> None:
    skip = TerminateOnNaN("skip")
    with pytest.warns(UserWarning, match="The batch is skipped") as told:
        create_small().fit(data((2, 6)), epochs=2, verbose=0, callbacks=[skip])
    assert [str(warning.message) for warning in told] == [
        f"The loss became nan in epoch {epoch}, batch {batch} (step {step} of this fit). The batch is skipped."
        for epoch, batch, step in [(1, 3, 3), (1, 7, 7), (2, 3, 10), (2, 7, 14)]
    ]


class Noticing(keras.callbacks.Callback):
    """Whether training ended well. As it looks at every batch, Keras starts no threads, which an error would leave behind."""

    has_ended = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        assert logs is not None

    def on_train_end(self, logs: Any = None) -> None:
        self.has_ended = True


@pytest.mark.parametrize("options", [{}, {"steps_per_execution": 3}], ids=str)
def test_stopped_before_the_bad_batch(options: dict[str, Any]) -> None:
    model, expected, noticing = create_small(2, **options), create_small(2, **options), Noticing()
    message = (
        r"^The loss became nan in epoch 1, batch 4 \(step 4 of this fit\)\. "
        r"The model is as it was before that batch\. Check the batch"
    )
    with pytest.raises(NonFiniteError, match=message):
        fit(model, data((3, 4)), TerminateOnNaN(), noticing)
    assert not noticing.has_ended
    fit(expected, data().take(3), TerminateOnNaN(), epochs=1)
    for x, y in zip(state(model), state(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)


def test_the_last_batch_stops_before_the_validation() -> None:
    seen: list[int] = []

    class Testing(keras.callbacks.Callback):
        def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
            seen.append(batch)

    with pytest.raises(NonFiniteError, match=r"epoch 1, batch 7 \(step 7 of"):
        fit(create_small(), data((6,)), Testing(), TerminateOnNaN(), validation_data=data())
    assert seen == []


def square_root(y: Any, predictions: Any) -> Any:
    """A loss of 0 whose gradient is NaN, where the label is 7."""
    bad = y == 7
    root = keras.ops.sqrt(keras.ops.where(bad, predictions * 0.0, 1.0))
    return keras.ops.mean(keras.ops.where(bad, root, keras.ops.square(predictions - y)))


def test_a_bad_update_with_a_fine_loss_is_found() -> None:
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    model.compile("sgd", square_root)
    labels = np.ones((28, 1), np.float32)
    labels[9] = 7
    before = model.get_weights()
    with pytest.raises(
        NonFiniteError, match=r"^The step would have written a value that is not finite in epoch 1, batch 3 .*the loss was \d"
    ):
        fit(model, Dataset.from_tensor_slices((ROWS, labels)).batch(4), TerminateOnNaN())
    assert np.isfinite(model.get_weights()[0]).all()
    assert not np.array_equal(model.get_weights()[0], before[0])


@pytest.mark.parametrize(
    ("loss", "before", "after", "good"),
    [
        (1.0, 2.0, 3.0, True),
        (np.nan, 2.0, 3.0, False),
        (-np.inf, 2.0, 3.0, False),
        (1.0, 2.0, np.inf, False),
        (1.0, np.inf, np.inf, True),  # a variable that begins with infinity, as a running minimum does
        (1.0, np.nan, 3.0, True),
        (1.0, 2, 3, True),
    ],
)
def test_what_is_bad(loss: float, before: float, after: float, good: bool) -> None:
    metrics = [np.float32(np.nan)]  # may be what they like
    values = (
        [[np.ones(3, np.float32)], [np.array([1, before])], []],
        [[np.ones(3, np.float32)], [np.array([1, after])], [], metrics],
    )
    assert bool(_is_good(np.float32(loss), *values)) is good


def test_data_that_are_bad_throughout_stop_it() -> None:
    skip = TerminateOnNaN("skip", max_skipped_in_a_row=2)
    message = r"batch 5 \(step 5 .*Bad batches in a row: 3 \(max_skipped_in_a_row=2\)\. The model is"
    with pytest.raises(NonFiniteError, match=message):
        fit(create_small(), data((0, 2, 3, 4)), skip)
    assert skip.num_skipped == 4


# With backups


def test_a_roll_back_leaves_out_what_came_since_the_backup(tmp_path: Path) -> None:
    """Backups before batches 3, 5 and 7; batch 6 is bad, and batch 5 was for nothing."""
    model, expected, back = create_small(2), create_small(2), TerminateOnNaN("roll_back")
    with pytest.warns(UserWarning, match=r"epoch 1, batch 6 .*Rolled back to .*/backup-2\.$"):
        history = model.fit(data((5,)), verbose=0, callbacks=[BackupAndRestore(tmp_path / "backup", 2), back]).history
    assert back.num_roll_backs == 1
    assert history == fit(expected, data(without=(4, 5)), TerminateOnNaN(), epochs=1)
    for x, y in zip(state(model), state(expected), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_roll_back_into_the_epoch_before(tmp_path: Path) -> None:
    """A backup before batch 6 of the first epoch; batch 2 of the second epoch is bad."""
    rng = np.random.default_rng(2)
    rows, labels = rng.normal(size=(56, 5)).astype(np.float32), rng.integers(0, 3, 56)
    good = rows.copy()
    rows[8 * 4] = np.inf

    def batches(source: np.ndarray, first: int, last: int) -> Dataset:
        return Dataset.from_tensor_slices((source[4 * first : 4 * last], labels[4 * first : 4 * last])).batch(4)

    model, expected = create_small(), create_small()
    callbacks = [TerminateOnNaN("roll_back"), BackupAndRestore(tmp_path / "backup", 5)]
    history = fit(model, batches(rows, 0, 14), *callbacks, steps_per_epoch=7)
    fit(expected, batches(good, 0, 5), TerminateOnNaN(), epochs=1)
    wanted = fit(expected, batches(good, 9, 14), TerminateOnNaN(), epochs=1)
    assert {name: values[1] for name, values in history.items()} == {name: values[0] for name, values in wanted.items()}
    for x, y in zip(state(model), state(expected), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    ("save_freq", "max_roll_backs", "num_done", "message"),
    [
        (4, 3, 0, r"batch 3 \(step 3 of this fit\)\. There is no backup to roll back to\. The model is"),
        (1, 1, 1, r"batch 6 \(step 6 of this fit\)\. Earlier roll-backs of this fit: 1 \(max_roll_backs=1\)\. The model is"),
    ],
    ids=["no backup", "too often"],
)
def test_where_going_back_ends(tmp_path: Path, save_freq: int, max_roll_backs: int, num_done: int, message: str) -> None:
    model, back = create_small(), TerminateOnNaN("roll_back", max_roll_backs=max_roll_backs)
    with pytest.raises(NonFiniteError, match=message):
        fit(model, data((2, 5)), BackupAndRestore(tmp_path / "backup", save_freq), back, Noticing())
    assert back.num_roll_backs == num_done
    assert all(np.isfinite(x).all() for x in state(model))


def test_a_disk_that_fails_in_a_roll_back_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any) -> Any:
        raise CheckpointError("no disk")

    monkeypatch.setattr(BackupAndRestore, "roll_back", fail)
    model = create_small()
    with pytest.raises(CheckpointError, match="no disk"):
        fit(model, data((2,)), BackupAndRestore(tmp_path / "backup", 1), TerminateOnNaN("roll_back"), Noticing())
    assert all(np.isfinite(x).all() for x in state(model))


def test_no_backup_is_made_of_what_is_about_to_stop(tmp_path: Path) -> None:
    """A program that was stopped and is started again with another policy ends like one that had that policy from the beginning."""
    expected, model = create_small(), create_small()
    fit(expected, data((3,)), TerminateOnNaN("skip"))
    with pytest.raises(NonFiniteError, match="batch 4 "):
        fit(create_small(), data((3,)), BackupAndRestore(tmp_path / "backup", 1), TerminateOnNaN(), Noticing())
    skip = TerminateOnNaN("skip")
    fit(model, data((3,)), skip, BackupAndRestore(tmp_path / "backup", 1), Noticing())
    assert skip.num_skipped == 2
    for x, y in zip(state(model), state(expected), strict=True):
        np.testing.assert_array_equal(x, y)


# Models of other kinds


class Own(keras.Model):
    """A model with a train_step of its own."""

    def __init__(self, logs: Any):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.logs = logs

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def train_step(self, state: Any, data: Any) -> Any:
        logs, state = super().train_step(state, data)
        return self.logs(logs), state


def fit_own(logs: Any, *callbacks: Any) -> Any:
    model = Own(logs)
    model.compile("sgd", "mse")
    return fit(model, Dataset.from_tensor_slices((ROWS * np.nan, ROWS[:, :1])).batch(4), *callbacks, epochs=1)


def test_a_train_step_of_ones_own_must_tell_its_loss() -> None:
    with pytest.raises(
        ArgumentError, match=r"the train_step of 'own.*' must return a dict with a 'loss', .* but it returned \['cost'\]\."
    ):
        fit_own(lambda logs: {"cost": logs["loss"]}, TerminateOnNaN())
    with pytest.raises(NonFiniteError, match=r"became nan in epoch 1, batch 1 "):
        fit_own(lambda logs: {**logs, "more": logs["loss"]}, TerminateOnNaN())


def test_a_train_function_of_ones_own_is_refused() -> None:
    class Stubborn(keras.Sequential):
        def make_train_function(self, force: bool = False) -> None:
            self.train_function = lambda state, iterator: ({"loss": float(len(next(iterator)))}, state)

    model = Stubborn([keras.Input((5,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ArgumentError, match=r"the train_function of '.*' does not use its train_step"):
        fit(model, Dataset.from_tensor_slices((ROWS, ROWS[:, :1])).batch(4), TerminateOnNaN())


def test_a_guarded_step_is_compiled_once_and_gone_afterwards() -> None:
    model = create_small()
    fit(model, data((1,)), TerminateOnNaN("skip"), epochs=1)
    function, switch = model.train_function, switch_of(model)
    (program,) = switch._guarded.values()
    fit(model, data((1,)), TerminateOnNaN("skip"), epochs=1)
    assert model.train_function is function
    assert switch_of(model) is switch
    assert switch._guarded == {False: program}
    assert "train_step" not in vars(model)
    fit(model, data((1,)), epochs=1)
    assert np.isnan(model.get_weights()[0]).any()  # as ever without the callback
    model.compile("sgd", "mse")
    assert model.train_function is None


def test_train_on_batch_is_not_guarded() -> None:
    model = create_small()
    fit(model, data(), TerminateOnNaN("skip"), epochs=1)
    assert np.isnan(model.train_on_batch(ROWS[:4] * np.nan, LABELS[:4]))


# What cannot be


def test_one_of_them_is_enough() -> None:
    model = create_small()
    with pytest.raises(ArgumentError, match=r"The callbacks of this fit include two TerminateOnNaN"):
        fit(model, data(), TerminateOnNaN("skip"), TerminateOnNaN())
    fit(model, data(), TerminateOnNaN(), epochs=1)


def test_going_back_needs_backups() -> None:
    with pytest.raises(ArgumentError, match=r"needs backups\. Give fit a replicant\.keras\.callbacks\.BackupAndRestore too"):
        fit(create_small(), data(), TerminateOnNaN("roll_back"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": "halt"}, r"policy must be 'stop', 'skip' or 'roll_back'\. Received: 'halt'\."),
        ({"max_skipped_in_a_row": -1}, r"max_skipped_in_a_row must be at least 0\. Received: -1\."),
        ({"max_roll_backs": -2}, r"max_roll_backs must be at least 0\. Received: -2\."),
    ],
)
def test_arguments_that_cannot_be(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        TerminateOnNaN(**arguments)
