"""The leak guards of tests/conftest.py catch what they are for."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]

LEAKY = """\
import os
import threading
import time
import warnings
from pathlib import Path

import replicant

class TestLeaks:
    def test_thread(self):
        threading.Thread(target=time.sleep, args=(4,), name="worker-left-alone").start()

    def test_own_daemon(self):
        threading.Thread(target=time.sleep, args=(30,), name="replicant-prefetch", daemon=True).start()

    def test_environment(self):
        os.environ["LEFT_BEHIND"] = "1"

    def test_file(self):
        Path("left_behind.txt").touch()

    def test_cwd(self, tmp_path):
        os.chdir(tmp_path)

    def test_scope(self):
        type(self).left_open = replicant.MirroredStrategy(["cpu:0"]).scope()
        self.left_open.__enter__()

    def test_warning(self):
        warnings.warn("something is off")

def test_clean(tmp_path, monkeypatch):
    monkeypatch.setenv("SET_PROPERLY", "1")
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").touch()
    quick = threading.Thread(target=time.sleep, args=(0.1,))
    quick.start()
    with replicant.MirroredStrategy(["cpu:0"]).scope():
        pass
"""


def run_pytest(folder: Path, file: str, text: str, *options: str, share: str | None = None) -> str:
    """What pytest says about a file of tests, under this repository's conftest files."""
    for name in ("conftest.py", "pyproject.toml", "tests/conftest.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text((ROOT / name).read_text())
    (folder / "tests" / file).write_text(text)
    unset = ("REPLICANT_TEST_SLOW", "REPLICANT_TEST_FULL", "REPLICANT_TEST_SHARE")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_") and name not in unset}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "tests"],
        cwd=folder,
        env=clean | {"COLUMNS": "200"} | ({"REPLICANT_TEST_SHARE": share} if share else {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def outcome(tmp_path_factory) -> str:
    """What pytest says about tests that leak."""
    return run_pytest(tmp_path_factory.mktemp("project"), "test_leaky.py", LEAKY)


@pytest.mark.parametrize(
    "line",
    [
        "ERROR tests/test_leaky.py::TestLeaks::test_thread - AssertionError: threads still running",
        "ERROR tests/test_leaky.py::TestLeaks::test_own_daemon - AssertionError: threads still running",
        "ERROR tests/test_leaky.py::TestLeaks::test_environment - Failed: environment variables changed",
        "ERROR tests/test_leaky.py::TestLeaks::test_file - AssertionError: files left by the test",
        "ERROR tests/test_leaky.py::TestLeaks::test_cwd - AssertionError: the test left the working directory",
        "ERROR tests/test_leaky.py::TestLeaks::test_scope - AssertionError: scopes still open",
        "FAILED tests/test_leaky.py::TestLeaks::test_warning - UserWarning: something is off",
    ],
)
def test_every_leak_fails_its_own_test(outcome, line):
    assert line in outcome


def test_a_clean_test_passes(outcome):
    assert "1 failed, 7 passed, 6 errors in" in outcome


FEW = """\
import pytest

@pytest.mark.{mark}({names})
@pytest.mark.parametrize("number", [2, 4, 6])
def test_few(number):
    pass
"""


@pytest.mark.parametrize(
    ("mark", "names", "options", "line"),
    [
        ("cases", '"2"', (), "1 passed, 2 skipped"),
        ("cases", '"2", "3"', (), "test_cases.py: test_few has no case ['3']. Its cases are ['2', '4', '6']."),
        ("long_cases", '"2"', (), "3 passed"),
        ("long_cases", '"2"', ("-m", "not long"), "2 passed, 1 deselected"),
        ("long_cases", '"2"', ("-m", "long"), "1 passed, 2 deselected"),
        ("long_cases", '"8"', ("-m", "long"), "test_cases.py: test_few has no case ['8']. Its cases are ['2', '4', '6']."),
    ],
)
def test_the_cases_that_are_named_are_told_apart_and_must_be_there(tmp_path, mark, names, options, line):
    assert line in run_pytest(tmp_path, "test_cases.py", FEW.format(mark=mark, names=names), *options)


LONG = "import pytest\n\n@pytest.mark.long\n@pytest.mark.parametrize('number', range({}))\ndef test_{}(number): pass\n"


@pytest.mark.parametrize(
    ("share", "said"),
    [
        ("1/2", ["test_five.py"]),
        ("2/2", ["test_four.py", "test_one.py"]),
        (None, ["test_five.py", "test_four.py", "test_one.py"]),
        ("4/4", []),
        ("0/2", ["REPLICANT_TEST_SHARE='0/2' is no share such as 2/3."]),
        ("half", ["REPLICANT_TEST_SHARE='half' is no share such as 2/3."]),
    ],
)
def test_each_share_has_files_of_its_own_with_about_as_many_long_tests(tmp_path: Path, share: str | None, said: list[str]) -> None:
    (tmp_path / "tests").mkdir()
    for name, count in (("five", 5), ("four", 4), ("one", 1)):
        (tmp_path / "tests" / f"test_{name}.py").write_text(LONG.format(count, name))
    output = run_pytest(tmp_path, "test_none.py", "def test_short(): pass\n", "-m", "long", share=share)
    assert re.findall(r"test_\w+\.py|REPLICANT_TEST_SHARE=.*", output) == said
