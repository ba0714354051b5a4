"""Backups that Keras has made on TensorFlow, from which BackupAndRestore continues; and what its ModelCheckpoint has saved."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import keras
import numpy as np
import pytest

import replicant
from replicant.errors import CheckpointError

from ._tensorflow_checkpoints import digest

FILES = Path(__file__).parents[1] / "tensorflow_files" / "objects" / "callbacks"
L = keras.layers


class Begun(keras.callbacks.Callback):
    """Notes how each epoch begins: its number, the steps so far, and whether all values are those of the backup."""

    def __init__(self, kind: str, note: Callable[[Any], None]):
        super().__init__()
        self.truth = json.loads((FILES / kind / "truth.json").read_text())
        self.note = note

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        model: Any = self.model
        optimizer = model.optimizer
        weights = [digest(each.value) for each in model.weights]
        known = {each["sha256"] for each in self.truth["optimizer_variables"]}
        same = weights == [each["sha256"] for each in self.truth["weights"]]
        same &= {digest(each.value) for each in optimizer.momentums} <= known
        self.note((epoch, int(optimizer.iterations), same))


def model(units: int = 3) -> Any:
    found = keras.Sequential(
        [keras.Input((4,)), L.Dense(units, activation="relu"), L.Dropout(0.1), L.GaussianNoise(0.1), L.Dense(1)]
    )
    found.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return found


def train(folder: Path | str, kind: str, epochs: int = 4, **options: Any) -> list[Any]:
    seen: list[Any] = []
    x = np.ones((8, 4), "float32")
    backup = replicant.keras.callbacks.BackupAndRestore(folder)
    model(**options).fit(x, x[:, :1], batch_size=4, epochs=epochs, verbose=0, callbacks=[backup, Begun(kind, seen.append)])
    return seen


@pytest.fixture(params=["tf_keras", "keras3"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def folder(kind: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(FILES / kind / "backup_copy", tmp_path / "backup"))


def test_a_fit_continues_where_keras_on_tensorflow_was_stopped(kind: str, folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert train(folder, kind) == [(2, 4, True), (3, 6, False)]
    assert {path: path.read_bytes() for path in before} == before
    assert train(folder, kind) == []  # complete: the backup of TensorFlow does not count any more
    assert train(folder, kind, epochs=5) == [(4, 8, False)]


def test_a_backup_of_another_model_is_an_error(kind: str, folder: Path) -> None:
    message = (
        r"does not fit the objects" if kind == "tf_keras" else r"cannot be loaded into this model\. latest\.weights\.h5: ValueError"
    )
    with pytest.raises(CheckpointError, match=message):
        train(folder, kind, units=5)


def test_a_model_with_other_layers_is_an_error(tmp_path: Path) -> None:
    folder = shutil.copytree(FILES / "tf_keras/backup_copy", tmp_path / "backup")
    larger: Any = keras.Sequential([keras.Input((4,)), L.Dense(3), L.Dense(1), L.Dense(1)])
    larger.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    backup = replicant.keras.callbacks.BackupAndRestore(folder)
    with pytest.raises(CheckpointError, match=r"belongs to another model or optimizer\. Only here: \['model/weights/4\.kernel'"):
        larger.fit(np.ones((4, 4)), np.ones((4, 1)), verbose=0, callbacks=[backup])


def test_a_checkpoint_without_an_epoch_is_no_backup(tmp_path: Path) -> None:
    folder = tmp_path / "backup" / "chief"
    shutil.copytree(FILES.parent / "ckpt_tf_keras/sequential_adam", folder)
    net: Any = keras.Sequential([keras.Input((6,)), L.Dense(8, activation="relu"), L.BatchNormalization(momentum=0.9), L.Dense(3)])
    net.compile(keras.optimizers.Adam(0.01), "mse")
    backup = replicant.keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(CheckpointError, match=r"only there: \['epoch', 'iterator', 'step'\]"):
        net.fit(np.ones((4, 6)), np.ones((4, 3)), verbose=0, callbacks=[backup])


def test_a_checkpoint_of_the_model_alone_is_no_backup(tmp_path: Path) -> None:
    shutil.copytree(FILES / "tf_keras/compiled", tmp_path / "backup" / "chief")
    with pytest.raises(
        CheckpointError, match=r"ckpt-1 is a checkpoint, but not a backup of a fit: it has no number ckpt_saved_epoch"
    ):
        train(tmp_path / "backup", "tf_keras")


def test_files_of_keras_3_at_a_url_are_not_read() -> None:
    system = fsspec.filesystem("memory")
    for name in ("latest.weights.h5", "training_metadata.json"):
        system.pipe(f"/moved/backup/{name}", (FILES / "keras3/backup_copy" / name).read_bytes())
    with pytest.raises(
        CheckpointError, match=r"memory://moved/backup has a backup by Keras on TensorFlow, which is read from a disk only"
    ):
        train("memory://moved/backup", "keras3")
    system.rm("/moved", recursive=True)


def test_files_of_keras_3_before_the_last_ones_are_taken_if_those_are_damaged(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FILES / "keras3/backup_copy", tmp_path / "backup"))
    for name in ("latest.weights.h5", "training_metadata.json"):
        shutil.copy(folder / name, folder / f"{name}.bkp")
    (folder / "training_metadata.json").write_text('{"epoch": -1}')
    assert train(folder, "keras3", epochs=3) == [(2, 4, True)]


def test_damaged_files_of_keras_3_are_told(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FILES / "keras3/backup_copy", tmp_path / "backup"))
    (folder / "training_metadata.json").write_text('{"epoch": "two"}')
    with pytest.raises(
        CheckpointError, match=r"cannot be loaded into this model\. .*training_metadata\.json says that the epoch is 'two'"
    ):
        train(folder, "keras3")


def test_checkpoints_of_model_checkpoint_hold_model_and_optimizer(tmp_path: Path) -> None:
    """Their root is the model; the newest is the last epoch's."""
    folder = shutil.copytree(FILES / "tf_keras/mc", tmp_path / "mc")
    net = model()
    newest = replicant.latest_checkpoint(folder)
    assert newest == str(tmp_path / "mc" / "weights.02")
    replicant.Checkpoint(root=net, optimizer=net.optimizer).read(newest).assert_consumed()
    assert int(net.optimizer.iterations) == 4
    truth = json.loads((FILES / "tf_keras/truth.json").read_text())
    assert [digest(each.value) for each in net.weights] == [each["sha256"] for each in truth["weights"]]
