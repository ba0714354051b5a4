"""Decides on which node a server or worker starts. Nothing here uses Ray."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

_NAMES = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}  # of options, and of the resources that nodes have


@dataclasses.dataclass(frozen=True)
class Node:
    """A node that is alive, and everything that it has."""

    id: str
    resources: Mapping[str, float]


def wanted_of(options: Mapping[str, Any]) -> dict[str, float]:
    """The resources that an actor's options reserve.

    >>> wanted_of({"num_cpus": 0, "num_gpus": 1, "resources": {"tpu": 4}, "name": "a"})
    {'GPU': 1, 'tpu': 4}
    """
    wanted = {_NAMES[name]: amount for name, amount in options.items() if name in _NAMES and amount}
    return wanted | dict(options.get("resources") or {})


def fitting(nodes: Iterable[Node], wanted: Mapping[str, float]) -> list[Node]:
    """The nodes that have what is wanted, whoever uses it now."""
    return [node for node in nodes if all(node.resources.get(name, 0) >= amount for name, amount in wanted.items())]


def choose(role: str, nodes: Iterable[Node], others: Iterable[tuple[str, str]]) -> str | None:
    """The node with the fewest actors of a role and, of these, the fewest of all; None if there is no node.

    Args:
        role: The role of the new actor.
        nodes: The nodes that fit.
        others: The role and the node of each other actor of the strategy.

    >>> nodes = [Node("a", {}), Node("b", {})]
    >>> choose("server", nodes, []), choose("server", nodes, [("server", "a")]), choose("worker", nodes, [("server", "a")])
    ('a', 'b', 'b')
    """
    others = list(others)
    same = collections.Counter(node for kind, node in others if kind == role)
    every = collections.Counter(node for _, node in others)
    return min((node.id for node in nodes), key=lambda node: (same[node], every[node]), default=None)
