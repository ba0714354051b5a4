"""BackupAndRestore: a fit that was interrupted ends as one that was not, to the last bit. (Killed processes: tests/faults.)"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import replicant
from replicant.data import Dataset
from replicant.errors import ArgumentError, CheckpointError, DatasetError
from replicant.keras.callbacks import BackupAndRestore

NUM_ROWS, BATCH_SIZE, NUM_EPOCHS = 26, 8, 3  # 4 steps an epoch, the last one of two rows
ROWS = np.random.default_rng(0).normal(size=(NUM_ROWS, 6)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 3, NUM_ROWS)


class Interrupted(Exception):
    """What Power raises."""


class Power(keras.callbacks.Callback):
    """Goes off after so many steps; 0: never."""

    def __init__(self, num_steps: int):
        super().__init__()
        self.num_steps = num_steps
        self.left = lambda: True

    def on_train_begin(self, logs: Any = None) -> None:
        self.left = iter(range(self.num_steps - 1)) if self.num_steps else iter(lambda: 0, 1)  # no state that could be saved

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if next(self.left, None) is None:
            raise Interrupted


class Noticing(keras.callbacks.Callback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[str, int]] = []
        self.losses: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.begun.append(("epoch", epoch))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.begun.append(("step", batch))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(logs["loss"])


class Trained:
    """What a fit leaves."""

    def __init__(self, model: Any, history: Any, noticing: Noticing, stopping: Any):
        variables = [*model.variables, *model.optimizer.variables]
        self.bits = [np.asarray(variable.value).tobytes() for variable in variables]
        self.history, self.epochs = history.history, history.epoch
        self.losses, self.num_begun = noticing.losses, len(set(noticing.begun))
        self.stopping = (stopping.wait, stopping.best, stopping.best_epoch)

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def arrays() -> dict[str, Any]:
    return {"x": ROWS, "y": LABELS, "batch_size": BATCH_SIZE}


def slices() -> Dataset:
    return Dataset.from_tensor_slices((ROWS, LABELS))


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for _ in range(5):
        for i in range(0, 20, 4):
            yield ROWS[i : i + 4], LABELS[i : i + 4]


INPUTS: dict[str, Callable[[], dict[str, Any]]] = {
    "arrays": arrays,
    "arrays in batches": lambda: {**arrays(), "shuffle": "batch"},
    "dataset": lambda: {"x": slices().shuffle(10).batch(BATCH_SIZE)},
    "repeated dataset": lambda: {"x": slices().shuffle(30, seed=2).repeat().batch(BATCH_SIZE), "steps_per_epoch": 4},
    "dataset of unknown size": lambda: {"x": slices().filter(lambda x, y: y >= 0).shuffle(10, seed=3).batch(BATCH_SIZE)},
    "generator": lambda: {"x": batches(), "steps_per_epoch": 4, "shuffle": False},
}

LIKE_OTHERS = ("arrays in batches", "dataset", "repeated dataset", "dataset of unknown size")


def train(folder: Path, data: str = "dataset", *, off_after: int = 0, num_replicas: int = 2, **options: Any) -> Trained:
    keras.utils.set_random_seed(1)
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)]) if num_replicas else replicant.get_strategy()
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Dense(8, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(3),
            ]
        )
        model.compile(
            keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.9)),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=options.pop("steps_per_execution", 1),
        )
    noticing, stopping = Noticing(), keras.callbacks.EarlyStopping("loss", patience=50, restore_best_weights=True)
    backup = BackupAndRestore(folder, options.pop("save_freq", 1), options.pop("delete_checkpoint", True))
    callbacks = [noticing, stopping, backup, Power(off_after)]
    options = {"epochs": NUM_EPOCHS, "verbose": 0, **options}
    history = model.fit(**INPUTS[data](), callbacks=callbacks, **options)
    return Trained(model, history, noticing, stopping)


def interrupted(folder: Path, *off_after: int, **options: Any) -> None:
    for num_steps in off_after:
        with pytest.raises(Interrupted):
            train(folder, off_after=num_steps, **options)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras says so of every dataset of unknown size
@pytest.mark.parametrize("data", [pytest.param(x, marks=[pytest.mark.slow] if x in LIKE_OTHERS else []) for x in INPUTS])
@pytest.mark.long
def test_every_input_goes_on_where_it_was(tmp_path: Path, data: str) -> None:
    expected = train(tmp_path / "whole", data)
    interrupted(tmp_path / "run", 6, data=data)
    assert train(tmp_path / "run", data) == expected
    assert list(tmp_path.iterdir()) == []


@pytest.mark.cases("several steps per execution", "epochs")
@pytest.mark.parametrize(
    ("off_after", "options"),
    [
        ((4, 2), {"num_replicas": 0, "save_freq": 3}),
        ((6, 1), {"save_freq": "epoch"}),
        ((4,), {"validation_data": (ROWS[:9], LABELS[:9])}),
        ((2, 2), {"steps_per_execution": 3}),
        pytest.param((3,), {"save_freq": "0.001s"}, marks=pytest.mark.slow),
    ],
    ids=["without a strategy", "epochs", "validation", "several steps per execution", "seconds"],
)
@pytest.mark.long_cases("epochs")
def test_every_way_of_training_goes_on_where_it_was(tmp_path: Path, off_after: tuple[int, ...], options: dict[str, Any]) -> None:
    expected = train(tmp_path / "whole", **options)
    interrupted(tmp_path / "run", *off_after, **options)
    assert train(tmp_path / "run", **options) == expected


class Noisy(keras.Model):
    """A model that draws from Keras's global generator, in the step and outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.last = keras.layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.last(x)

    def train_step(self, data: Any) -> Any:
        x, y = data
        with replicant.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x + keras.random.normal(np.shape(x))))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


