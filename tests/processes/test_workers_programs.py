"""Workers compare the programs that they trace: the same ones agree, whatever is in them, and one number that differs is named."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import replicant

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import _group  # noqa: E402
import _worker_same_programs as programs  # noqa: E402

pytestmark = pytest.mark.long

TOLERANCE = 1e-5
FIRST = ("run", "fit")  # of the programs that are alike; the others take most of the time

# What the error shows of worker 0 and of worker 1.
SHOWN = {
    "literal": (r"mul\(%1, 0\.1 \(float32\)\)", r"mul\(%1, 0\.01 \(float32\)\)"),
    "captured": (
        r"constant float32\[4\] \[0\.0, 1\.0, 2\.0, \.\.\.\] \w+",
        r"constant float32\[4\] \[0\.0, 1\.0, 2\.0, \.\.\.\] \w+",
    ),
    "in a loop": (r"mul\(%0, 2\.0 \(float32\)\), from \S+_worker_same_programs\.py:\d+ in", r"mul\(%0, 3\.0 \(float32\)\), from"),
    "fit": (r"lt\(%\d+, 0\.5 \(float32\)\)", r"lt\(%\d+, 0\.75 \(float32\)\)"),
    "loss": (r"constant float32\[2\] \[0\.0, 1\.0, \.\.\.\] \w+", r"constant float32\[2\] \[0\.0, 2\.0, \.\.\.\] \w+"),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What two workers with two devices each found; their strings hash differently."""
    folder = tmp_path_factory.mktemp("programs")
    runs_all = "1" in (os.environ.get("REPLICANT_TEST_SLOW"), os.environ.get("REPLICANT_TEST_FULL"))
    names = json.dumps([*programs.ALIKE] if runs_all else FIRST)
    environ = lambda rank: {"PYTHONHASHSEED": str(rank + 1), "PROGRAMS": names}  # noqa: E731
    return _group.Group(HERE / "_worker_same_programs.py", 2, folder, environ=environ).ended_well()


@pytest.mark.cases(*FIRST)
@pytest.mark.parametrize("name", programs.ALIKE)
def test_the_same_programs_agree_and_give_the_numbers_of_one_device(answers: list[Any], name: str) -> None:
    plain = replicant.MirroredStrategy([f"cpu:{i}" for i in range(4)]) if name == "run" else replicant.get_strategy()
    expected = programs.alike(name, plain)
    for answer in answers:
        assert jax.tree.structure(answer[name]) == jax.tree.structure(expected)
        for actual, wanted in zip(jax.tree.leaves(answer[name]), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(actual, wanted, TOLERANCE, TOLERANCE)


@pytest.mark.parametrize("name", SHOWN)
def test_programs_that_differ_in_one_number_are_refused(answers: list[Any], name: str) -> None:
    first, second = SHOWN[name]
    message = (
        r"The workers have traced different programs\. They must run the same code on arguments of the same shapes and dtypes, "
        r"with the same Python values and random seeds, and the arrays that the code captures must be equal\.\n"
        r"  worker 0 \(.*\)  .*: \d+ operations \(\w+\) on \d+ inputs, the last of them .*\n"
        r"  worker 1 \(.*\)  .*: \d+ operations \(\w+\) on \d+ inputs, the last of them .*\n"
        rf"The first operation that differs:\n  worker 0 \(.*\)  .*{first}.*\n  worker 1 \(.*\)  .*{second}"
    )
    for answer in answers:
        assert re.match(message, answer[f"unlike {name}"]), answer[f"unlike {name}"]


def test_an_eager_step_on_other_data_is_refused(answers: list[Any]) -> None:
    for answer in answers:
        assert answer["unlike eager data"].startswith(
            "The workers' batches differ. Give fit, evaluate and predict the same data in the same order on all"
        )
