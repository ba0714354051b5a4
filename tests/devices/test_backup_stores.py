"""``BackupAndRestore`` at a URL: it goes on exactly where it stopped, and never deletes its own backups for another program's."""

from typing import Any

import fsspec
import keras
import numpy as np
import pytest

from replicant.errors import CheckpointError
from replicant.keras.callbacks import BackupAndRestore

URL = "memory://backups/run"


@pytest.fixture
def system():
    system = fsspec.filesystem("memory")
    yield system
    if system.exists("/backups"):
        system.rm("/backups", recursive=True)


class At(keras.callbacks.Callback):
    """Calls a function after a step, once the last backup is written."""

    def __init__(self, step: int, do: Any):
        super().__init__()
        self.step, self.do = step, do
        self.backup: Any = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        model: Any = self.model
        if model.optimizer.iterations == self.step:
            self.backup.sync()
            self.do()


def gone():
    raise RuntimeError("gone")


def fit(url: str, *callbacks: At) -> list[float]:
    keras.utils.set_random_seed(1)
    model: Any = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    backup = BackupAndRestore(url, save_freq=3)
    for callback in callbacks:
        callback.backup = backup
    return model.fit(np.ones((8, 3)), np.ones(8), 2, epochs=3, verbose=0, callbacks=[backup, *callbacks]).history["loss"]


def names(system: Any) -> list[str]:
    return sorted({name.split("/")[3] for name in system.find("/backups/run")})


def test_a_fit_goes_on_where_it_stopped(system):
    uninterrupted = fit("memory://backups/other")
    with pytest.raises(RuntimeError, match="gone"):
        fit(URL, At(5, gone))
    assert names(system) == ["backup-1"]
    seen = []
    assert fit(URL, At(4, lambda: seen.append(4))) == uninterrupted
    assert seen == [4]  # the steps before were not done again
    assert system.find("/backups") == []


def test_another_program_that_is_ahead_is_an_error_and_deletes_nothing(system):
    def come():
        """Copy a backup, as if another program had the same backup_dir and were ahead."""
        for name in system.find("/backups/run/backup-1"):
            for number in (11, 12):
                system.pipe(name.replace("backup-1", f"backup-{number}"), system.cat(name))

    with pytest.raises(
        CheckpointError,
        match=r"^Another program saves in memory://backups/run: this fit has just written backup-2, but there is backup-12\. Each "
        r"fit needs a backup_dir of its own\.$",
    ):
        fit(URL, At(5, come))
    assert names(system) == ["backup-1", "backup-11", "backup-12", "backup-2"]
