"""tests/versions.py, which runs the core of the suite with every tested Python: what it runs, and the table at its end."""

import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
tool = runpy.run_path(str(ROOT / "tests" / "versions.py"))
Row = tool["Row"]


def test_every_file_that_it_names_is_there():
    for name in (*(name for names in tool["CORE"].values() for name in names), *tool["KERAS"]):
        assert list(ROOT.glob(f"tests/*/test_{name}.py")), name


def test_the_pythons_are_those_of_the_package_and_of_the_constraints():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [text.rpartition(" ")[2] for text in project["classifiers"] if text.startswith("Programming Language :: Python :: 3.")]
    assert [*tool["LINES"]] == named
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("jaxlib==")]
    assert len(pins) == len(named)


def test_the_table():
    rows = [
        Row("3.11", note=tool["MISSING"]),
        Row("3.12", "0.11.2", "3.15.1", passed=120, failed=1, skipped=3, seconds=59.7, note="pytest ended with 1"),
        Row("3.13", "0.12.0.1", "3.15.1", passed=124, skipped=3, seconds=8.0),
    ]
    assert tool["table"](rows).splitlines() == [
        "Python | jax      | keras  | passed | failed | skipped | seconds",
        "------ | -------- | ------ | ------ | ------ | ------- | ------- | -------------------",
        "3.11   |          |        |        |        |         |         | not found",
        "3.12   | 0.11.2   | 3.15.1 | 120    | 1      | 3       | 60      | pytest ended with 1",
        "3.13   | 0.12.0.1 | 3.15.1 | 124    | 0      | 3       | 8",
    ]
    assert [row.is_bad for row in rows] == [False, True, False]


@pytest.mark.parametrize(
    ("report", "counted"),
    [
        (None, {}),
        (
            '<testsuites><testsuite tests="9" failures="1" errors="2" skipped="3" time="1.5"/></testsuites>',
            {"passed": 3, "failed": 3, "skipped": 3},
        ),
    ],
)
def test_the_report_of_pytest(tmp_path, report, counted):
    if report is not None:
        (tmp_path / "report.xml").write_text(report)
    assert tool["counted"](tmp_path / "report.xml") == counted


@pytest.mark.slow
def test_a_failure_does_not_stop_the_others(monkeypatch, capsys, tmp_path):
    """Three Pythons: one that is not here, one whose environment cannot be made, and this one with one short file."""
    names = tool["main"].__globals__
    monkeypatch.setitem(names, "FOLDER", tmp_path)
    monkeypatch.setitem(names, "CORE", {"short": ["public_names"]})
    monkeypatch.setitem(names, "find", lambda line: None if line == "3.11" else sys.executable)

    def environment(line, python):
        if line == "3.12":
            raise subprocess.CalledProcessError(7, ["pip"])
        return Path(python)

    monkeypatch.setitem(names, "environment", environment)
    monkeypatch.setattr("sys.argv", ["versions.py", "--pytest", "-p", "no:cacheprovider"])
    monkeypatch.delenv("REPLICANT_TEST_SHARE", raising=False)  # the file that it runs may be in another share
    assert tool["main"]() == 1
    lines = capsys.readouterr().out.splitlines()[-3:]
    assert lines[0].endswith("| not found")
    assert lines[1].endswith("| could not be installed: exit status 7")
    passed, failed, skipped = (int(cell) for cell in lines[2].split("|")[3:6])
    assert (passed > 0, failed, skipped) == (True, 0, 0)


def test_none_is_here(monkeypatch, capsys):
    monkeypatch.setitem(tool["main"].__globals__, "find", lambda line: None)
    monkeypatch.setattr("sys.argv", ["versions.py", "3.12", "3.13"])
    assert tool["main"]() == 1
    printed = capsys.readouterr()
    assert [line.endswith("| not found") for line in printed.out.splitlines()[-2:]] == [True, True]
    assert printed.err == "None of these Pythons was found: 3.12 3.13\n"
