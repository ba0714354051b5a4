"""Write the transcripts of commands into the pages: python docs/transcripts.py [--check] [NAME...].

A page has a place for one between ``<!-- transcript: NAME -->`` and ``<!-- end -->``. Commands run in a new folder; what differs
from run to run (paths, versions, figures) is written as ``...``. The plans need libtpu, and minutes; without it they stay as they
are.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent

PROGRAM = """\
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(64)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(10)])
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=tf.keras.losses.Reduction.NONE)

@tf.function
def step(images):
    return strategy.run(lambda x: tf.reduce_mean(x, axis=1), args=(images,))

for images, labels in strategy.experimental_distribute_dataset(dataset):
    images = tf.image.random_flip_left_right(images)
    print(step(images).numpy())
"""

LAUNCHED = """\
import os
import signal

import keras
import numpy as np

import replicant

strategy = replicant.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")


class PowerCut(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and os.environ["REPLICANT_GENERATION"] == "0" and not strategy.is_chief:
            os.kill(os.getpid(), signal.SIGKILL)


features = np.eye(4, dtype="float32").repeat(8, axis=0)
callbacks = [replicant.keras.callbacks.BackupAndRestore("backup"), PowerCut()]
history = model.fit(features, features[:, :1], epochs=4, batch_size=8, callbacks=callbacks, verbose=0)
if strategy.is_chief:
    print(f"{strategy.num_replicas_in_sync} replicas trained epochs {[epoch + 1 for epoch in history.epoch]}")
"""

CNN = """\
import keras
import numpy as np

import replicant

strategy = replicant.MirroredStrategy()
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
rows = 64 * strategy.num_replicas_in_sync
images, labels = np.zeros((rows, 28, 28, 1), "float32"), np.zeros(rows, "int32")
model.fit(replicant.data.Dataset.from_tensor_slices((images, labels)).batch(rows))
"""

RECORDED = DOCS.parent / "tests" / "tensorflow_files" / "weights" / "export_tf_keras"  # by model.export of Keras 2
KEPT = DOCS / "pictures" / "plan_resnet50.json"  # what docs/pictures.py draws
PLANS = {  # the page shows of all but the first one only the plan, not its table of scaling
    "plan": "replicant plan cnn.py --topology v5e:16x16",
    "plan_resnet50": "replicant plan examples/plan_resnet50.py --topology v5e:16x16",
    "plan_transformer": "replicant plan examples/plan_transformer.py --topology v5e:16x16",
}


def transcript(name: str) -> str | None:
    """What stands between the marks: Markdown; None: this machine cannot tell."""
    if name in PLANS:
        return _plan(name) if importlib.util.find_spec("libtpu") else None
    if name == "launch":
        return _block("cat train.py", "replicant launch --workers 2 --max-restarts 1 train.py", files={"train.py": LAUNCHED})
    if name == "help":
        from replicant.cli import COMMANDS

        return "\n".join(_block(f"replicant {command} --help") for command in COMMANDS)
    if name == "new":
        return _block("replicant new digits")
    if name == "checkpoint":
        return _block("replicant checkpoint show exported", copies={"exported": RECORDED})
    if name == "clusters":
        return _clusters()
    if name == "doctor":
        return _block("replicant doctor", cut=100)
    return _block("cat train.py", "replicant migrate train.py", files={"train.py": PROGRAM})


def _clusters() -> str:
    """What `replicant doctor` and `print(detect())` say in each environment that the tests record."""
    from replicant.cli import _doctor
    from replicant.cli._checkup._facts import cluster_variables
    from replicant.cluster import detect
    from replicant.errors import ClusterError

    recorded = runpy.run_path(str(DOCS.parent / "tests" / "pure" / "_launcher_environments.py"))
    sections = []
    for title, table in (("Recognised", "RECOGNISED"), ("Refused", "REFUSED")):
        sections.append(f"## {title}\n")
        for name, (variables, *_) in recorded[table].items():
            environ, printed = recorded["env"](variables), io.StringIO()
            with contextlib.redirect_stdout(printed):
                print("$ replicant doctor")
                _doctor._table([cluster_variables(environ)], ["cluster"])  # noqa: SLF001 - as the command prints it
                print("$ python -c 'import replicant; print(replicant.cluster.detect())'")
                try:
                    print(detect(environ))
                except ClusterError as error:
                    print(f"replicant.errors.ClusterError: {error}")
            sections.append(f"### {name[0].upper()}{name[1:]}\n\n```text\n{printed.getvalue()}```\n")
    return "\n" + "\n".join(sections) + "\n"


def _plan(name: str) -> str:
    if name == "plan":
        return _block("cat cnn.py", PLANS[name], files={"cnn.py": CNN})
    lines = _output(PLANS[name], str(DOCS.parent)).splitlines()
    if name == "plan_resnet50":  # once more, from what was kept of the compiler's analysis
        KEPT.write_text(json.dumps(_figures(json.loads(_output(f"{PLANS[name]} --json", str(DOCS.parent)))), indent=1) + "\n")
    return "```text\n" + "\n".join([f"$ {PLANS[name]}", *lines[: lines.index("")], "..."]) + "\n```\n"


def _figures(plan: dict[str, Any]) -> dict[str, Any]:
    """What a plan says about the work of one device."""
    return {
        "topology": plan["topology"],
        "batch_per_replica": plan["batch_per_replica"],
        "flops": plan["flops_per_device"],
        "memory_bytes": plan["memory_traffic_per_device"],
        "exchanged_bytes": sum(x["num_bytes"] for x in plan["exchanges"]),
    }


def _block(*commands: str, files: dict[str, str] | None = None, copies: dict[str, Path] | None = None, cut: int = 0) -> str:
    with tempfile.TemporaryDirectory() as folder:
        for name, recorded in (copies or {}).items():
            shutil.copytree(recorded, Path(folder) / name)
        for name, text in (files or {}).items():
            (Path(folder) / name).write_text(text)
        lines = []
        for command in commands:
            lines += [f"$ {command}", *_output(command, folder).splitlines()]
    if cut:
        lines = [line if len(line) <= cut else line[: cut - 4] + " ..." for line in lines]
    return "```text\n" + "\n".join(lines) + "\n```\n"


def _output(command: str, folder: str) -> str:
    words = command.split()
    if words[0] == "cat":
        return (Path(folder) / words[1]).read_text()
    if words[1] in ("doctor", "launch", "plan") and "--help" not in words:
        text = _in_a_process(words[1:], folder)
    else:
        text = _in_this_process(words[1:], folder)
    for pattern, new in (
        (re.escape(folder), "."),
        (r" at \S+python\S*, \S+", " at .../python, ..."),
        (r"host name \S+;", "host name ...;"),
        (r"\(host \S+, pid \d+\)", "(host ..., pid ...)"),
        (r"its last step: \d+", "its last step: ..."),
        (r"/\S+/rank-(\d)\.log", r".../rank-\1.log"),
        (r"(, at an earlier time)?, in \d+\.\d s$", ", in ... s"),
        (r"interfaces [^;]+;", "interfaces ...;"),
        (r"port \d+ on", "port ... on"),
        (r"127\.0\.0\.1:\d+", "127.0.0.1:..."),
        (re.escape(tempfile.gettempdir()) + r"/\w+", ".../"),
        (r"(/\S+)?/replicant/jax-\S+", ".../replicant/jax-..."),
        (r"\d\.\de-\d\d", "..."),
        (r"from \d+\.\d+ to \d+\.\d+", "from ... to ..."),
        (r"\d+ cores[^;]*;", "... cores;"),
        (r"(XLA and JAX settings +).*", r"\1..."),
        (r"[ \t]+$", ""),
    ):
        text = re.sub(pattern, new, text, flags=re.MULTILINE)
    return text


def _in_this_process(arguments: list[str], folder: str) -> str:
    from replicant import cli

    printed, columns = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.redirect_stdout(printed), contextlib.chdir(folder), contextlib.suppress(SystemExit):
            cli.main(arguments)
    finally:
        os.environ.pop("COLUMNS")
        if columns is not None:
            os.environ["COLUMNS"] = columns
    return printed.getvalue()


def _in_a_process(arguments: list[str], folder: str) -> str:
    unset = ("XLA_FLAGS", "NPROC", "REPLICANT_COMPILATION_CACHE", "REPLICANT_FUSE_REPLICAS", "KERAS_BACKEND")
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", "replicant", *arguments],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in unset},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if arguments[0] == "plan" else subprocess.STDOUT,  # where libtpu misses its TPU
        text=True,
        timeout=3000,
        check=False,
    )
    return done.stdout


def places(page: str) -> dict[str, str]:
    """What now stands in a page: name -> text."""
    return dict(re.findall(r"<!-- transcript: (\w+) -->\n(.*?)<!-- end -->", page, re.DOTALL))


def main() -> int:
    """Write, or only compare."""
    parser = argparse.ArgumentParser(description="Write the transcripts of commands into the pages.")
    parser.add_argument("names", nargs="*", help="of transcripts (default: all)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if one has changed")
    arguments = parser.parse_args()
    changed = 0
    for path in sorted(DOCS.glob("*.md")):
        for name, old in places(path.read_text()).items():
            if arguments.names and name not in arguments.names:
                continue
            new = transcript(name)
            if new is None:
                print(f"{name} stays as it is: it needs libtpu")
                continue
            changed += new != old
            if not arguments.check:  # read again: somebody may have written to the page in the minutes that it took
                mark = f"<!-- transcript: {name} -->\n"
                path.write_text(path.read_text().replace(f"{mark}{old}", f"{mark}{new}"))
    if changed and arguments.check:
        print(f"{changed} transcript(s) have changed: python docs/transcripts.py")
    return int(bool(changed) and arguments.check)


if __name__ == "__main__":
    sys.exit(main())