@pytest.mark.filterwarnings("error::UserWarning")  # that something is not saved
@pytest.mark.cases("two")
@pytest.mark.parametrize("devices", [["cpu:0"], ["cpu:0", "cpu:1"]], ids=["one", "two"])
@pytest.mark.long
def test_random_numbers_without_a_seed_go_on(tmp_path: Path, devices: list[str]) -> None:
    def train(folder: Path, off_after: int = 0) -> list[Any]:
        keras.utils.set_random_seed(1)
        with replicant.MirroredStrategy(devices).scope():
            model = Noisy()
            model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        draw = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: drawn.append(float(keras.random.uniform([]))))
        drawn: list[float] = []
        model.fit(ROWS, LABELS, BATCH_SIZE, 3, verbose=0, callbacks=[BackupAndRestore(folder, 1), draw, Power(off_after)])
        return [drawn[-1], *model.get_weights(), keras.random.uniform([3])]

    expected = train(tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(tmp_path / "run", 7)
    for one, other in zip(train(tmp_path / "run"), expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("off_after", "save_freq", "place"),
    [(6, 1, "epoch 2, step 2"), (6, "epoch", "epoch 2"), (5, 1, "epoch 2"), (4, 3, "epoch 1, step 4"), (0, 1, None)],
    ids=["in an epoch", "epochs", "between epochs", "before the last step", "nothing to resume"],
)
@pytest.mark.long_cases("between epochs", "epochs", "in an epoch")
def test_it_says_where_it_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], off_after: int, save_freq: Any, place: str | None
) -> None:
    if off_after:
        interrupted(tmp_path / "run", off_after, save_freq=save_freq)
    assert "Continuing" not in capsys.readouterr().out
    train(tmp_path / "run", save_freq=save_freq, verbose=2)
    lines = capsys.readouterr().out.splitlines()
    told = [line for line in lines if line.startswith("Continuing")]
    assert len(told) == (place is not None)
    if place:
        assert re.fullmatch(rf"Continuing at {place} \(backup of \d\d:\d\d\)\.", told[0])
        assert lines[lines.index(told[0]) + 1] == f"Epoch {place[6]}/{NUM_EPOCHS}"


@pytest.mark.long
def test_an_older_backup_has_a_date_and_a_finished_one_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run", delete_checkpoint=False)
    for backup in (tmp_path / "run").glob("backup-*"):
        os.utime(backup, (0, 0))
    train(tmp_path / "run", delete_checkpoint=False, verbose=1)
    assert re.search(rf"All {NUM_EPOCHS} epochs are done \(backup of 19(69|70)-\d\d-\d\d \d\d:\d\d\)\.", capsys.readouterr().out)


@pytest.mark.long
def test_a_damaged_backup_is_passed_over(tmp_path: Path) -> None:
    expected = train(tmp_path / "whole")
    interrupted(tmp_path / "run", 6)
    newest = max((tmp_path / "run").glob("backup-*"), key=lambda path: int(path.name.split("-")[1]))
    assert len(list((tmp_path / "run").glob("backup-*"))) == 2
    data = bytearray((newest / "arrays.bin").read_bytes())
    data[100] ^= 4
    (newest / "arrays.bin").write_bytes(data)
    with pytest.warns(UserWarning, match=rf"Skipped the checkpoint .*{newest.name}: .*arrays\.bin is damaged: "):
        assert train(tmp_path / "run") == expected


