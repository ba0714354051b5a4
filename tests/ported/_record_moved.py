"""Records the checkpoints that programs leave, and what they compute next, with TensorFlow 2.21.0, Keras 3.15.1, tf_keras 2.21.0.

`python _record_moved.py` writes the checkpoints of each program into a folder of its own in `tests/tensorflow_files/ported`. It
writes the numbers of the program that goes on from them, and the versions, into `truth.json` there. It needs
`pip install tensorflow-cpu==2.21.0 keras==3.15.1 tf_keras==2.21.0`, and no Replicant.
"""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from _by_hand import Changes, changed
from _moved import MOVED

HERE = Path(__file__).resolve().parent
RECORDED = HERE.parent / "tensorflow_files" / "ported"
# `tf.keras` is Keras 3, or Keras 2 where the program uses what Keras 3 has not.
RECORDINGS = {
    "custom_training_keras2": ("custom_training", "1"),
    "fault_tolerance_keras2": ("migrate_fault_tolerance", "1"),
    "fault_tolerance_keras3": ("migrate_fault_tolerance", "0"),
}


def run(program: str, by_hand: Changes, keras2: str, folder: Path) -> None:
    """Run a changed program in a folder, which then has its files."""
    text = changed((HERE / "of_tensorflow" / f"{program}.py").read_text(), by_hand)
    environ = os.environ | {"KERAS_BACKEND": "tensorflow", "TF_USE_LEGACY_KERAS": keras2, "CUDA_VISIBLE_DEVICES": ""}
    path = folder / "program.py"  # AutoGraph reads the source
    path.write_text(text)
    subprocess.run([sys.executable, str(path)], cwd=folder, env=environ, check=True, timeout=120)
    path.unlink()


def record(name: str, program: str, keras2: str) -> dict[str, list]:
    """Keep the checkpoints that a program leaves, and return the numbers that it computes when it goes on from them."""
    moved = MOVED[program]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run(program, moved.first, keras2, folder)
        shutil.rmtree(RECORDED / name, ignore_errors=True)
        shutil.copytree(folder, RECORDED / name, ignore=shutil.ignore_patterns("numbers.npz"))
        run(program, moved.then, keras2, folder)
        numbers = np.load(folder / "numbers.npz")
        return {key: numbers[key].astype(float).tolist() for key in moved.numbers}


if __name__ == "__main__":
    versions = {
        name: importlib.metadata.version(distribution)
        for name, distribution in (("tensorflow", "tensorflow-cpu"), ("keras", "keras"), ("tf_keras", "tf_keras"))
    }
    truth = {name: {"program": program, "numbers": record(name, program, keras2)} for name, (program, keras2) in RECORDINGS.items()}
    (RECORDED / "truth.json").write_text(json.dumps({"versions": versions, **truth}, indent=1) + "\n")
