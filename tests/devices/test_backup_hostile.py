"""Backups that somebody else wrote: they change only what callbacks have, never where these write, and never crash the program."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from replicant.checkpoint.format import _storage
from replicant.checkpoint.format._json_values import pack, unpack
from replicant.errors import CheckpointError
from replicant.keras.callbacks import BackupAndRestore
from replicant.keras.callbacks._backup_state import CallbackStates
from replicant.keras.loops._fit_position import _Pass

ROWS = np.linspace(-1, 1, 48, dtype=np.float32).reshape(8, 6)


class Stop(keras.callbacks.Callback):
    """Ends the fit in the second epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        model: Any = self.model
        if model.optimizer.iterations == 6:
            raise RuntimeError("gone")


def fit(folder: Path, *callbacks: Any) -> None:
    keras.utils.set_random_seed(1)
    model: Any = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(ROWS, np.ones(8), 2, epochs=3, verbose=0, callbacks=[BackupAndRestore(folder, 2), *callbacks])


@pytest.fixture
def forged(tmp_path: Path) -> Callable[[Callable[[dict[str, Any]], None]], Path]:
    """A real backup, in which something is changed, with checksums that fit."""

    def forge(change: Callable[[dict[str, Any]], None]) -> Path:
        folder = tmp_path / "run"
        with pytest.raises(RuntimeError, match="gone"):
            fit(folder, keras.callbacks.ModelCheckpoint(tmp_path / "mine.keras"), Stop())
        for backup in folder.glob("backup-*"):
            body = json.loads((backup / "manifest.json").read_text())
            del body["checksum"]
            arrays = _storage.read(backup)[1]
            extra_arrays = [arrays.pop(f".extra/{i}") for i in range(body["meta"]["num_extra_arrays"])]
            saved = unpack(body["meta"]["extra"], extra_arrays)
            change(saved)
            new_arrays: list[np.ndarray] = []
            body["meta"] |= {"extra": pack(saved, new_arrays), "num_extra_arrays": len(new_arrays)}
            arrays |= {f".extra/{i}": array for i, array in enumerate(new_arrays)}
            for file in backup.iterdir():
                file.unlink()
            backup.rmdir()
            _storage.write(backup, body["meta"], arrays)
        return folder

    return forge


def of_callback(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(saved: dict[str, Any]) -> None:
        for callback, attributes in saved["callbacks"]:
            if callback == "ModelCheckpoint 1":
                attributes[name] = value

    return change


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("filepath", "/tmp/evil.keras", "it holds text that may name a file, and only the program may choose its files"),
        ("filepath", "evil", "it holds text that may name a file"),
        ("monitor", "../evil", "it holds text that may name a file"),
        ("on_epoch_end", 3, "the callback does not have it when training begins"),
        ("_batches_seen_since_last_saving", "three", "it is a number when training begins, but a str here"),
        ("_batches_seen_since_last_saving", [3], "it is a number when training begins, but a list here"),
        ("_current_epoch", "three", "the callback does not have it when training begins"),
        ("save_weights_only", 1, "it is a bool when training begins, but a number here"),
    ],
)
def test_a_forged_backup_does_not_redirect_a_callback(
    forged: Callable[..., Path], tmp_path: Path, name: str, value: Any, problem: str
) -> None:
    folder = forged(of_callback(name, value))
    (tmp_path / "mine.keras").unlink()
    message = (
        rf"The backup says that the attribute '{name}' of the callback 'ModelCheckpoint 1' is .*, "
        rf"but this cannot be restored: {problem}"
    )
    callback = keras.callbacks.ModelCheckpoint(tmp_path / "mine.keras")
    with pytest.raises(CheckpointError, match=message):
        fit(folder, callback, Stop())
    assert callback.filepath == str(tmp_path / "mine.keras")
    assert not Path("/tmp/evil.keras").exists()


POSITIONS = {
    "no position": (lambda saved: saved.update(position={}), r"The saved position in the data is not valid: KeyError"),
    "a negative epoch": (lambda saved: saved["position"].update(epoch=-1), r"position in the data is not valid: found\.epoch=-1"),
    "an endless step": (lambda saved: saved["position"].update(num_steps=float("inf")), r"found\.num_steps=inf"),
    "passes": (lambda saved: saved["position"].update(passes=[1]), r"The saved position in the data is not valid"),
    "batches": (lambda saved: saved["position"].update(num_batches=10**15), r"had read 1000000000000000 batches in \d epochs of 4"),
    "another field": (lambda saved: saved["position"].update(evil=1), r"The saved position in the data is not valid: TypeError"),
    "random numbers": (
        lambda saved: saved["now"].update(rest=["MT19937", 10**6, 0, "0.0", 3, None]),
        r"1000000 is not a position in 624",
    ),
    "a generator": (
        lambda saved: saved["now"].update(rest=[1]),
        r"states of the random generators of NumPy, Python and Keras are not valid: not enough values",
    ),
    "Keras's generator": (
        lambda saved: saved["now"].update(keras=np.zeros(3, np.uint32)),
        r"Keras are not valid: Keras's generator has a state of type uint32\[2\], not uint32\[3\]",
    ),
    "no generators": (lambda saved: saved.update(now=3), r"is not a backup of a fit \(TypeError"),
    "metrics": (lambda saved: saved.update(metrics=[np.ones(99)]), r"is not a backup of this fit"),
    "logs": (lambda saved: saved.update(logs=[1]), r"is not a backup of this fit"),
    "callbacks": (lambda saved: saved.update(callbacks=7), r"is not a backup of a fit \(TypeError"),
    "nothing": (lambda saved: saved.clear(), r"is not a backup of a fit \(KeyError: 'metrics'\)"),
}


@pytest.mark.parametrize(("change", "message"), POSITIONS.values(), ids=POSITIONS)
def test_a_forged_position_is_refused(
    forged: Callable[..., Path], tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        fit(forged(change), keras.callbacks.ModelCheckpoint(tmp_path / "mine.keras"), Stop())


def test_data_that_end_before_the_position_are_told() -> None:
    ahead = _Pass(iter(range(3)), lambda: None)
    with pytest.raises(
        CheckpointError, match=r"had read 1000000000000 batches of a pass over its data, but this pass has only 3\."
    ):
        ahead.go_to(10**12, None, None)


class Remembers(keras.callbacks.Callback):
    """Has attributes of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.phase, self.best, self.seen, self.log_file, self.kind = "warm up", None, [], "one.txt", 1

    def change(self) -> None:
        self.phase, self.best, self.seen, self.log_file, self.kind = "main", np.float32(0.5), [1, "a"], "two.txt", "text"
        self.late, self.late_text = 3, "a"


def test_what_a_backup_does_not_hold_is_told_once() -> None:
    first = Remembers()
    states = CallbackStates([first])
    first.change()
    with pytest.warns(UserWarning, match="A backup does not hold the attribute") as caught:
        saved = states.save()
    texts = sorted(str(warning.message) for warning in caught)
    assert [text.split("'")[1] for text in texts] == ["kind", "late_text", "log_file"]
    assert "of the callback 'Remembers 1': the callback does not have it when training begins (set it in __init__ or" in texts[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert states.save() == saved
    again = Remembers()
    CallbackStates([again]).restore(saved)
    assert (again.phase, again.best, again.seen, again.log_file, again.kind) == ("main", 0.5, [1, "a"], "one.txt", 1)
    assert again.late == 3
    assert not hasattr(again, "late_text")
