"""A worker of a local SGD is killed: the others, and the one that takes its place, go on from the same round."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from replicant.launch import Settings, Supervisor

PROGRAM = Path(__file__).with_name("_local_sgd_program.py")
STEPS = 30  # three epochs of ten


def trained(folder: Path, *arguments: Any, **settings: Any) -> list[dict[str, Any]]:
    """Return what the workers wrote, of which three begin."""
    folder.mkdir()
    made = Settings((str(PROGRAM), str(folder), *map(str, arguments)), num_workers=3, log_dir=folder / "logs", **settings)
    environ = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"KERAS_BACKEND": "jax"}
    said = io.StringIO()
    assert Supervisor(made, io.StringIO(), said, environ).run() == 0, said.getvalue()
    return [json.loads(path.read_text()) for path in sorted(folder.glob("answer-*.json"))]


@pytest.mark.long
def test_a_job_that_starts_again_ends_with_the_bits_of_one_that_was_never_interrupted(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", 0, 0, "epoch")
    for rank, step, save_freq in [(1, 9, 3), (0, 12, "epoch")]:
        found = trained(tmp_path / f"killed-{rank}", rank, step, save_freq, max_restarts=1)
        assert [each["workers"] for each in found] == [3, 3, 3]
        assert all(each["weights"] == whole[0]["weights"] for each in found)
        assert {each["taken"] for each in found} <= {STEPS - 4, STEPS - 8, STEPS - 10}  # not all steps again


@pytest.mark.parametrize(("rank", "step", "save_freq"), [(1, 9, 3), pytest.param(0, 6, "0.01s", marks=pytest.mark.slow)])
@pytest.mark.long
def test_elastic_workers_go_on_with_fewer(tmp_path: Path, rank: int, step: int, save_freq: Any) -> None:
    first, second = trained(tmp_path / "job", rank, step, save_freq, elastic=(2, 3))
    assert (first["workers"], second["workers"]) == (2, 2)
    assert first["weights"] == second["weights"]
    assert first["taken"] == second["taken"] < STEPS
    assert [path for path in (tmp_path / "job" / "backup").rglob("backup-*") if path.is_dir()] == []
