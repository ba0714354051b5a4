"""On which node of a Ray cluster a server or worker starts."""

import pytest

pytest.importorskip("ray", reason="pip install 'replicant-jax[ps]': there is no Ray for this Python or this system")

from replicant.coordinator.ray._placing import Node, choose, fitting, wanted_of


def place(nodes, servers, workers):
    """The nodes of all servers and then all workers, as they start."""
    found = []
    for role in ["server"] * servers + ["worker"] * workers:
        found.append((role, choose(role, nodes, found)))
    return "".join(node for _, node in found)


@pytest.mark.parametrize(
    ("nodes", "servers", "workers", "places"),
    [
        ("a", 2, 2, "aaaa"),
        ("ab", 1, 1, "ab"),
        ("ab", 2, 2, "abab"),
        ("abc", 1, 2, "abc"),
        ("abc", 2, 2, "abca"),
        ("abcd", 2, 2, "abcd"),
        ("abcdef", 2, 3, "abcde"),
        ("ab", 3, 1, "abab"),
        ("ab", 4, 0, "abab"),
    ],
)
def test_servers_and_workers_are_spread(nodes, servers, workers, places):
    assert place([Node(node, {}) for node in nodes], servers, workers) == places


def test_a_replacement_goes_where_none_of_its_role_is():
    nodes = [Node(node, {}) for node in "abc"]
    assert choose("server", nodes, [("server", "a"), ("worker", "b"), ("worker", "c")]) == "b"
    assert choose("server", nodes[:2], [("server", "a"), ("worker", "b")]) == "b"
    assert choose("server", [], [("server", "a")]) is None


def test_nodes_that_do_not_have_what_is_asked_for_do_not_count():
    nodes = [Node("a", {"CPU": 1}), Node("b", {"CPU": 4, "GPU": 1})]
    assert [node.id for node in fitting(nodes, {})] == ["a", "b"]
    assert [node.id for node in fitting(nodes, wanted_of({"num_cpus": 2}))] == ["b"]
    assert [node.id for node in fitting(nodes, wanted_of({"num_gpus": 1, "memory": 5}))] == []
