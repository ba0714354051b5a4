"""Figures that were recorded from TensorFlow, and the table of how Replicant's results compare."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # test folders are no packages

import _report  # noqa: E402


@pytest.fixture(scope="module")
def figures(request: pytest.FixtureRequest) -> Any:
    """The figures for test_<name>.py, from figures/<name>.json."""
    return json.loads((HERE / "figures" / f"{_name(request)}.json").read_text())


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest) -> _report.Report:
    """The report in which test_<name>.py counts its cases."""
    return _report.REPORTS[_name(request)]


@pytest.fixture
def counted(request: pytest.FixtureRequest, report: _report.Report) -> set[str]:
    """The cases that the tests of this file have counted. Skips the test if only some of these tests were selected."""
    if request.config.option.keyword or any("::" in arg for arg in request.config.args):
        pytest.skip("only some tests of this file were selected, so not every case is counted")
    return set(report.outcomes)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _report.REPORTS:
        terminalreporter.section("recorded TensorFlow cases")
        for line in _report.table():
            terminalreporter.line(line)


def _name(request: pytest.FixtureRequest) -> str:
    return request.path.stem.removeprefix("test_")
