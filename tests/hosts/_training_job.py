"""What the tests of training on several hosts share: the program, its environment, and the comparison with one device."""

import json
from pathlib import Path
from typing import Any

import numpy as np

PROGRAM = Path(__file__).with_name("_program.py")
START_SECONDS = 120.0  # for the workers to come to the moment


def environment(folder: Path, programs: str) -> dict[str, str]:
    """The variables of every worker. `programs` is the folder of compiled programs."""
    return {
        "FOLDER": str(folder),
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "NPROC": "1",
        "PYTHONUNBUFFERED": "1",
        "REPLICANT_COMPILATION_CACHE": programs,
    }


def check_answer(folder: Path, rank: int, expected: Any) -> None:
    """Check that a worker has computed the losses and weights of one device."""
    answer = json.loads((folder / f"answer-{rank}.json").read_text())
    np.testing.assert_allclose(answer["losses"], expected["losses"], rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(answer["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
