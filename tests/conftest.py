"""Fixtures for all tests, and guards around every test, so that what a test leaves behind fails that test and not a later one."""

import collections
import concurrent.futures
import dataclasses
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import jax
import keras  # noqa: F401 - its first import sets environment variables, which would otherwise count as a test's leak
import pytest

from replicant.replicas import _context

ROOT = Path(__file__).resolve().parent.parent
EXCHANGE_SECONDS = 20.0  # how long a worker waits for the others
GRACE_SECONDS = 2.0  # for threads that are about to end

collect_ignore = ["writers"]  # has an environment of its own: `make test-writers`

FOREIGN_VARIABLES = re.compile(r"PYTEST_|KMP_")  # set by pytest itself, and by scikit-learn when it is first imported
NO_SKLEARN = str(ROOT / "tests" / "no_sklearn")
TOOL_FILES = {".hypothesis", ".pytest_cache", ".ruff_cache", ".import_linter_cache", "__pycache__"}

# Compilation makes the time of single examples meaningless; the same examples everywhere make a failure reproducible.
hypothesis.settings.register_profile("replicant", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("replicant")


@dataclasses.dataclass(frozen=True)
class Chaos:
    """The seed of the tests that strike at random, and the number of runs that each may make."""

    seed: int
    most: int | None

    def num_runs(self, wanted: int) -> int:
        """Return how many of the `wanted` runs a test should make."""
        return wanted if self.most is None else min(wanted, self.most)


def pytest_configure() -> None:
    """Set what the processes that share the tests, and those that tests start, inherit.

    That is the seed of the tests that strike at random, and a path on which there is no scikit-learn: Keras imports it wherever it
    is installed, which would be a third of the time in which a test's process starts.
    """
    if _runs_all():
        os.environ.setdefault("REPLICANT_TEST_SEED", str(random.SystemRandom().randrange(1 << 30)))
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != NO_SKLEARN]
    os.environ["PYTHONPATH"] = os.pathsep.join([NO_SKLEARN, *paths])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how to repeat the tests that strike at random, even if all have passed."""
    if _runs_all():
        told = [
            f"{name}={os.environ[name]}"
            for name in ("REPLICANT_TEST_SEED", "REPLICANT_TEST_RUNS", "REPLICANT_TEST_SHARE")
            if name in os.environ
        ]
        terminalreporter.write_line(f"to repeat this run: {' '.join(told)}")


@pytest.fixture(scope="module")
def with_sklearn() -> Iterator[None]:
    """Let the processes that these tests start see scikit-learn, whose digits the examples learn where MNIST is not there."""
    with pytest.MonkeyPatch.context() as patch:
        paths = os.environ["PYTHONPATH"].split(os.pathsep)
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path != NO_SKLEARN))
        yield


@pytest.fixture(scope="session")
def chaos() -> Chaos:
    """The seed and number of runs, from REPLICANT_TEST_SEED and REPLICANT_TEST_RUNS. The default seed is 0."""
    most = os.environ.get("REPLICANT_TEST_RUNS")
    return Chaos(int(os.environ.get("REPLICANT_TEST_SEED", "0")), None if most is None else int(most))


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Leave the slow tests out, and the further cases of tests that name a few, unless all are asked for. Keep one share."""
    _mark_named_cases(items, whole="::" not in " ".join(config.args) and not config.getoption("lf", default=False))
    for item in items:
        names = getattr(item, "fixturenames", [])
        if item.get_closest_marker("both_ways") and "fuse_replicas" not in names:
            names.insert(0, "fuse_replicas")
    if not _runs_all():
        skip = pytest.mark.skip(reason="takes minutes: `make test-all` runs it")
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(skip)
    yield  # `-m` chooses
    if share := os.environ.get("REPLICANT_TEST_SHARE"):
        _leave_out_other_shares(config, items, share)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A share of few files may be empty."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and "REPLICANT_TEST_SHARE" in os.environ:
        session.exitstatus = pytest.ExitCode.OK


def _leave_out_other_shares(config: pytest.Config, items: list[pytest.Item], share: str) -> None:
    """Keep the files of one share: of "2/3", the second of three. All have about as many tests."""
    number, _, count = share.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise pytest.UsageError(f"REPLICANT_TEST_SHARE={share!r} is no share such as 2/3.")
    num_items = collections.Counter(item.path for item in items)
    sizes, share_of = [0] * int(count), {}
    for path in sorted(num_items, key=lambda path: (-num_items[path], path)):
        share_of[path] = sizes.index(min(sizes))
        sizes[share_of[path]] += num_items[path]
    config.hook.pytest_deselected(items=[item for item in items if share_of[item.path] != int(number) - 1])
    items[:] = [item for item in items if share_of[item.path] == int(number) - 1]


