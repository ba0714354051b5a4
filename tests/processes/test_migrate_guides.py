"""``replicant migrate`` on TensorFlow's guides: translated, run, and how many lines a hand had to touch.

The guides are read from the folder REPLICANT_TEST_GUIDES; nothing of them is kept here.
"""

import ast
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from _trace_log import assert_traced_once, logging_traces

from replicant.cli import _migration

HERE = Path(__file__).resolve().parent
GUIDES = os.environ.get("REPLICANT_TEST_GUIDES")
DATA = os.environ.get("REPLICANT_TEST_DATA")
code_of = runpy.run_path(str(HERE / "_guides.py"))["code_of"]

both_ways = pytest.mark.parametrize("fused", [True, False], ids=["as one", "apart"])
needs_guides = pytest.mark.skipif(GUIDES is None, reason="REPLICANT_TEST_GUIDES names no folder with the guides")

# What a hand changes after the translation: a pattern and what takes its place.
BY_HAND = {
    "custom_training": [],
    "keras_fit": [],
    "distributed_input": [],
}
PRINTED = {
    "custom_training": r"Accuracy after restoring the saved model without strategy: (?P<accuracy>\d+\.\d+)",
    "keras_fit": r"(?s)Eval loss: (\S+), .*Eval loss: (\S+), .*Eval loss: (\S+), Eval Accuracy: (?P<accuracy>\S+)",
    "distributed_input": r"(?s)\(Array\(\[8\].*0: \[1 3\],\n  1: \[0 1\].*23\): \S*46\)?\}",
}

# The page of the guide to Keras on several devices lost its quotes, equal signs and line ends when it was saved. This is a
# program of our own with everything that is named there.
MULTI_DEVICE = """\
import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import tensorflow as tf


def make_model():
    image = keras.Input(shape=(784,))
    hidden = keras.layers.Dense(64, activation="relu")(image)
    model = keras.Model(image, keras.layers.Dense(10)(hidden))
    model.compile(
        optimizer=keras.optimizers.Adam(),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    return model


def make_datasets():
    (x, y), (test_x, test_y) = keras.datasets.mnist.load_data()
    x, test_x = (part.reshape(-1, 784).astype("float32") / 255 for part in (x, test_x))
    parts = (x[:-512], y[:-512]), (x[-512:], y[-512:]), (test_x, test_y)
    return [tf.data.Dataset.from_tensor_slices(part).batch(50) for part in parts]


def run(folder):
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        files = [os.path.join(folder, name) for name in os.listdir(folder)]
        print("resume", len(files))
        model = keras.models.load_model(max(files, key=os.path.getctime)) if files else make_model()
    saver = keras.callbacks.ModelCheckpoint(filepath=folder + "/ckpt-{epoch}.keras", save_freq="epoch")
    model.fit(train, epochs=1, callbacks=[saver], validation_data=validation, verbose=2)
    print("loss, accuracy", *model.evaluate(test, verbose=0))


train, validation, test = make_datasets()
os.makedirs("saved", exist_ok=True)
run("saved")
run("saved")
"""


def translated(path: Path, program: str, by_hand: list[tuple[str, str]]) -> tuple[int, int]:
    """Write the program, translate it, and change it by hand: the lines that were, of how many lines of code."""
    path.write_text(program)
    text = _migration.migrate(path).text
    touched = 0
    for pattern, replacement in by_hand:
        text, number = re.subn(pattern, replacement, text)
        touched += number
    assert touched == len(by_hand)
    path.write_text(text)
    lines = [line for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    return touched, len(lines)


def run(path: Path, fused: bool, deadline: float = 900) -> str:
    """Run a translated program on two virtual devices, which compute as one or, as GPUs do, each its own replica."""
    unset = ("NPROC", "XLA_FLAGS", "KERAS_BACKEND", "PYTHONWARNINGS", "REPLICANT_FUSE_REPLICAS", "REPLICANT_COMPILATION_CACHE")
    done = subprocess.run(
        [sys.executable, str(HERE / "_guide_runner.py"), str(path), *([DATA] if DATA else [])],
        cwd=path.parent,
        env={name: value for name, value in os.environ.items() if name not in unset}
        | {"REPLICANT_FUSE_REPLICAS": str(int(fused))}
        | logging_traces(path.parent / "log"),
        capture_output=True,
        text=True,
        timeout=deadline,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "GUIDE DONE" in done.stdout
    assert_traced_once(path.parent / "log")
    return done.stdout


@pytest.mark.slow
@needs_guides
@both_ways
@pytest.mark.parametrize("guide", list(BY_HAND))
def test_a_guide_is_translated_and_runs(guide, fused, tmp_path):
    path = tmp_path / f"{guide}.py"
    touched, lines = translated(path, code_of(Path(GUIDES or "") / f"{guide}.txt"), BY_HAND[guide])
    print(f"{guide}: {touched} of {lines} lines touched by hand")
    assert lines > 60
    assert touched <= 0.05 * lines
    printed = re.search(PRINTED[guide], run(path, fused))
    assert printed is not None
    if (
        guide == "keras_fit"
    ):  # as trained, loaded without the strategy, loaded with it: replicas sum in another order than one device
        first, *others = map(float, printed.groups()[:3])
        assert others == [pytest.approx(first, rel=1e-6)] * 2
    if "accuracy" in printed.groupdict():
        assert float(printed["accuracy"]) > (0.5 if guide == "keras_fit" else 50)


@pytest.mark.slow
@both_ways
def test_keras_on_several_devices_is_translated_and_runs(fused, tmp_path):
    touched, _ = translated(tmp_path / "multi.py", MULTI_DEVICE, [])
    assert touched == 0
    output = run(tmp_path / "multi.py", fused)
    assert re.findall(r"^resume (\d)$", output, re.MULTILINE) == ["0", "1"]
    (first, accuracy), (second, _) = (
        map(float, found) for found in re.findall(r"^loss, accuracy (\S+) (\S+)$", output, re.MULTILINE)
    )
    assert accuracy > 0.5
    assert second < first  # the second run went on with the weights of the first


@needs_guides
def test_our_program_names_what_the_guide_names():
    page = (Path(GUIDES or "") / "keras_multi_device.txt").read_text(encoding="utf-8")
    named = {name for name in re.findall(r"(?:tf|keras)(?:\.\w+)+(?=\()", page) if not re.search(r"layers\.(?!Dense)", name)}
    ours = {ast.unparse(node.func) for node in ast.walk(ast.parse(MULTI_DEVICE)) if isinstance(node, ast.Call)}
    assert {name for name in named if not name.endswith(("distribute", "Dataset"))} <= ours
