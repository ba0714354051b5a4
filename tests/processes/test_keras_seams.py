"""A Keras whose inside is not the one that Replicant extends is told so at once: its version, its classes, their methods."""

import os
import subprocess
import sys

import pytest

LIMIT_SECONDS = 120
TESTED = "Use a Keras version that this release of Replicant was tested with (3.12 to 3.15), or a newer Replicant."


def run(changes: str, *, warnings: str = "error") -> subprocess.CompletedProcess[str]:
    """Changes Keras, then imports what extends it."""
    program = (
        f"import keras\nfrom keras.src.backend.jax.trainer import JAXTrainer\n{changes}\nimport replicant.keras\nprint('fine')"
    )
    return subprocess.run(
        [sys.executable, "-W", warnings, "-W", "ignore:In the future:FutureWarning", "-c", program],
        env=os.environ | {"KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("del keras.src.losses.loss.Loss", f"has moved a class that Replicant extends (cannot import name 'Loss'|{TESTED}"),
        (
            "del JAXTrainer.make_test_function",
            f"has changed what Replicant extends: JAXTrainer.make_test_function is gone. {TESTED}",
        ),
        (
            "JAXTrainer.make_train_function = lambda self, steps, force=False: None",
            "JAXTrainer.make_train_function takes (self, steps, force) and no longer (self, force). Use",
        ),
        (
            "keras.layers.BatchNormalization.call = lambda self, inputs, mask=None: inputs",
            "BatchNormalization.call takes (self, inputs, mask) and no longer (self, inputs, training, mask). Use",
        ),
        (
            "from keras.src.backend.common import KerasVariable; KerasVariable.value = 1",
            "Variable.value is no property but 1. Use",
        ),
        (
            "from keras.src.trainers import data_adapters; data_adapters.get_data_adapter = lambda x, y: None",
            "data_adapters.get_data_adapter takes (x, y) and no longer (x, y, sample_weight, batch_size,",
        ),
    ],
)
def test_a_seam_that_moved(change: str, message: str) -> None:
    done = run(change)
    assert (done.returncode, done.stdout) == (1, "")
    assert "replicant.errors.BackendError: " in done.stderr
    for part in message.split("|"):
        assert part in done.stderr


def test_a_keras_that_is_newer_than_those_tested() -> None:
    done = run("keras.__version__ = '3.16.0'", warnings="always")
    assert done.stdout == "fine\n", done.stderr
    assert (
        "UserWarning: This Replicant was tested with Keras 3.12 to 3.15; this is 3.16.0. All that Replicant extends" in done.stderr
    )
    assert "pip install 'keras==3.15.*'" in done.stderr


def test_a_keras_that_was_tested_is_not_commented_on() -> None:
    done = run("")
    assert (done.stdout, done.stderr) == ("fine\n", "")
