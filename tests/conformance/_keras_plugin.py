"""A pytest plugin that runs the tests of the installed Keras under a MirroredStrategy, and writes their outcomes to a file.

REPLICANT_KERAS_TESTS is the path of a JSON file with these settings:

* ``replicas``: The number of replicas; 0 for no strategy.
* ``every``: Run one of so many tests.
* ``always``: Names of tests that run in any case.
* ``only``: Names of the only tests to run; null for all.
* ``results``: The file to write.
"""

import json
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import pytest

import replicant

replicant.set_virtual_devices(2)

ORDER = json.loads(Path(os.environ["REPLICANT_KERAS_TESTS"]).read_text())
COLLECTED: dict[str, int] = {}
OUTCOMES: dict[str, tuple[str, str]] = {}


def name_of(item: pytest.Item) -> str:
    owner: Any = item  # it has a module, and perhaps a class
    return f"{owner.module.__name__}::{owner.cls.__name__ if owner.cls else ''}::{item.name}"


def pytest_configure(config: pytest.Config) -> None:
    for marker in ("requires_trainable_backend", "multi_device"):  # Keras's own configuration declares these
        config.addinivalue_line("markers", f"{marker}: see Keras")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        OUTCOMES[report.nodeid] = "uncollected", str(report.longrepr)


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    for item in items:
        COLLECTED[item.module.__name__] = COLLECTED.get(item.module.__name__, 0) + 1
    if ORDER["only"] is None:
        items[:] = [item for i, item in enumerate(items) if i % ORDER["every"] == 0 or item.name in ORDER["always"]]
    else:
        items[:] = [item for item in items if name_of(item) in ORDER["only"]]


@pytest.fixture(autouse=True)
def under_a_strategy() -> Iterator[None]:
    num_replicas = ORDER["replicas"]
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)]) if num_replicas else replicant.get_strategy()
    with strategy.scope():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" or not report.passed:
        OUTCOMES[name_of(item)] = report.outcome, str(report.longrepr) if report.failed else ""
    return report


def pytest_sessionfinish() -> None:
    Path(ORDER["results"]).write_text(json.dumps({"collected": COLLECTED, "outcomes": OUTCOMES}))
