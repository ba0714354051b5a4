"""Compiling a model with a model axis writes nothing to standard error, such as XLA's "Involuntary full rematerialization"."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys

import replicant

replicant.set_virtual_devices(4)

from tests.devices.test_model_axis import MODELS, WAYS, cut

losses, _, _ = WAYS[sys.argv[2]](cut(4), MODELS[sys.argv[1]], "sgd", epochs=1)
print(len(losses))
"""


@pytest.mark.cases("cnn-fit")
@pytest.mark.parametrize("way", ["fit", "loop"])
@pytest.mark.parametrize("model", ["cnn", "mlp", "transformer"])
@pytest.mark.long
def test_xla_has_nothing_to_say(model: str, way: str) -> None:
    environ = os.environ | {"REPLICANT_COMPILATION_CACHE": "0"}  # a program from a cache is not compiled
    command = [sys.executable, "-c", PROGRAM, model, way]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.stderr == ""
    assert done.returncode == 0
