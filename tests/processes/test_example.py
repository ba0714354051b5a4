"""examples/custom_training.py, run as users run it."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from _trace_log import assert_traced_once, logging_traces

pytestmark = pytest.mark.usefixtures("with_sklearn")

ROOT = Path(__file__).resolve().parents[2]
TEST_DATA = Path(os.environ.get("REPLICANT_TEST_DATA", ROOT / "data"))

NUMBER = r"(\d+\.\d{4})"
EPOCH = re.compile(rf"^Epoch (\d+), Loss: {NUMBER}, Accuracy: {NUMBER}(?:, Test Loss: {NUMBER}, Test Accuracy: {NUMBER})?$")

PROGRESS = re.compile(r"^Epoch \d+ \[#*\.*\] \d+/12, [\d,]+ examples/s, \d+ s left, loss \d+\.\d{4}$")  # if it takes long


def run_example(folder: Path, *options: str, deadline: float = 150) -> subprocess.CompletedProcess:
    unset = ("NPROC", "XLA_FLAGS", "KERAS_BACKEND", "PYTHONWARNINGS")
    log = Path(tempfile.mkdtemp())
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "custom_training.py"), *options],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in unset} | logging_traces(log),
        capture_output=True,
        text=True,
        timeout=deadline,
        check=False,
    )
    assert done.returncode != 0 or assert_traced_once(log) > 0
    shutil.rmtree(log)
    return done


def epochs(output: str) -> list[tuple[float, ...]]:
    """The figures of every line of an epoch: epoch, loss, accuracy and, from the main loop, test loss and accuracy."""
    matches = [match for line in output.splitlines() if (match := EPOCH.match(line))]
    return [tuple(float(figure) for figure in match.groups() if figure is not None) for match in matches]


@pytest.fixture(scope="module")
def three_epochs(tmp_path_factory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("two_replicas")
    done = run_example(folder, "--epochs", "3", "--replicas", "2", "--batch-size-per-replica", "64")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not PROGRESS.match(line)] == []
    return done.stdout, folder


@pytest.mark.slow
def test_three_epochs_print_the_lines_of_all_three_loops(three_epochs):
    output, _ = three_epochs
    lines = output.splitlines()
    assert lines[0] == "Number of devices: 2"
    assert lines[6] == "With an iterator, 10 steps per epoch:"
    assert lines[10] == "With the loop inside the function:"
    assert [line[0] for line in epochs(output)] == [1, 2, 3] * 3
    assert [len(line) for line in epochs(output)] == [5] * 3 + [3] * 6
    assert len(lines) == 14


@pytest.mark.slow
def test_the_model_learns(three_epochs):
    output, _ = three_epochs
    losses = [line[1] for line in epochs(output)]
    assert losses[2] < 0.8 * losses[0]
    assert losses[8] < 0.3 * losses[0]
    assert epochs(output)[2][4] > 50
    assert epochs(output)[8][2] > 85


@pytest.mark.slow
def test_the_restored_accuracy_equals_the_saved_one(three_epochs):
    output, folder = three_epochs
    (saved,) = re.findall(rf"^Accuracy when the last checkpoint was saved: {NUMBER}$", output, re.MULTILINE)
    (restored,) = re.findall(rf"^Accuracy after restoring it without a strategy: {NUMBER}$", output, re.MULTILINE)
    assert restored == saved
    assert float(saved) == epochs(output)[2][4]
    assert [path.name for path in folder.iterdir()] == ["training_checkpoints"]


@pytest.mark.slow
def test_two_replicas_learn_what_one_device_learns(three_epochs, tmp_path):
    done = run_example(tmp_path, "--epochs", "3", "--replicas", "1", "--batch-size-per-replica", "128")
    assert done.returncode == 0, done.stderr
    for one, two in zip(epochs(done.stdout), epochs(three_epochs[0]), strict=True):
        assert two[1::2] == pytest.approx(one[1::2], abs=1e-3)  # losses
        assert two[2::2] == pytest.approx(one[2::2], abs=0.6)  # percent: one or two images at the border


@pytest.mark.long
def test_missing_data_is_named_without_a_traceback(tmp_path):
    done = run_example(tmp_path, "--data", "fashion_mnist", "--data-dir", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"custom_training.py: {tmp_path}/train-images-idx3-ubyte.gz is missing: put the file there, or leave out --data-dir\n"
    )


@pytest.mark.cases("options1-argument --replicas: '0' is not a whole number of at least 1")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--data-dir", "."],
            "--data-dir works only with --data mnist and --data fashion_mnist: the digits come with scikit-learn",
        ),
        (["--replicas", "0"], "argument --replicas: '0' is not a whole number of at least 1"),
        (["--epochs", "two"], "argument --epochs: 'two' is not a whole number of at least 1"),
        (["--data", "cifar10"], "argument --data: invalid choice: 'cifar10'"),
    ],
)
@pytest.mark.long
def test_bad_options_are_explained(tmp_path, options, message):
    done = run_example(tmp_path, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.slow
def test_ten_epochs_of_fashion_mnist_reach_the_published_accuracy(tmp_path):
    folder = TEST_DATA / "fashion"
    if not folder.is_dir():
        pytest.skip(f"no {folder}: name a folder that holds fashion/ with REPLICANT_TEST_DATA")
    options = ("--data", "fashion_mnist", "--data-dir", str(folder), "--epochs", "10", "--replicas", "2")
    done = run_example(tmp_path, *options, deadline=3600)
    assert done.returncode == 0, done.stderr
    assert epochs(done.stdout)[9][4] >= 90.5
