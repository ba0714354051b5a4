"""The measurement of one GPU: a part that fails or hangs stops no other, and is named, as is what was not measured."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks" / "on_gpu"))

import _dated_report
import _parts
from _parts import BENCHMARKS, Part


def part(name: str, program: str, seconds: float = 60, least: float = 10) -> Part:
    return Part(name, f"Title of {name}", ("-c", program), seconds, least)


def test_a_part_that_fails_or_hangs_stops_no_other(capfd: pytest.CaptureFixture[str]) -> None:
    hangs = (
        "import subprocess, sys; print('a row', flush=True); subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    )
    parts = [part("fails", "raise ValueError('no figures')"), part("hangs", hangs, 3), part("works", "print('| 1 |')")]
    fails, stopped, works = _parts.run_all(parts, time.monotonic() + 300, {})
    assert (fails.failed, fails.text) == ("exit code 1: ValueError: no figures", "")
    assert (stopped.failed, stopped.text) == ("not finished within 3 s: a row", "a row")
    assert (works.failed, works.text) == (None, "| 1 |")
    assert "works: done" in capfd.readouterr().err


def test_a_part_for_which_no_time_is_left_is_named() -> None:
    (outcome,) = _parts.run_all([part("late", "print(1)")], time.monotonic() + 15, {})
    assert outcome.failed == "not measured: no time was left"
    assert _dated_report.problems([outcome], {}) == ["late: not measured: no time was left"]


def test_a_part_leaves_time_for_those_after_it() -> None:
    parts = [part("long", "import time; time.sleep(600)", 60, 2), part("short", "print('| 1 |')", 60, 40)]
    long, short = _parts.run_all(parts, time.monotonic() + 60, {})
    assert long.failed is not None
    assert long.failed.startswith(("not finished within 4 s", "not finished within 5 s"))
    assert (short.failed, short.text) == (None, "| 1 |")


def test_parts_get_their_environment() -> None:
    outcome = _parts.run(part("reads", "import os; print(os.environ['BENCHMARK_DRY'])"), 60, {"BENCHMARK_DRY": "yes"})
    assert (outcome.text, outcome.failed) == ("yes", None)


def contender(seconds: list[float], memory: int = 0, failed: str | None = None) -> dict[str, Any]:
    return {"seconds": seconds, "gpu_memory": memory, "failed": failed}


RESULT = {
    "steps": 10,
    "contenders": {
        "Replicant fit": contender([0.2] * 3, 102),
        "Replicant loop": contender([0.1] * 3, 100),
        "PyTorch, torch.compile": contender([], failed="died: out of memory"),
        "hand-written JAX": contender([0.2] * 3, 100),
    },
}


def test_the_table_of_the_page() -> None:
    head, _, gpt2, resnet50, _ = _dated_report.page_table({"gpt2": RESULT}).splitlines()
    one, two = "1.00 [1.00, 1.00]", "2.00 [2.00, 2.00]"
    cells = ["gpt2", "20", "10", "not measured", "20", "not measured", "not measured", one, two, "1.020", "1.000"]
    assert gpt2 == f"| {' | '.join(cells)} |"
    assert resnet50 == f"| resnet50 {'| not measured ' * 10}|"
    assert head.count("|") == gpt2.count("|") == 12


def test_contenders_without_figures_are_named() -> None:
    outcome = _parts.Outcome(part("gpt2", ""), "a table", 1.0)
    named = "gpt2: PyTorch, torch.compile: died: out of memory"
    assert _dated_report.problems([outcome], {"gpt2": RESULT}) == [named]
    text = _dated_report.report("# Head", [outcome], {"gpt2": RESULT})
    assert f"* **{named}**" in text
    assert text.endswith("## Title of gpt2 (1 s)\n\na table\n")
    without = {"steps": 10, "contenders": {k: v for k, v in RESULT["contenders"].items() if "torch" not in k}}
    assert _dated_report.problems([outcome], {"gpt2": without}) == ["gpt2: PyTorch, torch.compile: not measured"]


def test_all_parts_fit_into_ten_minutes_one_by_one_and_exist() -> None:
    parts = _parts.all_parts(Path("/folder"), "python", dry=False)
    assert [each.name for each in parts][:3] == ["gpt2", "resnet50", "cnn_bf16"]
    assert all(each.least <= each.seconds <= 150 for each in parts)
    assert sum(each.least for each in parts) <= 460  # two minutes are left to install everything
    assert all(Path(each.command[0]).exists() for each in parts if each.command[0] != "-m")


def test_without_a_gpu_the_script_says_so(tmp_path: Path) -> None:
    path = {"PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "on_gpu")],
        env=path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "on_gpu: nvidia-smi shows no GPU. Add --dry to try the script on a CPU.\n"
