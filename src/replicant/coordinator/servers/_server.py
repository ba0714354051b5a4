"""A parameter server: waits for pushes, applies them one after the other, and answers each."""

import pickle
import select
import socket
from typing import Any

import numpy as np

from ..wire._channel import Channel, Closed
from ..wire._errors import pack_error
from ..wire._memory import Memory
from ._apply import Applier
from ._placing import Shard
from ._push import Outbox, Push, unpack
from ._store import ServerMemory


class Server:
    """One server's loop. The server ends when the coordinator's end of `control` closes."""

    def __init__(self, number: int, memory: ServerMemory, control: Channel):
        self._number = number
        self._applier = Applier(memory)
        self._control = control
        self._clients: dict[int, tuple[Channel, Outbox]] = {}
        self._poller = select.poll()
        self._poller.register(control.fileno(), select.POLLIN)

    def run(self) -> None:
        """Serve until told to stop."""
        try:
            self._serve()
        except Closed:
            pass
        finally:
            for channel, outbox in self._clients.values():
                channel.close()
                outbox.memory.close()

    def _serve(self) -> None:
        while True:
            for fd, _ in self._poller.poll():
                if fd != self._control.fileno():
                    self._answer(fd)
                    continue
                self._control.poll()
                while message := self._control.next():
                    if not self._obey(*message):
                        return

    def _obey(self, message: tuple[Any, ...], fds: list[int]) -> bool:
        what, *rest = message
        if what == "stop":
            return False
        if what == "begin":
            shards, rules = rest
            for shard, dtype in shards:
                self._applier.add_shard(shard, np.dtype(dtype))
            self._applier.recover()
            for number, blob in rules:
                self._add_rule(number, blob)
            self._control.send(("ready",))
        elif what == "client":
            channel = Channel(socket.socket(fileno=fds[0]), f"client {rest[0]}")
            self._clients[channel.fileno()] = (channel, Outbox(Memory(fds[1])))
            self._poller.register(channel.fileno(), select.POLLIN)
        return True

    def _answer(self, fd: int) -> None:
        channel, outbox = self._clients[fd]
        try:
            channel.poll()
            while message := channel.next():
                channel.send(self._reply(message[0], outbox))
        except Closed:
            self._poller.unregister(fd)
            del self._clients[fd]
            channel.close()
            outbox.memory.close()

    def _reply(self, message: Any, outbox: Outbox) -> bool | bytes:
        """The answer: True, False for a push that had already been applied, or a packed error."""
        try:
            if isinstance(message, Push):
                outbox.see(message.outbox_bytes)
                return self._applier.apply(message, unpack(message.operations, outbox))
            what, *rest = message
            if what == "shards":
                self._add_shards(rest[0])
            elif what == "rule":
                self._add_rule(*rest)
        except Exception as error:  # noqa: BLE001 - the sender gets whatever an optimizer raises
            return pack_error(error, f"server {self._number}")
        return True

    def _add_shards(self, shards: list[tuple[Shard, str]]) -> None:
        for shard, dtype in shards:
            self._applier.add_shard(shard, np.dtype(dtype))

    def _add_rule(self, number: int, blob: bytes) -> None:
        make, args = pickle.loads(blob)  # noqa: S301 - from the coordinator, which started this process
        self._applier.rules[number] = make(*args, self._number)
