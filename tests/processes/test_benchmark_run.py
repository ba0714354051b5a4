"""``benchmarks/run.py`` as users start it: Ctrl-C leaves no process behind, and files of results become one page."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

RUN = Path(__file__).resolve().parents[2] / "benchmarks" / "run.py"
PROC = Path("/proc")


def those_with(mark: str) -> dict[int, str]:
    """Return the command lines of all processes that have inherited a word in their environment."""
    found = {}
    for folder in PROC.glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended, or belongs to someone else
            continue
    return {pid: command for pid, command in found.items() if command}


def until(true: Any, seconds: float) -> bool:
    """Wait until something is true, and return whether it is."""
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(true())


@pytest.mark.skipif(not PROC.exists(), reason="the system has no /proc in which to look for what is left")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminated"])
@pytest.mark.cases("ctrl-c")
@pytest.mark.long
def test_an_interrupted_run_leaves_no_process(number: signal.Signals) -> None:
    mark = f"BENCHMARK_MARK={os.getpid()}-{number}"
    options = ["--only", "training", "--models", "tiny", "--contenders", "Replicant", "--replicas", "1"]
    environment = os.environ | dict([mark.split("=")])
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen([sys.executable, str(RUN), *options], env=environment, **pipes, start_new_session=True) as process:
        try:
            begun = until(lambda: any("with_replicant.py" in command for command in those_with(mark).values()), 60)
            process.send_signal(number)
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
            left = those_with(mark)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
    assert begun, output
    assert "1 tables, 2 contenders. Estimate: 1 minutes" in output
    assert process.returncode != 0
    assert left == {}, output


def results(load: float, **parts: Any) -> dict[str, Any]:
    machine = {"processor": "Chip", "cores": 2, "system": "Linux", "python": "3.11.7", "load": load}
    return {"date": "2026-11-21", "machine": machine, "libraries": {"jax": "0.10"}, "gpu": "not measured", "printed": {}} | parts


def table(case: str, seconds: float) -> dict[str, Any]:
    figures = {"first_loss": 2.3, "seconds": [seconds], "processor": [seconds], "libraries": {}, "failed": None}
    return {"case": case, "replicas": 1, "batch": 128, "steps": 1, "contenders": {"Replicant fit": figures}}


@pytest.mark.long
def test_a_part_replaces_its_tables_in_the_file_and_on_the_page(tmp_path: Path) -> None:
    printed = {"plan.py": {"text": "| a |\n|---|\n| 1 |\n", "failed": ""}}
    whole = results(0.1, training={"results": [table("cnn", 0.1), table("resnet", 0.2)]}, printed=printed)
    part = results(0.2, training={"results": [table("unet", 0.4), table("cnn", 0.3)]})
    page = tmp_path / "page.md"
    page.write_text("Before\n<!-- measured -->\nold\n<!-- end of measured -->\nAfter\n")
    for name, found in {"whole": whole, "part": part}.items():
        (tmp_path / name).write_text(json.dumps(found))
    command = [sys.executable, str(RUN), "--from", str(tmp_path / "whole"), str(tmp_path / "part"), "--page", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    summary, text = page.read_text(), (tmp_path / "page-tables.md").read_text()
    assert summary.startswith("Before\n<!-- measured -->\n\n2026-11-21; Chip")
    assert summary.endswith("<!-- end of measured -->\nAfter\n")
    assert "old" not in summary
    assert "All tables, with the intervals: `page-tables.md`, drawn from `whole`, `part`." in summary
    # In the order of the cases, with the part's figures of the CNN.
    fits = [line.split("|")[3].strip() for line in summary.splitlines() if line.endswith("| - | -, - | -, - | -, - | -, - |")]
    assert fits == ["300", "200", "400"]
    rows = [line.split("|")[2].strip() for line in text.splitlines() if line.startswith("| Replicant fit |")]
    assert rows == fits
    for drawn in (summary, text):
        assert "From a run by itself: training (unet, cnn). 2026-11-21; Chip" in drawn
    assert "## `plan.py`" in text
    assert "plan.py" not in summary
