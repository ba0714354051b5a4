"""What a worker is about to push, written to shared memory so that its coordinator can read it after the worker's death.

A push goes to several servers, and a worker may die when one of them has received it and another has not. Another worker then
repeats the closure, with another batch. To keep the servers from applying different batches, it first finishes the push that was
started, from the batch of the first attempt, and skips its own.
"""

import pickle
from typing import Any, NamedTuple

from ..wire._memory import Memory, pages
from ._push import Operation, Outbox, unpack

_SIZE, _CLOSURE, _SEQUENCE, _ENDED_CLOSURE, _ENDED_SEQUENCE = range(5)
_HEAD = 5 * 8


class Unfinished(NamedTuple):
    """How far a lost worker got with the pushes of a closure.

    Attributes:
        sequence: the number of its last push.
        batch: that push's operations, by server; None if the push was complete.
    """

    sequence: int
    batch: dict[int, list[Operation]] | None


class Intent:
    """One worker's page, over memory shared with its coordinator. It is readable at whatever moment the worker is killed.

    While its size is not 0, the started push is valid; otherwise the completed one is.
    """

    def __init__(self, memory: Memory):
        self._memory = memory
        self._bytes, self._cells = self._seen(max(memory.nbytes, pages(_HEAD)))

    def _seen(self, nbytes: int) -> tuple[memoryview, memoryview]:
        """The page, which is grown to so many bytes, and the numbers at its beginning."""
        self._memory.grow(nbytes)
        data = self._memory.view(0, nbytes).data
        return data, data[:_HEAD].cast("Q")

    def begin(self, closure: int, sequence: int, pushes: dict[int, tuple[int, list[Any]]]) -> None:
        """Record a push that is about to be sent.

        `pushes` holds each server's generation and the packed operations, whose arrays are in outboxes.
        """
        data = pickle.dumps(pushes, protocol=5)
        if _HEAD + len(data) > len(self._bytes):
            self._bytes, self._cells = self._seen(pages(2 * (_HEAD + len(data))))
        self._bytes[_HEAD : _HEAD + len(data)] = data
        self._cells[_CLOSURE], self._cells[_SEQUENCE] = closure, sequence
        self._cells[_SIZE] = len(data)  # now it is valid

    def end(self) -> None:
        """Record that all servers have applied the push."""
        cells = self._cells
        cells[_ENDED_SEQUENCE] = 0
        cells[_ENDED_CLOSURE] = cells[_CLOSURE]
        cells[_ENDED_SEQUENCE] = cells[_SEQUENCE]
        self.drop()

    def drop(self) -> None:
        """Forget the push, which was applied or has failed."""
        self._cells[_SIZE] = 0

    def unfinished(self, closure: int, outboxes: dict[tuple[int, int], Memory]) -> Unfinished | None:
        """After the worker's death: the last push of a closure; None if it pushed nothing.

        `outboxes` are the worker's, by server and generation.
        """
        self._bytes, self._cells = self._seen(self._memory.nbytes)
        cells, batch = self._cells, {}
        if not (size := cells[_SIZE]):
            ended = cells[_ENDED_SEQUENCE] if cells[_ENDED_CLOSURE] == closure else 0
            return Unfinished(ended, None) if ended else None
        if cells[_CLOSURE] != closure:
            return None
        pushes = pickle.loads(self._bytes[_HEAD : _HEAD + size])  # noqa: S301 - from a worker, which this program started
        for server, (generation, packed) in pushes.items():
            outbox = Outbox(outboxes[server, generation])
            outbox.see(outbox.memory.nbytes)
            batch[server] = unpack(packed, outbox)
        return Unfinished(cells[_SEQUENCE], batch)

    def close(self) -> None:
        """Close the file descriptor."""
        self._memory.close()
