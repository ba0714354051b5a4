"""The leak guards of tests/conftest.py catch what they are for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.fixture(scope="module")
def outcome(tmp_path_factory) -> str:
    """What pytest says about tests that leak."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("conftest.py", "pyproject.toml", "tests/conftest.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text((ROOT / name).read_text())
    (folder / "tests" / "test_leaky.py").write_text(LEAKY)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests"],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


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
