"""The documentation: every Python block runs, the transcripts are those of today's commands, and the site builds without a warning.

A page's blocks are one program. What a block takes for granted (a model, a step) is in `PRELUDES`. It finds no packages but those
that the page's first line installs. The blocks of the tutorial and of the pages in notebooks are the cells of notebooks, which a
kernel runs, and which are compared with the stored ones. Those of the page on common mistakes say what the page shows.
"""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from _trace_log import assert_traced_once, logging_traces

pytestmark = pytest.mark.usefixtures("with_sklearn")

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHOWN = re.compile(r"^```\n\n```\n(.*?)^```$", re.DOTALL | re.MULTILINE)  # what follows a block
OWN_TESTS = {"common-mistakes", "tutorial"}
PRINTING = {"pytorch"}  # shows what its program prints
CHEAP = {"concepts"}  # runs in `make test`, as a sample; the others in `make test-all`

# The packages of these names are not installed, as far as a program can tell.
HIDE = """\
import importlib.machinery
import sys


class Hiding(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in NAMES else super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Hiding
"""
COMMON = """\
import replicant

replicant.set_virtual_devices(2)
import jax.numpy as jnp
import keras
import numpy as np

from replicant.data import Dataset

strategy = replicant.MirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(4)])
    optimizer = keras.optimizers.Adam()
    accuracy = keras.metrics.SparseCategoricalAccuracy()
images, labels = np.ones((20, 3), "float32"), np.zeros(20, "int32")
global_batch_size = 8
batches = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices((images, labels)).batch(global_batch_size))


def replica_step(batch):
    x, y = batch
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")(y, model(x))
    return replicant.compute_average_loss(losses, global_batch_size=global_batch_size)


@replicant.function
def train_step(batch):
    return strategy.reduce("SUM", strategy.run(replica_step, args=(batch,)))


"""
CHECKPOINTS = f"""\
import shutil

iterator, state = iter(batches), {{"loss": 0.0}}
shutil.copytree({str(ROOT / "tests/tensorflow_files/bundles/v1/plain")!r}, "model_dir")
"""
FAULTS = """\
class Progress:
    epoch, losses = 0, []

    def state(self):
        return {"epoch": self.epoch, "losses": self.losses}

    def restore(self, state):
        self.epoch, self.losses = state["epoch"], state["losses"]


with strategy.scope():
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
dataset, others, num_epochs, progress = Dataset.from_tensor_slices((images, labels)).batch(8), [], 1, Progress()
iterator = [next(iter(batches))]
"""
KERAS = """\
class Sequential(keras.Sequential):
    def __init__(self, layers):
        super().__init__([keras.layers.Dense(4)] if layers == [...] else layers)


keras.Sequential = Sequential
optimizer, loss = "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True)
dataset = test_dataset = Dataset.from_tensor_slices((images, labels)).batch(8)
"""
LAUNCH = """\
import replicant

import keras
import numpy as np


def create_model():
    return keras.Sequential([keras.layers.Dense(1)])


def dataset():
    return replicant.data.Dataset.from_tensor_slices((np.ones((8, 3), "float32"), np.ones((8, 1), "float32"))).batch(4)


"""
WEIGHTS = f"""\
import shutil

shutil.copytree({str(ROOT / "tests" / "tensorflow_files" / "weights")!r}, ".", dirs_exist_ok=True)
"""
MOVING_IN = f"""\
import shutil

recorded = {str(ROOT / "tests" / "tensorflow_files" / "objects")!r}
shutil.copytree(f"{{recorded}}/ckpt_tf_keras/sequential_adam", "model_dir")
shutil.copytree(f"{{recorded}}/callbacks/tf_keras/backup_copy", "backup")
"""
PRELUDES = {
    "checkpoints": COMMON + CHECKPOINTS,
    "fault-tolerance": COMMON + FAULTS,
    "input": COMMON + "train_step = replica_step\n",
    "keras": COMMON + KERAS,
    "clusters": "import replicant\n",
    "launch": LAUNCH,
    "moving-in": MOVING_IN,
    "weights": WEIGHTS,
    "multi-worker": "import numpy\n\nfeatures, labels = numpy.ones((64, 3)), numpy.zeros(64)\n",
}