def test_a_finished_fit_has_nothing_left_to_do(tmp_path: Path) -> None:
    first = train(tmp_path / "run", delete_checkpoint=False)
    again = train(tmp_path / "run", delete_checkpoint=False)
    assert again == first
    assert len(again.losses) == 12


def test_other_peoples_files_stay(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "backup-x").write_text("mine")
    train(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup-x", "notes.txt"]


def test_another_model_is_refused(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", 3)
    model = keras.Sequential([keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    message = (
        r"backup-\d does not fit the objects; nothing was restored\.\n  Other shape or dtype:\n"
        r"    model/weights/0\.kernel: stored float32\[6, 8\], found float32\[6, 3\]\n(.*\n)+?"
        r"  In the checkpoint, but not in the objects:\n    metrics/1/0\.total\n(.*\n)+  'optimizer' was saved for the variables"
    )
    with pytest.raises(CheckpointError, match=message):
        model.fit(ROWS, np.ones((NUM_ROWS, 3)), verbose=0, callbacks=[BackupAndRestore(tmp_path / "run")])


def test_other_data_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(tmp_path / "run", 3)
    monkeypatch.setitem(INPUTS, "longer", lambda: {"x": slices().shuffle(10).repeat(2).batch(BATCH_SIZE)})
    with pytest.raises(CheckpointError, match=r"This fit has 7 batches per epoch, but the saved one had 4"):
        train(tmp_path / "run", "longer")
    monkeypatch.setitem(INPUTS, "other", lambda: {"x": slices().shuffle(11).batch(BATCH_SIZE)})
    with pytest.raises(DatasetError, match=r"This position belongs to another pipeline"):
        train(tmp_path / "run", "other")


def test_a_checkpoint_that_is_no_backup_is_refused(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    model.fit(ROWS, np.ones((NUM_ROWS, 3)), verbose=0)
    replicant.Checkpoint(model=model, optimizer=model.optimizer, metrics=list(model.metrics)).save(tmp_path / "backup")
    with pytest.raises(CheckpointError, match=r"backup-1 is a checkpoint, but not a backup of a fit"):
        model.fit(ROWS, np.ones((NUM_ROWS, 3)), verbose=0, callbacks=[BackupAndRestore(tmp_path)])


def test_other_callbacks_are_told(tmp_path: Path) -> None:
    def fit(*callbacks: Any) -> Any:
        model = keras.Sequential([keras.layers.Dense(3)])
        model.compile("sgd", "mse")
        return model.fit(
            ROWS, np.ones((NUM_ROWS, 3)), batch_size=8, verbose=0, callbacks=[BackupAndRestore(tmp_path, 1), *callbacks]
        )

    with pytest.raises(Interrupted):
        fit(Noticing(), Power(2))
    with pytest.warns(UserWarning, match=r"New \(they start again\): \['CSVLogger 1'\]\. Gone: \['Noticing 1', 'Power 1'\]"):
        fit(keras.callbacks.CSVLogger(tmp_path / "log.csv"))


@pytest.mark.parametrize("save_freq", [0, -1, True, "epochs", "30", "1d", 2.5, None])
def test_when_must_be_clear(save_freq: Any) -> None:
    with pytest.raises(
        ArgumentError, match=r"save_freq must be 'epoch', a positive number of batches, a time such as '30s'.*; got "
    ):
        BackupAndRestore("somewhere", save_freq)


def test_a_directory_is_needed() -> None:
    with pytest.raises(ArgumentError, match="backup_dir is empty"):
        BackupAndRestore("")


def test_outside_of_fit_it_says_so(tmp_path: Path) -> None:
    model = keras.Sequential([keras.layers.Dense(3)])
    callback = BackupAndRestore(tmp_path)
    callback.set_model(model)
    with pytest.raises(CheckpointError, match=r"it does not know this fit\. Use it only in model\.fit, and make it before"):
        callback.on_train_begin()


def test_a_disk_that_cannot_be_written_stops_fit(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    message = r"Nothing can be saved in .*/file/run \(.*\)\. Choose a directory that this program may write to\."
    with pytest.raises(CheckpointError, match=message):
        train(tmp_path / "file" / "run")


def test_models_are_left_as_they_were(tmp_path: Path) -> None:
    model = keras.Sequential([keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    backup = BackupAndRestore(tmp_path, 1)
    model.fit(ROWS, np.ones((NUM_ROWS, 3)), verbose=0, epochs=2, callbacks=[backup])
    assert model.fit(ROWS, np.ones((NUM_ROWS, 3)), verbose=0, epochs=2).epoch == [0, 1]
    assert not any("replicant_fit" in name for name in vars(model))
