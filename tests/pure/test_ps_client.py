"""A client that asks several servers while several are replaced."""

from typing import Any

from replicant.coordinator.servers._client import Client, Link
from replicant.coordinator.wire._channel import Closed


class Ends:
    """A channel whose server is there, or is not."""

    def __init__(self, *, is_there: bool):
        self.is_there, self.asked = is_there, []
        self.num_sent = self.num_received = 0

    def send(self, message: Any, *, seconds: float) -> None:
        if not self.is_there:
            raise Closed("server")
        self.num_sent += 1
        self.asked.append(message)

    def receive(self, seconds: float, doing: str) -> tuple[Any, list[int]]:
        if not self.is_there:
            raise Closed("server")
        assert self.asked, "nothing was asked here: this would wait for ever"
        self.num_received += 1
        return self.asked.pop() == "hello", []


def links(generation: int, *, is_there: bool) -> list[Link]:
    return [Link(Ends(is_there=is_there), None, generation) for _ in range(2)]  # type: ignore[arg-type]


def test_both_servers_are_replaced_while_one_is_waited_for():
    replaced: list[tuple[int, int]] = []

    def replace(server: int, generation: int) -> None:
        replaced.append((server, generation))
        client.links = new  # both at once, when the first of them is missed

    client, new = Client(1, [], replace), links(1, is_there=True)
    client.links = links(0, is_there=False)
    client.tell("hello")
    assert replaced == [(0, 0), (1, 0)]
    assert [link.channel.asked for link in new] == [[], []]  # type: ignore[attr-defined]
    assert client.work.attempt == 1
