"""What servers that Ray holds tell, keep and lose; without Ray."""

import os
import re
import sys
import types
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

import replicant
from replicant.cluster.resolvers import _ray as cluster_ray
from replicant.coordinator import RayTransport
from replicant.coordinator.ray import _mirror
from replicant.coordinator.ray._mirror import Gone, Mirrors
from replicant.coordinator.ray._server import ServerState
from replicant.coordinator.ray._snapshots import Snapshots
from replicant.coordinator.servers._ledger import NBYTES, PushName
from replicant.coordinator.servers._placing import Shard
from replicant.coordinator.servers._push import Change, Operation, Push
from replicant.coordinator.wire._memory import PAGE, pages
from replicant.errors import ArgumentError, ArgumentTypeError, ConfigurationError, LostProcessError

BOOKS = pages(NBYTES)
DENSE, TABLE = Shard(0, 0, BOOKS, 0, 4, (4,)), Shard(0, 1, BOOKS + 2 * PAGE, 0, 100, (100, 2))
SHARDS = [(DENSE, "float32"), (TABLE, "float32")]


def push(number: int, values: Any, rows: Any = None, attempt: int = 0) -> Push:
    """Add to the table's rows, or to the other shard."""
    shard = 0 if rows is None else 1
    change = Change(shard, np.asarray(values, "float32"), None if rows is None else np.asarray(rows))
    return Push(PushName(1, number, 1), attempt, 0, 0, 0, [Operation("add", [change])])


def started() -> tuple[Snapshots, ServerState]:
    kept = Snapshots()
    kept.add_shards(SHARDS, {0: np.zeros(4, "float32"), 1: np.zeros((100, 2), "float32")})
    return kept, ServerState(0, kept.begin()[1])


def test_news_are_the_rows_that_changed_or_all():
    _, state = started()
    version = state.pull({1: None}).news[1].version
    assert state.pull({0: (0, 0), 1: version}).news == {}
    state.ask(push(1, np.ones((2, 2)), [3, 7]))
    state.ask(push(2, np.ones((2, 2)), [7, 9]))
    news = state.pull({1: version}).news[1]
    assert (news.rows.tolist(), news.values.tolist()) == ([3, 7, 9], [[1, 1], [2, 2], [1, 1]])
    state.ask(push(3, np.ones((60, 2)), range(60)))  # more than half: all of it is told
    assert state.pull({1: version}).news[1].rows is None
    assert state.pull({1: version}).news[1].values.shape == (100, 2)
    version = state.pull({1: None}).news[1].version
    state.ask(push(4, np.ones((1, 2)), [5]))
    assert state.pull({1: version}).news[1].rows.tolist() == [5]


def test_an_older_pull_that_arrives_late_is_not_the_snapshot():
    """Two are under way at once, and Ray tells their answers in the other order."""
    kept, state = started()
    state.ask(push(1, np.ones((1, 2)), [3]))
    older = state.pull(kept.known(), books=True)
    state.ask(push(2, np.ones((2, 2)), [3, 7]))
    state.ask(push(3, np.ones(4)))
    newer = state.pull(kept.known(), books=True)
    for pulled in (newer, older):
        kept.take(0, pulled)
    assert (kept.updates, kept.is_current, kept.lost_updates) == (3, True, 0)
    successor = ServerState(0, kept.begin()[1])
    news = successor.pull({0: None, 1: None}).news
    assert (news[0].values.tolist(), news[1].values[[3, 7], 0].tolist()) == ([1, 1, 1, 1], [2, 1])
    assert successor.ask(push(3, np.ones(4), attempt=1)) == (False, 3)  # it knows what was applied


def test_a_push_counts_once_and_errors_come_back():
    _, state = started()
    assert state.ask(push(1, np.ones(4))) == (True, 1)
    assert state.ask(push(1, np.ones(4), attempt=1)) == (False, 1)
    answer, updates = state.ask(push(2, np.ones(3)))
    assert isinstance(answer, bytes)
    assert updates == 1
    assert state.ask(("shards", SHARDS, {})) == (True, 1)  # told again: they stay as they are
    assert state.pull({0: None}).news[0].values.tolist() == [1, 1, 1, 1]


