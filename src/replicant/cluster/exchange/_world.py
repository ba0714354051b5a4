"""The workers that train together, once they have met, and what they do together.

Everything here goes through the coordination service's key-value store.
"""

import dataclasses
from collections.abc import Sequence
from typing import Self

from ..resolvers._membership import Membership
from ..wire import _seal
from ._exchange import Exchange
from ._fates import Fates
from ._gathering import Gathering
from ._leaving import Leaving
from ._liveness import Liveness
from ._peers import Peers
from ._sealed_store import SealedStore
from ._steady_store import SteadyStore, Store


@dataclasses.dataclass(frozen=True)
class Timeouts:
    """The deadlines of everything that waits, in seconds.

    Args:
        start: The time until all workers have come.
        exchange: The time to wait for the others' parts of an exchange.
        heartbeat: The time without a heartbeat after which a worker counts as lost.
        stop: The time to wait at the end of the program for the others to end.
    """

    start: float = 120.0
    exchange: float = 600.0
    heartbeat: float = 60.0
    stop: float = 300.0


@dataclasses.dataclass(frozen=True, eq=False)  # placements, which have one, are compared often
class World:
    """This process among the workers.

    Args:
        store: The store where the workers leave messages.
        peers: Which one of the workers this process is, and what messages call the others.
        exchange: Exchanges small texts, and counts the steps.
        fates: What became of each worker.
        leaving: Finds out whether all leave.
        liveness: The thread that watches the workers.
    """

    store: Store
    peers: Peers
    exchange: Exchange
    fates: Fates
    leaving: Leaving
    liveness: Liveness

    @classmethod
    def over(
        cls,
        store: Store,
        membership: Membership,
        who: Sequence[str] = (),
        *,
        generation: int = 0,
        timeouts: Timeouts = Timeouts(),
        supervised: bool = False,
        secret: str = _seal.NONE,
    ) -> Self:
        """Make the world of workers with a store.

        Args:
            store: The store where they leave messages.
            membership: Which one of the workers this process is.
            who: The host and process number of each worker, for messages.
            generation: How many times the workers have formed a new group.
            timeouts: The deadlines of everything that waits.
            supervised: Whether a supervisor watches the workers. Then this process does not end itself when another one fails.
            secret: What only the workers of this job know. What they say about themselves is sealed with it.
        """
        peers = Peers(membership, who, supervised=supervised)
        steady = SteadyStore(store, f"replicant/{generation}", timeouts.heartbeat)
        sealed = SealedStore(peers, steady, secret)
        fates = Fates(peers, sealed)
        exchange = Exchange(peers, sealed, fates, timeouts.exchange)
        leaving = Leaving(fates, exchange, Gathering(peers, steady, "at"))
        return cls(store, peers, exchange, fates, leaving, Liveness(peers, sealed, exchange, fates, leaving))

    @property
    def process_id(self) -> int:
        """The rank of this worker."""
        return self.peers.process_id

    @property
    def num_processes(self) -> int:
        """The number of workers."""
        return self.peers.num_processes

    @property
    def is_chief(self) -> bool:
        """Whether this process writes what must be written only once."""
        return self.process_id == 0

    def name_of(self, rank: int) -> str:
        """The name of a worker, for messages."""
        return self.peers.name_of(rank)
