"""The memory of the servers' variables: two buffers for each shard, which its server writes and all processes read."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import LostProcessError
from ..wire import _fence
from ..wire._memory import Memory, pages
from ._ledger import NBYTES, Ledger
from ._placing import Shard

_READ_SECONDS = 240.0  # how long a reader waits for a moment without writes; enough to replace a server
_PATIENT_TRIES = 100  # tries without a pause


@dataclasses.dataclass(frozen=True)
class VariableSpec:
    """What every process knows about a variable. `number` identifies it everywhere."""

    number: int
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    trainable: bool
    shards: tuple[Shard, ...]

    @functools.cached_property
    def nbytes(self) -> int:
        """The size of the value in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class ShardView:
    """A shard's two buffers. The value is in buffer ``done % 2``; the next one is written to the other buffer."""

    def __init__(self, shard: Shard, dtype: np.dtype, memory: Memory, ledger: Ledger):
        nbytes = int(np.prod(shard.shape, dtype=np.int64)) * dtype.itemsize
        raw = memory.view(shard.offset, 2 * pages(nbytes))
        self.shard = shard
        self.buffers = [raw[at : at + nbytes].view(dtype).reshape(shard.shape) for at in (0, pages(nbytes))]
        self._ledger = ledger

    @property
    def version(self) -> tuple[int, int]:
        """A value that changes with every update."""
        ledger, index = self._ledger, self.shard.index
        return ledger.done[index], ledger.in_place[index]

    @property
    def current(self) -> np.ndarray:
        """The buffer with the value, which may change at any time."""
        return self.buffers[self._ledger.done[self.shard.index] & 1]

    @property
    def other(self) -> np.ndarray:
        """The buffer for the next value."""
        return self.buffers[1 - (self._ledger.done[self.shard.index] & 1)]

    def read_into(self, out: np.ndarray) -> tuple[int, int]:
        """Copy the value, as of one moment, to `out`. Returns its version.

        Raises:
            LostProcessError: if the server never paused its writes, or was stopped in the middle of one.
        """
        ledger, index = self._ledger, self.shard.index
        deadline, tries = 0.0, 0
        while True:
            version = self.version
            _fence.fence()
            np.copyto(out, self.buffers[version[0] & 1])
            _fence.fence()
            # The next update goes to the other buffer. Only the one after it changes the buffer that was copied.
            if not version[1] & 1 and ledger.in_place[index] == version[1] and ledger.started[index] <= version[0] + 1:
                return version
            tries += 1
            if tries > _PATIENT_TRIES:
                deadline = deadline or time.monotonic() + _READ_SECONDS
                if time.monotonic() > deadline:
                    raise LostProcessError(
                        f"Server {self.shard.server} did not finish writing within {_READ_SECONDS:.0f} s, so a shard of shape "
                        f"{self.shard.shape} could not be read. Check whether the server has been stopped."
                    )
                time.sleep(0.001)


class ServerMemory:
    """One server's shared memory, as one process sees it.

    Args:
        values: holds the ledger and the shards.
        saved: holds the old values of rows that are being changed.
    """

    def __init__(self, values: Memory, saved: Memory):
        self.values = values
        self.saved = saved
        self.saved_bytes = saved.view(0, saved.nbytes)  # the part that this process has mapped
        self.ledger = Ledger(values.view(0, NBYTES))
        self._views: dict[int, ShardView] = {}

    @classmethod
    def create(cls) -> "ServerMemory":
        """Make the memory of a new server."""
        return cls(Memory.create(pages(NBYTES)), Memory.create())

    def view(self, shard: Shard, dtype: np.dtype) -> ShardView:
        """The buffers of a shard."""
        view = self._views.get(shard.index)
        if view is None:
            view = self._views[shard.index] = ShardView(shard, dtype, self.values, self.ledger)
        return view

    def duplicate(self) -> "ServerMemory":
        """The same memory for another user in this process."""
        return ServerMemory(self.values.duplicate(), self.saved.duplicate())

    def close(self) -> None:
        """Close the file descriptors."""
        self.values.close()
        self.saved.close()


def read(spec: VariableSpec, servers: "list[ServerMemory]", make: Callable[[tuple[int, ...], Any], np.ndarray]) -> np.ndarray:
    """Copy the value of a whole variable into an array that `make` returns for its shape and dtype."""
    out = make(spec.shape, spec.dtype)
    for shard in spec.shards:
        part = out if len(spec.shards) == 1 else out[shard.first : shard.end]
        servers[shard.server].view(shard, spec.dtype).read_into(part)
    return out


def version(spec: VariableSpec, servers: "list[ServerMemory]") -> tuple[Any, ...]:
    """A value that changes with every update of any shard of a variable."""
    if len(spec.shards) == 1:
        return servers[spec.shards[0].server].view(spec.shards[0], spec.dtype).version
    return tuple(servers[shard.server].view(shard, spec.dtype).version for shard in spec.shards)
