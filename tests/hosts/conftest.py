"""The bench of hosts, where this machine lets us make them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "processes")]  # test folders are no packages

from _bench import Bench, NoHostsError  # noqa: E402
from _group import clean_environment  # noqa: E402
from _training_job import PROGRAM, START_SECONDS, environment  # noqa: E402


@pytest.fixture(scope="session")
def _hosts_allowed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip if no host can be made here, and say why."""
    try:
        Bench(1, tmp_path_factory.mktemp("host")).close()
    except NoHostsError as error:
        pytest.skip(f"needs root, or user namespaces and /dev/net/tun, to make hosts: {error}")


@pytest.fixture
def make_bench(_hosts_allowed: None, tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """``make_bench(count)`` returns so many hosts, which end with the test. A second bench needs another `folder`."""
    with ExitStack() as stack:
        yield lambda count, folder="hosts", **kwargs: stack.enter_context(Bench(count, tmp_path / folder, **kwargs))


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of compiled programs."""
    known = os.environ.get("REPLICANT_COMPILATION_CACHE", "0")
    return str(tmp_path_factory.mktemp("programs")) if known == "0" else known


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory, programs: str) -> Callable[[str], Any]:
    """``alone(case)`` returns what one device computes."""
    answers: dict[str, Any] = {}

    def one(case: str) -> Any:
        if case not in answers:
            folder = tmp_path_factory.mktemp(case)
            environ = clean_environment() | environment(folder, programs)
            subprocess.run([sys.executable, str(PROGRAM), case, "none"], env=environ, check=True, timeout=START_SECONDS)
            answers[case] = json.loads((folder / "answer-0.json").read_text())
        return answers[case]

    return one
