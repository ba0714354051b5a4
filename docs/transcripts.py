"""Write the transcripts of commands into the pages: python docs/transcripts.py [--check] [NAME...].

A page has a place for one between ``<!-- transcript: NAME -->`` and ``<!-- end -->``. Commands run in a new folder; what differs
from run to run (paths, versions, figures) is written as ``...``.
"""

import argparse
import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

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


def transcript(name: str) -> str:
    """What stands between the marks: Markdown."""
    if name == "help":
        from replicant.cli import COMMANDS

        return "\n".join(_block(f"replicant {command} --help") for command in COMMANDS)
    if name == "new":
        return _block("replicant new digits")
    if name == "doctor":
        return _block("replicant doctor", cut=100)
    return _block("cat train.py", "replicant migrate train.py", files={"train.py": PROGRAM})


def _block(*commands: str, files: dict[str, str] | None = None, cut: int = 0) -> str:
    with tempfile.TemporaryDirectory() as folder:
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
    text = _in_a_process(words[1:]) if words[1] == "doctor" and "--help" not in words else _in_this_process(words[1:], folder)
    for pattern, new in (
        (re.escape(folder), "."),
        (r" at \S+python\S*, \S+", " at .../python, ..."),
        (r"host name \S+;", "host name ...;"),
        (r"interfaces [^;]+;", "interfaces ...;"),
        (r"port \d+ on", "port ... on"),
        (r"127\.0\.0\.1:\d+", "127.0.0.1:..."),
        (re.escape(tempfile.gettempdir()) + r"/\w+", ".../"),
        (r"(/\S+)?/replicant/jax-\S+", ".../replicant/jax-..."),
        (r"\d\.\de-\d\d", "..."),
        (r"loss \d+\.\d+ to \d+\.\d+", "loss ... to ..."),
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


def _in_a_process(arguments: list[str]) -> str:
    unset = ("XLA_FLAGS", "NPROC", "REPLICANT_COMPILATION_CACHE", "REPLICANT_FUSE_REPLICAS", "KERAS_BACKEND")
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", "replicant", *arguments],
        env={name: value for name, value in os.environ.items() if name not in unset},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    return done.stdout + done.stderr


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
        page = path.read_text()
        for name, old in places(page).items():
            if arguments.names and name not in arguments.names:
                continue
            new = transcript(name)
            changed += new != old
            page = page.replace(f"<!-- transcript: {name} -->\n{old}", f"<!-- transcript: {name} -->\n{new}")
        if not arguments.check:
            path.write_text(page)
    if changed and arguments.check:
        print(f"{changed} transcript(s) have changed: python docs/transcripts.py")
    return int(bool(changed) and arguments.check)


if __name__ == "__main__":
    sys.exit(main())