def pages():
    found = [path.stem for path in sorted(DOCS.glob("*.md")) if BLOCK.search(path.read_text()) and path.stem not in OWN_TESTS]
    return [pytest.param(name, marks=() if name in CHEAP else pytest.mark.slow) for name in found]


@pytest.mark.parametrize("page", pages())
@pytest.mark.long
def test_the_blocks_of_a_page_run(page, tmp_path):
    text = (DOCS / f"{page}.md").read_text()
    hidden = runpy.run_path(str(DOCS / "installs.py"))["absent"](text)
    program = HIDE.replace("NAMES", repr(hidden)) + PRELUDES.get(page, "") + "\n\n".join(BLOCK.findall(text))
    (tmp_path / "page.py").write_text(program)
    unset = ("NPROC", "XLA_FLAGS", "PYTHONWARNINGS", "REPLICANT_FUSE_REPLICAS", "KERAS_BACKEND")
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        # As a reader has it who has just installed everything: Keras has no file that says what it runs on.
        env={name: value for name, value in os.environ.items() if name not in unset}
        | {"KERAS_HOME": str(tmp_path / "keras")}
        | logging_traces(tmp_path / "log"),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert_traced_once(tmp_path / "log")
    if page in PRINTING:
        assert SHOWN.findall(text) == [done.stdout]


def test_a_page_with_blocks_is_tested_and_the_sample_is_one_of_them():
    names = {path.stem for path in DOCS.glob("*.md")}
    assert CHEAP | OWN_TESTS | PRINTING | set(PRELUDES) <= names
    assert {"index", "plan"} <= {param.values[0] for param in pages()}


@pytest.mark.slow
def test_the_common_mistakes_say_what_the_page_shows():
    tool = runpy.run_path(str(DOCS / "mistakes.py"))
    page = (DOCS / "common-mistakes.md").read_text()
    assert tool["problems"](page) == [], "python docs/mistakes.py"


def test_every_mistake_on_the_page_is_told():
    tool = runpy.run_path(str(DOCS / "mistakes.py"))
    told = [shown for _, shown in tool["blocks"]((DOCS / "common-mistakes.md").read_text()) if shown is not None]
    assert len(told) >= 18
    assert all(shown.strip() for shown in told)


NOTEBOOKS = ["tutorial", "custom_training", "distributed_input", "keras_fit", "keras_multi_device", "template"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_page_is_the_notebook_and_both_run(name):
    """A real kernel runs it, and nothing is written to stderr: no warning, no progress of a library."""
    pytest.importorskip("nbclient", reason="pip install 'replicant-jax[docs]'")
    pytest.importorskip("ipykernel", reason="pip install 'replicant-jax[docs]'")
    tool = runpy.run_path(str(DOCS / "notebook.py"))
    page = tool["PAGES"][name]
    text = page.read_text()
    stored, new = json.loads(page.with_suffix(".ipynb").read_text()), tool["notebook"](text)
    assert tool["differences"](stored, new) == [], f"python docs/notebook.py {name}"
    streams = [output for cell in new["cells"] for output in cell.get("outputs", []) if output["output_type"] == "stream"]
    assert [output["text"] for output in streams if output["name"] != "stdout"] == []
    printed = tool["printed"](text)
    assert len(printed) == (4 if name == "tutorial" else 0)
    assert set(printed) <= {"".join(output["text"]) for output in streams}


def test_every_page_of_a_notebook_is_tested():
    assert sorted(NOTEBOOKS) == sorted(runpy.run_path(str(DOCS / "notebook.py"))["PAGES"])


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="pip install 'replicant-jax[docs]'")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "MirroredStrategy" in (tmp_path / "site" / "api" / "replicant.html").read_text()
    outside = [
        path.name
        for path in (tmp_path / "site").rglob("*.html")
        if re.search(r'<(script|link)[^>]+(src|href)="https?:', path.read_text())
    ]
    assert outside == []  # nothing is loaded from elsewhere
