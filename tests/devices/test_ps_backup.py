"""Callbacks that follow ``fit`` on parameter servers: backups between epochs, and what is refused."""

import threading

import keras
import numpy as np
import pytest

import replicant
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.errors import ArgumentError, CheckpointError
from replicant.keras.callbacks import BackupAndRestore, PreemptionHandler, StepWatchdog, TerminateOnNaN

ONE_WORKER = SimpleClusterResolver(ClusterSpec({"ps": ["127.0.0.1:0"] * 2, "worker": ["127.0.0.1:0"]}))
X = np.random.default_rng(0).normal(size=(8, 4)).astype("f4")
Y = X[:, :1]


class Power(keras.callbacks.Callback):
    """Fails at the end of an epoch."""

    def __init__(self, last):
        super().__init__()
        self.last = last

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.last:
            raise RuntimeError("gone")


def fit(callback, last=None, steps=3):
    """What four epochs under a strategy of its own leave: logs, weights, steps. Every step computes all rows."""
    keras.utils.set_random_seed(3)
    strategy = replicant.ParameterServerStrategy(ONE_WORKER, transport="threads")
    try:
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.Adam(0.01), "mse")
        every = [Power(last), callback]
        history = model.fit(X, Y, batch_size=8, epochs=4, steps_per_epoch=steps, shuffle=False, callbacks=every, verbose=0)
        return history.history["loss"], model.get_weights()[0].tolist(), int(model.optimizer.iterations)
    finally:
        strategy.close()


@pytest.mark.long
def test_a_fit_continues_at_the_epoch_that_was_interrupted(tmp_path):
    whole = fit(BackupAndRestore(tmp_path / "whole"))
    assert whole[2] == 12
    assert not (tmp_path / "whole").exists()
    for kind in (BackupAndRestore, PreemptionHandler):
        folder = tmp_path / kind.__name__
        with pytest.raises(RuntimeError, match="gone"):
            fit(kind(folder, "epoch"), last=2)
        assert fit(kind(folder, "epoch", delete_checkpoint=False)) == whole
        assert fit(kind(folder, "epoch")) == whole  # it was complete
    with pytest.raises(RuntimeError, match="gone"):
        fit(keras.callbacks.BackupAndRestore(tmp_path / "keras"), last=2)
    losses, *rest = fit(keras.callbacks.BackupAndRestore(tmp_path / "keras"))
    assert (losses, rest) == (whole[0][2:], list(whole[1:]))  # it restores no History
    with pytest.raises(RuntimeError, match="gone"):
        fit(BackupAndRestore(tmp_path / "other"), last=1)
    with pytest.raises(CheckpointError, match=r"has 5 steps per epoch, but the saved one had 3\. Pass steps_per_epoch=3"):
        fit(BackupAndRestore(tmp_path / "other"), steps=5)


def test_what_needs_single_steps_is_refused(tmp_path):
    for save_freq in (2, "10m"):
        with pytest.raises(
            ArgumentError, match=rf"save_freq={save_freq!r} asks for backups within an epoch.* Write save_freq='epoch'"
        ):
            fit(BackupAndRestore(tmp_path, save_freq))
    for callback, instead in (
        (TerminateOnNaN(), r"keras\.callbacks\.TerminateOnNaN\(\)"),
        (StepWatchdog(9), "a loop of coordinator"),
    ):
        with pytest.raises(ArgumentError, match=rf"cannot tell {type(callback).__name__} about single steps.* Use {instead}"):
            fit(callback)
    assert "replicant-watchdog" not in [thread.name for thread in threading.enumerate()]
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    with pytest.raises(RuntimeError, match="gone"):
        model.fit(
            X, Y, 2, callbacks=[BackupAndRestore(tmp_path / "alone", 1), keras.callbacks.LambdaCallback(on_train_batch_end=end)]
        )
    with pytest.raises(CheckpointError, match="was made after step 2 of epoch 1, by a fit without parameter servers"):
        fit(BackupAndRestore(tmp_path / "alone"))


def end(batch, logs):
    if batch == 2:
        raise RuntimeError("gone")