def _mark_named_cases(items: list[pytest.Item], *, whole: bool) -> None:
    """Mark as slow what a test's `cases` do not name, and as long what its `long_cases` name.

    A name that no case has is an error, because that case would disappear in silence; but only in a whole file.
    """
    of_test: dict[tuple[Path, str, str], list[pytest.Item]] = {}
    for item in items:
        for kind in ("cases", "long_cases"):
            if item.get_closest_marker(kind):
                of_test.setdefault((item.path, item.name.partition("[")[0], kind), []).append(item)
    for (path, test, kind), cases in of_test.items():
        known = {item.name.partition("[")[2].removesuffix("]"): item for item in cases}
        named = {name for mark in cases[0].iter_markers(kind) for name in mark.args}
        if whole and (unknown := named - set(known)):
            raise pytest.UsageError(f"{path}: {test} has no case {sorted(unknown)}. Its cases are {sorted(known)}.")
        for name in (set(known) - named) if kind == "cases" else named & set(known):
            known[name].add_marker("slow" if kind == "cases" else "long")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that are marked `both_ways` twice."""
    if metafunc.definition.get_closest_marker("both_ways"):
        metafunc.fixturenames.insert(0, "fuse_replicas")  # pytest forgets it where the test does not ask for it: see below
        metafunc.parametrize("fuse_replicas", ["apart", "fused"], indirect=True, scope="module")


@pytest.fixture(scope="module")
def fuse_replicas(request: pytest.FixtureRequest) -> Iterator[str]:
    """Let the strategies of these tests compute their replicas apart, or fused."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPLICANT_FUSE_REPLICAS", "1" if request.param == "fused" else "0")
        yield request.param


@pytest.fixture(scope="session")
def run_workers() -> Callable[..., list[Any]]:
    """``run_workers(n, fn)`` returns what ``fn(worker, exchange)`` returns on each of n workers, which are threads here."""

    def run(num_workers: int, fn: Callable[[int, Callable[[int], tuple[int, ...]]], Any]) -> list[Any]:
        meeting = threading.Barrier(num_workers, timeout=EXCHANGE_SECONDS)
        numbers = [0] * num_workers

        def exchange_of(worker: int) -> Callable[[int], tuple[int, ...]]:
            def exchange(number: int) -> tuple[int, ...]:
                numbers[worker] = number
                meeting.wait()
                answer = tuple(numbers)
                meeting.wait()
                return answer

            return exchange

        with concurrent.futures.ThreadPoolExecutor(num_workers) as pool:
            futures = [pool.submit(fn, worker, exchange_of(worker)) for worker in range(num_workers)]
            concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_EXCEPTION)
            meeting.abort()  # releases workers that wait for one that has failed
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])
        return [future.result() for future in futures]

    return run


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + GRACE_SECONDS
    while (leaked := _leaked_threads(before)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not leaked, f"threads still running after the test: {leaked}"


@pytest.fixture(autouse=True)
def no_changed_environment() -> Iterator[None]:
    before = os.environ._data.copy()  # as bytes, which need not be decoded for each test
    yield
    if os.environ._data == before:
        return
    changed = {name for name, _ in before.items() ^ os.environ._data.items()}
    names = sorted(name for name in map(os.fsdecode, changed) if not FOREIGN_VARIABLES.match(name))
    for name in names:
        os.environ.pop(name, None)
        if (value := before.get(os.fsencode(name))) is not None:
            os.environ[name] = os.fsdecode(value)
    if names:
        pytest.fail(f"environment variables changed by the test: {names}; use monkeypatch.setenv")


@pytest.fixture(autouse=True)
def no_stray_files() -> Iterator[None]:
    cwd = os.getcwd()  # noqa: PTH109 - paths of pathlib would take a third of the time of a short test
    folders = {cwd, str(ROOT)}
    before = _files(folders)
    yield
    left_at = os.getcwd()  # noqa: PTH109
    os.chdir(cwd)
    assert left_at == cwd, f"the test left the working directory at {left_at}; use monkeypatch.chdir"
    stray = sorted(os.path.join(*each) for each in _files(folders) - before)  # noqa: PTH118
    assert not stray, f"files left by the test: {stray}; use tmp_path"


@pytest.fixture(autouse=True)
def no_open_scope() -> Iterator[None]:
    yield
    frames = _context._stack.frames
    still_open = [repr(strategy) for strategy, _ in frames]
    frames.clear()  # the next test starts clean
    assert not still_open, f"scopes still open after the test: {still_open}"
    mesh = jax.sharding.get_abstract_mesh()
    assert mesh.empty, f"JAX still traces on a mesh after the test: {mesh}"
    stray = [array.aval for array in jax.live_arrays() if jax.sharding.AxisType.Manual in array.aval.sharding.mesh.axis_types]
    assert not stray, f"arrays whose type is on a mesh of replicas: {stray}; compute them in replicas/_own_mesh.at_once()"


def _runs_all() -> bool:
    return "1" in (os.environ.get("REPLICANT_TEST_SLOW"), os.environ.get("REPLICANT_TEST_FULL"))


def _leaked_threads(before: set[threading.Thread]) -> list[str]:
    """Name the new threads that keep the process alive, or that belong to Replicant."""
    return sorted(
        thread.name for thread in set(threading.enumerate()) - before if not thread.daemon or thread.name.startswith("replicant")
    )


def _files(folders: Iterable[str]) -> set[tuple[str, str]]:
    return {(folder, name) for folder in folders for name in os.listdir(folder) if name not in TOOL_FILES}  # noqa: PTH208
