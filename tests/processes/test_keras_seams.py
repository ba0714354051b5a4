"""A Keras whose inside is not the one that Replicant extends is told so at once: its version, its classes, their methods."""

import os
import subprocess
import sys

import pytest

LIMIT_SECONDS = 120
TESTED = "Use a Keras version that this release of Replicant was tested with (3.12 to 3.15), or a newer Replicant."

# An attribute that objects get when they are made, under another name in all methods of its class.
RENAMED = """
from keras.src.trainers.epoch_iterator import EpochIterator
for method in [each for each in vars(EpochIterator).values() if hasattr(each, "__code__")]:
    code = method.__code__
    method.__code__ = code.replace(co_names=tuple("_seen" if name == "_steps_seen" else name for name in code.co_names))
"""


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


@pytest.mark.cases("del JAXTrainer._get_jax_state-message6")
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
            "JAXTrainer.make_train_function takes (self, steps, force) instead of (self, force). Use",
        ),
        (
            "keras.layers.BatchNormalization.call = lambda self, inputs, mask=None: inputs",
            "BatchNormalization.call takes (self, inputs, mask) instead of (self, inputs, training, mask). Use",
        ),
        (
            "from keras.src.backend.common import KerasVariable; KerasVariable.value = 1",
            "Variable.value is not a property but 1. Use",
        ),
        (
            "keras.layers.Embedding.call = lambda self, tokens: tokens",
            "Embedding.call takes (self, tokens) instead of (self, inputs). Use",
        ),
        ("del JAXTrainer._get_jax_state", f"has changed what Replicant extends: JAXTrainer._get_jax_state is gone. {TESTED}"),
        (RENAMED, f"has changed what Replicant extends: EpochIterator._steps_seen is gone. {TESTED}"),
        (
            "from keras.src.trainers import data_adapters; data_adapters.get_data_adapter = lambda x, y: None",
            "data_adapters.get_data_adapter takes (x, y) instead of (x, y, sample_weight, batch_size,",
        ),
    ],
)
@pytest.mark.long
def test_a_seam_that_moved(change: str, message: str) -> None:
    done = run(change)
    assert (done.returncode, done.stdout) == (1, "")
    assert "replicant.errors.BackendError: " in done.stderr
    for part in message.split("|"):
        assert part in done.stderr


@pytest.mark.long
def test_a_keras_that_is_newer_than_those_tested() -> None:
    done = run("keras.__version__ = '3.16.0'", warnings="always")
    assert done.stdout == "fine\n", done.stderr
    assert (
        "UserWarning: This Replicant was tested with Keras 3.12 to 3.15, but this is 3.16.0. It has everything that" in done.stderr
    )
    assert "pip install 'keras==3.15.*'" in done.stderr


@pytest.mark.long
def test_a_keras_that_was_tested_is_not_commented_on() -> None:
    done = run("")
    assert (done.stdout, done.stderr) == ("fine\n", "")


FAILED_FIT = """
import os, tempfile
import numpy as np
{imports}
from replicant.coordinator import ClusterCoordinator
class Stop(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        raise KeyboardInterrupt
strategy = replicant.ParameterServerStrategy(transport="threads")
with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
from replicant.keras.callbacks import TensorBoard
with tempfile.TemporaryDirectory() as folder:
    try:
        model.fit(np.ones((8, 3)), np.ones(8), batch_size=4, verbose=0, callbacks=[TensorBoard(folder), Stop()])
    except KeyboardInterrupt:
        links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        print([os.readlink(link) for link in links if os.path.exists(link) and os.readlink(link).startswith(folder)])
strategy.close()
"""


@pytest.mark.parametrize(
    "imports",
    [
        "import keras, replicant.coordinator.keras._variables, replicant.keras.callbacks",
        pytest.param("import keras, replicant.keras.callbacks, replicant.coordinator.keras._variables", marks=pytest.mark.slow),
    ],
)
@pytest.mark.long
def test_a_failed_fit_closes_its_files_in_whatever_order_modules_were_imported(imports: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILED_FIT.format(imports=imports)],
        env=os.environ | {"KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.stdout == "[]\n", done.stderr  # no open file in the folder


WHAT_CHANGES = """
import sys, keras
def look():
    found = {}
    for module in [module for name, module in sys.modules.items() if name.startswith("keras.src")]:
        for name, value in vars(module).items():
            found[module, name] = value
            if isinstance(value, type) and value.__module__.startswith("keras.src"):
                found |= {(value, key): item for key, item in vars(value).items()}
    return found
before = look()
import replicant.keras
from replicant.keras import _hooks
def changed():
    after = look()
    return {key for key in before if after.get(key) is not before[key]} | {
        key for key in after.keys() - before.keys() if any(owner is key[0] for owner, _ in before)
    }
table = {(hook.owner, hook.name) for hook in _hooks.HOOKS if hook.wrappers}
assert table <= before.keys()
table |= {(each.owner, each.name) for each in _hooks.ADDED}
print({f"{owner.__name__}.{name}" for owner, name in changed() ^ table})
import replicant.keras.callbacks, replicant.coordinator.keras._rule
print({f"{owner.__name__}.{name}" for owner, name in changed() ^ table})
"""


@pytest.mark.long
def test_what_is_changed_of_keras_is_what_the_table_says() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WHAT_CHANGES],
        env=os.environ | {"KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.stdout == "set()\nset()\n", done.stderr
