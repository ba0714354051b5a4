"""Tests with libraries that are built on Keras and JAX, in an environment of their own: ``make test-libraries``.

Other commands leave them out, because their environment lacks most of these libraries.
"""

import os
from pathlib import Path

import pytest

import replicant

if os.environ.get("REPLICANT_TEST_LIBRARIES") != "1":
    collect_ignore_glob = ["test_*.py"]

HERE = Path(__file__).parent
DEVICES = ["cpu:0", "cpu:1"]
STRATEGIES = {
    "fused": lambda: replicant.MirroredStrategy(DEVICES, fuse_replicas=True),
    "own": lambda: replicant.MirroredStrategy(DEVICES, fuse_replicas=False),
    "sharded": lambda: replicant.FullyShardedStrategy(DEVICES, min_size=8),
}


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> replicant.Strategy:
    """Two fused devices, two devices with programs of their own, and state in slices."""
    return STRATEGIES[request.param]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the libraries warn: it is not about Replicant."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("default"))
