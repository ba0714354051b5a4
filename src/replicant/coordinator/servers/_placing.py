"""Which server holds which rows of a variable: contiguous shards, dealt to the servers in turn."""

import dataclasses
import itertools


def cut_rows(num_rows: int, num_shards: int) -> list[tuple[int, int]]:
    """The rows of each shard, as (first, end): ``num_rows // num_shards`` each, and one more in the first shards.

    >>> cut_rows(7, 3)
    [(0, 3), (3, 5), (5, 7)]
    """
    size, extra = divmod(num_rows, num_shards)
    starts = [i * size + min(i, extra) for i in range(num_shards + 1)]
    return list(itertools.pairwise(starts))


@dataclasses.dataclass(frozen=True)
class Shard:
    """Some rows of a variable on one server.

    Attributes:
        server: the server's number.
        index: its number among the server's shards.
        offset: where its two buffers start in the server's memory, in bytes.
        first: its first row, if the variable has axes.
        end: the row after its last one.
        shape: the shard's shape.
    """

    server: int
    index: int
    offset: int
    first: int
    end: int
    shape: tuple[int, ...]


class RoundRobin:
    """Deals shards to servers in turn, with one counter for all variables, as tf.distribute's ParameterServerStrategy does."""

    def __init__(self, num_servers: int):
        self._num_servers = num_servers
        self._next = 0

    def deal(self, count: int) -> list[int]:
        """The servers of the next `count` shards."""
        servers = [(self._next + i) % self._num_servers for i in range(count)]
        self._next += count
        return servers
