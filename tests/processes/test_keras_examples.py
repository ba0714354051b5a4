"""examples/keras_fit.py and examples/keras_multi_device.py, run as users run them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("with_sklearn")

ROOT = Path(__file__).resolve().parents[2]
TEST_DATA = Path(os.environ.get("REPLICANT_TEST_DATA", ROOT / "data"))

# Keras's Variable.__array__ has no `copy` argument yet: its own saving warns with NumPy 2.
KERAS_WARNING = "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"


def run_example(name: str, folder: Path, *options: str, deadline: float = 150) -> subprocess.CompletedProcess:
    unset = ("NPROC", "XLA_FLAGS", "KERAS_BACKEND", "PYTHONWARNINGS")
    return subprocess.run(
        [sys.executable, "-W", "error", "-W", KERAS_WARNING, str(ROOT / "examples" / name), *options],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in unset},
        capture_output=True,
        text=True,
        timeout=deadline,
        check=False,
    )


def evaluations(output: str) -> list[tuple[str, float, float]]:
    """Title, loss and accuracy in percent of every evaluation."""
    found = re.findall(r"^(.+): Eval loss: (\d+\.\d{4}), Eval accuracy: (\d+\.\d\d)$", output, re.MULTILINE)
    return [(title, float(loss), float(accuracy)) for title, loss, accuracy in found]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> tuple[str, Path]:
    """keras_fit.py with 4 virtual devices, 5 epochs: the learning rate falls once."""
    folder = tmp_path_factory.mktemp("keras_fit")
    done = run_example("keras_fit.py", folder, "--epochs", "5", "--batch-size-per-replica", "16")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout, folder


@pytest.mark.slow
def test_keras_fit_evaluates_three_times_to_the_same_numbers(fitted):
    output, _ = fitted
    assert output.startswith("Number of devices: 4\n")
    trained, without, with_strategy = evaluations(output)
    assert [trained[0], without[0], with_strategy[0]] == ["As trained", "Loaded without the strategy", "Loaded with the strategy"]
    assert trained[1:] == without[1:] == with_strategy[1:]
    assert trained[2] > 85


@pytest.mark.slow
def test_keras_fit_prints_the_learning_rate_of_each_epoch(fitted):
    rates = re.findall(r"^Learning rate for epoch (\d) is (\S+)$", fitted[0], re.MULTILINE)
    assert rates == [("1", "0.001"), ("2", "0.001"), ("3", "0.001"), ("4", "0.0001"), ("5", "0.0001")]


@pytest.mark.slow
def test_keras_fit_leaves_weights_logs_and_the_model(fitted):
    _, folder = fitted
    assert sorted(path.name for path in folder.iterdir()) == ["logs", "my_model.keras", "training_checkpoints"]
    names = sorted(path.name for path in (folder / "training_checkpoints").iterdir())
    assert names == [f"ckpt_{epoch}.weights.h5" for epoch in range(1, 6)]
    assert [path.name.split(".")[0] for path in (folder / "logs" / "train").iterdir()] == ["events"]


@pytest.mark.slow
def test_keras_multi_device_goes_on_where_it_stopped(tmp_path):
    first = run_example("keras_multi_device.py", tmp_path)
    assert (first.returncode, first.stderr) == (0, "")
    assert float(re.findall(r"Test accuracy: (\d+\.\d\d)$", first.stdout, re.MULTILINE)[0]) > 80
    assert re.findall(r"^(Creating a new model|Restoring from .*)$", first.stdout, re.MULTILINE) == [
        "Creating a new model",
        "Restoring from ckpt/ckpt-1.keras",
    ]
    again = run_example("keras_multi_device.py", tmp_path, "--epochs", "1", "--replicas", "3")
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("Number of devices: 3\n")
    assert re.findall(r"^Restoring from .*$", again.stdout, re.MULTILINE) == [
        "Restoring from ckpt/ckpt-2.keras",
        "Restoring from ckpt/ckpt-3.keras",
    ]
    losses = [float(loss) for loss in re.findall(r" val_loss: (\d+\.\d+)", first.stdout + again.stdout)]
    assert losses[-1] < losses[3] < losses[2]  # of epochs 4, 2 and 1 of the model that is trained on and on
    assert sorted(path.name for path in (tmp_path / "ckpt").iterdir()) == [f"ckpt-{epoch}.keras" for epoch in range(1, 5)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["keras_fit.py", "keras_multi_device.py"])
def test_missing_data_and_bad_options_are_explained_without_a_traceback(tmp_path, name):
    done = run_example(name, tmp_path, "--data", "mnist", "--data-dir", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{name}: {tmp_path}/train-images-idx3-ubyte.gz is missing: put the file there, or leave out --data-dir\n"
    done = run_example(name, tmp_path, "--replicas", "0")
    assert done.returncode == 2
    assert "argument --replicas: '0' is not a whole number of at least 1" in done.stderr


@pytest.mark.slow
def test_twelve_epochs_of_mnist_reach_the_published_accuracy(tmp_path):
    folder = TEST_DATA / "mnist"
    if not folder.is_dir():
        pytest.skip(f"no {folder}: name a folder that holds mnist/ with REPLICANT_TEST_DATA")
    done = run_example("keras_fit.py", tmp_path, "--data", "mnist", "--data-dir", str(folder), deadline=3600)
    assert done.returncode == 0, done.stderr
    trained, *loaded = evaluations(done.stdout)
    assert trained[2] >= 98.2
    assert [result[1:] for result in loaded] == [trained[1:]] * 2