def test_a_server_begins_again_with_the_snapshot_and_the_loss_is_known():
    kept, state = started()
    state.ask(push(1, np.ones(4)))
    state.ask(push(2, np.ones((1, 2)), [3]))
    kept.take(0, state.pull(kept.known(), books=True))
    answers = [state.ask(push(number, np.ones(4))) for number in (3, 4, 5)]
    kept.see(0, answers[-1][1])
    generation, snapshot = kept.begin()
    again = ServerState(0, snapshot)
    assert (generation, kept.lost_updates, kept.lost_by(1), again.updates) == (1, 3, 3, 2)
    assert again.pull({0: None}).news[0].values.tolist() == [1, 1, 1, 1]
    assert again.pull({1: None}).news[1].values[3].tolist() == [1, 1]
    assert again.ask(push(2, np.ones((1, 2)), [3], attempt=1)) == (False, 2)  # it is in the snapshot
    assert again.ask(push(5, np.ones(4), attempt=1)) == (True, 3)  # it is not
    kept.take(0, state.pull(kept.known(), books=True))  # of a server that is gone: too late
    assert kept.begin()[1].news[0].values.tolist() == [1, 1, 1, 1]
    kept.see(0, 6)  # a worker tells later what it knew
    assert kept.lost_updates == 4


class Network:
    """Servers, and what they are asked."""

    def __init__(self) -> None:
        self.states: dict[str, ServerState] = {}
        self.asked: list[tuple[str, list[int]]] = []

    def __call__(self, handle: str, method: str, argument: Any) -> Callable[[float], Any]:
        def wait(seconds: float) -> Any:
            if handle == "slow":
                raise TimeoutError
            if handle not in self.states:
                raise Gone
            self.asked.append((handle, sorted(argument or ())))
            return getattr(self.states[handle], method)(*(() if argument is None else (argument,)))

        return wait


@pytest.fixture
def network() -> Network:
    return Network()


def mirrors(network: Network, *, is_worker: bool) -> tuple[Mirrors, list[Any]]:
    _, network.states["a"] = started()
    made = Mirrors(1, network, lambda *_: None, is_worker=is_worker)
    made.connect(0, 0, "a")
    return made, [made.memories[0].view(DENSE, np.dtype("float32")), made.memories[0].view(TABLE, np.dtype("float32"))]


def test_a_worker_pulls_all_that_it_reads_at_once(network):
    made, (dense, table) = mirrors(network, is_worker=True)
    out = np.empty(4, "float32")
    assert (dense.version, dense.read_into(out)) == ((0, 0, 0), (0, 0, 0))
    assert table.current.shape == (100, 2)
    made.begin()
    assert network.asked == [("a", [0]), ("a", [0, 1])]
    network.asked.clear()
    network.states["a"].ask(push(1, np.ones(4)))
    assert dense.version == (0, 1, 0)
    dense.read_into(out)
    assert table.current.sum() == 0
    assert (out.tolist(), network.asked) == ([1, 1, 1, 1], [("a", [0, 1])])
    dense.read_into(out)  # the second time in one function
    assert len(network.asked) == 2
    assert made.memories[0].seen == 1


def test_the_coordinator_pulls_each_time(network):
    made, (dense, _) = mirrors(network, is_worker=False)
    out = np.empty(4, "float32")
    for number in (1, 2):
        network.states["a"].ask(push(number, np.ones(4)))
        dense.read_into(out)
        assert out.tolist() == [number] * 4
    assert made.memories[0].ledger.updates == 2
    assert made.memories[0].ledger.staleness.sum() == 2


def test_another_server_s_versions_are_its_own(network):
    made, (dense, _) = mirrors(network, is_worker=False)
    out = np.empty(4, "float32")
    network.states["a"].ask(push(1, np.ones(4)))
    before = dense.read_into(out)
    del network.states["a"]
    _, network.states["b"] = started()
    network.states["b"].ask(push(1, np.full(4, 5)))
    made.connect(0, 1, "b")
    after = dense.read_into(out)
    assert (before, after, out.tolist()) == ((0, 1, 0), (1, 1, 0), [5, 5, 5, 5])


def test_who_does_not_answer_is_named(network, monkeypatch):
    made, (dense, _) = mirrors(network, is_worker=False)
    monkeypatch.setattr(_mirror, "_REPLACE_SECONDS", 0.01)
    network.states.clear()
    with pytest.raises(LostProcessError, match=r"Server 0 was lost and not replaced within 0 s"):
        dense.version  # noqa: B018 - a property that asks
    made.connect(0, 1, "slow")
    with pytest.raises(LostProcessError, match=r"Server 0 did not answer within 120 s while its variables were read"):
        dense.version  # noqa: B018 - as above


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"snapshot_seconds": 0}, ArgumentError, "snapshot_seconds must be a positive number of seconds. Received: 0"),
        ({"snapshot_seconds": "1"}, ArgumentError, "must be a positive number of seconds. Received: '1'"),
        ({"worker_options": 4}, ArgumentTypeError, r"worker_options must be a mapping such as \{'num_cpus': 1\}. Received: 4"),
    ],
)
def test_bad_options(arguments, error, message):
    with pytest.raises(error, match=message):
        RayTransport(**arguments)


