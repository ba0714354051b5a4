"""Allocates new variables in the servers' memories."""

from collections.abc import Iterable, Sequence
from typing import Any

from ...errors import LostProcessError
from ..wire._memory import pages
from ._ledger import MAX_SHARDS, NBYTES
from ._placing import RoundRobin, Shard
from ._store import ServerMemory, VariableSpec


class Allocator:
    """Knows where the shards of all variables are. Its owner holds a lock around every call.

    Attributes:
        specs: the specs of all variables, by number.
    """

    def __init__(self, memories: Sequence[ServerMemory]):
        self._memories = memories
        self._ends = [pages(NBYTES)] * len(memories)  # the end of the used part of each server's memory
        self._counts = [0] * len(memories)
        self._round_robin = RoundRobin(len(memories))
        self.specs: list[VariableSpec] = []

    def place(self, name: str, value: Any, *, trainable: bool, servers: list[int] | None, cuts: Any) -> VariableSpec:
        """Allocate a variable and write its first value. The arguments are those of ``Cluster.create``."""
        rows = cuts or [(0, value.shape[0] if value.ndim else 0)]
        homes = servers or self._round_robin.deal(len(rows))
        shards = tuple(self._find_room(home, value, *cut) for home, cut in zip(homes, rows, strict=True))
        spec = VariableSpec(len(self.specs), name, value.shape, value.dtype, trainable, shards)
        self.specs.append(spec)
        for shard in shards:
            part = value if len(shards) == 1 else value[shard.first : shard.end]
            self._memories[shard.server].view(shard, spec.dtype).buffers[0][...] = part
        return spec

    def _find_room(self, server: int, value: Any, first: int, end: int) -> Shard:
        shape = (end - first, *value.shape[1:]) if value.ndim else ()
        index, self._counts[server] = self._counts[server], self._counts[server] + 1
        if index >= MAX_SHARDS:
            raise LostProcessError(f"Server {server} already holds {MAX_SHARDS} shards, the most it can hold. Use more servers.")
        nbytes = value.dtype.itemsize
        for size in shape:
            nbytes *= size
        offset, self._ends[server] = self._ends[server], self._ends[server] + 2 * pages(nbytes)
        self._memories[server].values.grow(self._ends[server])
        return Shard(server, index, offset, first, end, shape)


def shards_on(server: int, specs: Iterable[VariableSpec]) -> list[tuple[Shard, str]]:
    """The shards of variables on one server, each with its dtype."""
    return [(shard, spec.dtype.name) for spec in specs for shard in spec.shards if shard.server == server]
