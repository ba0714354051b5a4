"""Which of the workers this process is, and what messages call the others."""

import os
import re
import socket
from collections.abc import Sequence

from ..resolvers._membership import Membership

_MANY = 512  # workers; with more, each looks and beats less often, so that the load of all of them does not grow
_PEER = re.compile(r"\[([0-9a-fA-F.:]+)\]:[0-9]+")


class Peers:
    """The workers of a group, as one of them knows them.

    Args:
        membership: Which one of the workers this process is.
        who: The host and process number of each worker, for messages. Empty as long as they have not been told.
        supervised: Whether a supervisor watches the workers, and runs the coordination service.

    Attributes:
        stretch: How many times less often than usual each worker looks and beats, because there are many.
    """

    def __init__(self, membership: Membership, who: Sequence[str] = (), *, supervised: bool = False):
        self.membership, self.supervised = membership, supervised
        self.process_id, self.num_processes = membership.process_id, membership.num_processes
        self.stretch = max(1.0, self.num_processes / _MANY)
        self._who = tuple(who)
        self._addresses: tuple[str, ...] = ()

    def introduce(self, who: Sequence[str]) -> None:
        """Note the host and process number of each worker."""
        self._who = tuple(who)

    def locate(self, addresses: Sequence[str]) -> None:
        """Note the address at which each worker is found, if they are on several hosts."""
        self._addresses = tuple(addresses)

    def name_of(self, rank: int) -> str:
        """The name of a worker, for messages."""
        known = f" ({self._who[rank]})" if rank < len(self._who) else ""
        return f"worker {rank}{known}"

    def names_of(self, ranks: Sequence[int]) -> str:
        """The names of some workers, for messages."""
        return ", ".join(map(self.name_of, ranks))

    def with_names(self, text: str) -> str:
        """Say after each peer's address in an error of XLA, such as ``peer [10.0.0.2]:3214``, which workers are found there."""

        def name(match: re.Match[str]) -> str:
            there = [rank for rank, each in enumerate(self._addresses) if each == match[1] and rank != self.process_id]
            return f"{match[0]} ({' or '.join(map(self.name_of, there))})" if there else match[0]

        return _PEER.sub(name, text)


def this_process() -> str:
    """The host and process number of this process."""
    return f"{socket.gethostname()} pid {os.getpid()}"
