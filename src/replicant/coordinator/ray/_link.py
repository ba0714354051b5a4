"""One client's link to one server: turns the messages on a local channel into calls of the server's actor."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ..servers._push import Outbox, Push, unpack
from ..wire._channel import Channel, Closed
from ..wire._memory import Memory
from ._loop import Loop
from ._mirror import Mirrors

_JUST_NOW = 1 << 62  # for a push that follows no read


class RayLink:
    """Forwards pushes and other messages to a server, and its answers back. The channel closes when the server is lost.

    Args:
        loop: runs all of this in its thread.
        channel: the server's end of the client's channel.
        outbox: the memory that belongs to the channel.
        place: the server's number, generation and actor.
        mirrors: those of the client's process.
        noted: is called with each message, and returns what to send.
    """

    def __init__(
        self,
        loop: Loop,
        channel: Channel,
        outbox: Memory,
        place: tuple[int, int, Any],
        mirrors: Mirrors,
        *,
        noted: Callable[[Any], Any] = lambda message: message,
    ):
        self._loop, self._channel, self._mirrors, self._noted = loop, channel, mirrors, noted
        self._outbox = Outbox(outbox)
        self._server, self._generation, self._actor = place
        loop.add(channel, self._take, outbox.close)

    def _take(self, message: Any, _: list[int]) -> None:
        is_push = isinstance(message, Push)
        if is_push:
            self._outbox.see(message.outbox_bytes)
            seen = self._mirrors.memories[self._server].seen
            operations = unpack(message.operations, self._outbox)
            message = dataclasses.replace(message, operations=operations, seen=_JUST_NOW if seen is None else seen)
        future = self._actor.ask.remote(self._noted(message)).future()
        self._loop.when(future, lambda result, error: self._answer(result, error, is_push=is_push))

    def _answer(self, result: tuple[Any, int] | None, error: BaseException | None, *, is_push: bool) -> None:
        if error is not None or result is None:
            self._loop.remove(self._channel)
            self._outbox.memory.close()
            return
        answer, updates = result
        self._mirrors.see(self._server, self._generation, updates)
        if is_push:
            self._mirrors.memories[self._server].forget(updates=updates)
        with contextlib.suppress(Closed):  # the loop notices
            self._channel.send(answer)


def values_of(mirrors: Mirrors, server: int, shards: list[Any]) -> dict[int, np.ndarray]:
    """The initial values of new shards, which the coordinator has written to its copies."""
    memory = mirrors.memories[server]
    return {shard.index: memory.view(shard, np.dtype(dtype)).buffers[0] for shard, dtype in shards}