def test_one_transport_for_each_strategy():
    transport = RayTransport()
    transport._is_open = True
    with pytest.raises(ArgumentError, match="This RayTransport already belongs to another strategy"):
        transport.open(1, 1)


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match=r"This needs Ray, which is not installed: pip install 'replicant-jax\[ps\]'\."):
        replicant.ParameterServerStrategy(transport="ray")


@pytest.mark.parametrize("version", ["2.9.1", "2.51.1"])
def test_a_ray_that_ignores_tokens(monkeypatch, version):
    monkeypatch.setitem(sys.modules, "ray", type("Ray", (), {"__version__": version}))
    message = (
        rf"Ray {re.escape(version)} is too old: Replicant needs at least 2\.52, because older versions ignore RAY_AUTH_MODE=token"
    )
    with pytest.raises(ConfigurationError, match=message):
        cluster_ray.load_ray()


class Raylet:
    """What is asked of Ray's private module: it takes the mode from the environment, as often as it is told to."""

    AuthenticationMode = types.SimpleNamespace(DISABLED=0, TOKEN=1)

    def __init__(self, heeds: bool = True):
        self.mode = 0
        self.heeds = heeds
        self.Config = self

    def initialize(self, _: str) -> None:
        self.mode = int(self.heeds and os.environ.get("RAY_AUTH_MODE") == "token")

    def get_authentication_mode(self) -> int:
        return self.mode


class StartedRay:
    """A Ray that notes the environment in which it is started."""

    __version__ = "2.60.0"
    util = types.SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")

    def __init__(self) -> None:
        self.environments: list[dict[str, str]] = []

    def is_initialized(self) -> bool:
        return False

    def init(self, **_: Any) -> None:
        self.environments.append(dict(os.environ))

    def shutdown(self) -> None:
        pass


def test_a_ray_that_is_started_here_checks_its_token(monkeypatch):
    ray, raylet = StartedRay(), Raylet()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray._raylet", raylet)
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "")
    cluster_ray.join_ray()
    cluster_ray.leave_ray()
    (started,) = ray.environments
    assert (started["RAY_AUTH_MODE"], len(started["RAY_AUTH_TOKEN"]), raylet.mode) == ("token", 64, 1)
    assert "RAY_AUTH_TOKEN" not in os.environ


@pytest.mark.parametrize(
    ("raylet", "mode", "message"),
    [
        (Raylet(), "disabled", r"RAY_AUTH_MODE=disabled: a Ray that is started here would run whatever any user of this machine"),
        (Raylet(heeds=False), "", r"Ray 2\.60\.0 ignores RAY_AUTH_MODE=token: it would run whatever any user"),
        (types.SimpleNamespace(), "", r"Ray 2\.60\.0 does not say whether it checks tokens \(.*'Config'"),
    ],
)
def test_a_ray_that_would_be_open_is_not_started(monkeypatch, raylet, mode, message):
    ray = StartedRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray._raylet", raylet)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with pytest.raises(ConfigurationError, match=message):
        cluster_ray.join_ray()
    assert ray.environments == []


def test_a_ray_that_listens_elsewhere(monkeypatch):
    class Ray:
        __version__ = "3.0.0"
        util = types.SimpleNamespace(get_node_ip_address=lambda: "10.0.0.1")
        calls: ClassVar[list[str]] = []

        @staticmethod
        def is_initialized() -> bool:
            return False

        @classmethod
        def init(cls, **_: Any) -> None:
            cls.calls.append("init")

        @classmethod
        def shutdown(cls) -> None:
            cls.calls.append("shutdown")

    monkeypatch.setitem(sys.modules, "ray", Ray)
    monkeypatch.setitem(sys.modules, "ray._raylet", Raylet())
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigurationError, match=r"Ray 3\.0\.0 would listen at 10\.0\.0\.1, where others can reach it"):
        cluster_ray.join_ray()
    assert Ray.calls == ["init", "shutdown"]


def test_a_ray_that_does_not_start(monkeypatch):
    class Ray:
        __version__ = "2.60.0"

        @staticmethod
        def is_initialized() -> bool:
            return False

        @staticmethod
        def init(**_: Any) -> None:
            raise ConnectionError("nobody is there")

    monkeypatch.setitem(sys.modules, "ray", Ray)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ConfigurationError, match=r"Ray does not start \(ConnectionError: nobody is there\)\."):
        cluster_ray.join_ray()
