"""Where workers and servers are placed on a Ray cluster of four nodes, all on this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="pip install 'replicant-jax[ps]': there is no Ray for this Python or this system")
pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("_ray_places_program.py")
SECONDS = 500


@pytest.fixture(scope="module")
def answers():
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"KERAS_BACKEND": "jax"}
    done = subprocess.run([sys.executable, str(PROGRAM)], env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_launched_workers_have_nodes_of_their_own_or_it_is_said(answers):
    """The number of different nodes, and what is said."""
    assert answers["groups"] == {
        "3 on 4": [3, ""],
        "4 on 4": [4, ""],
        "5 on 4": [4, "only 4 node(s) of the Ray cluster have room for one"],
        "one in use": [3, "4 nodes of the Ray cluster have room for one each, but others use them"],
        "a node lost, a new one": [4, ""],
        "a node lost": [3, "only 3 node(s) of the Ray cluster have room for one"],
    }


def test_servers_and_workers_have_nodes_of_their_own(answers):
    """Of the servers, the workers and all: their number, and that of their nodes; and what is said."""
    assert answers["servers"] == {
        "1 and 2": [[1, 1], [2, 2], [3, 3], []],
        "2 and 3": [[2, 2], [3, 3], [5, 4], []],
        "4 and 1": [[4, 4], [1, 1], [5, 4], []],
        "2 and 1": [[2, 2], [1, 1], [3, 3], []],
    }
