"""What a worker is about to push, written down first where its coordinator can read it after the worker's death.

A push goes to several servers, and a worker may die when one of them has it and another has not. Its function is called again by
somebody else, who draws another batch. So that the servers do not have one batch here and another there, whoever repeats the
function first finishes the push that was begun, of the batch of the first call, and leaves its own out.
"""

import pickle
from typing import Any, NamedTuple

from ..wire._memory import Memory, pages
from ._push import Operation, Outbox, unpack

_SIZE, _CLOSURE, _SEQUENCE, _ENDED_CLOSURE, _ENDED_SEQUENCE = range(5)
_HEAD = 5 * 8


class Unfinished(NamedTuple):
    """How far the pushes of a function had come. sequence: of the last one. batch: its operations by server; None: it was whole."""

    sequence: int
    batch: dict[int, list[Operation]] | None


class Intent:
    """One worker's page, over memory that its coordinator shares. It can be read whatever moment the worker is killed at.

    What has been begun is valid while its size is not 0, and else what has ended.
    """

    def __init__(self, memory: Memory):
        self._memory = memory
        self._look(max(memory.nbytes, pages(_HEAD)))

    def _look(self, nbytes: int) -> None:
        self._memory.grow(nbytes)
        self._bytes = self._memory.view(0, nbytes).data
        self._cells = self._bytes[:_HEAD].cast("Q")

    def begin(self, closure: int, sequence: int, pushes: dict[int, tuple[int, list[Any]]]) -> None:
        """A push is about to be sent. pushes: by server, its generation and the packed operations, whose arrays are in outboxes."""
        data = pickle.dumps(pushes, protocol=5)
        if _HEAD + len(data) > len(self._bytes):
            self._look(pages(2 * (_HEAD + len(data))))
        self._bytes[_HEAD : _HEAD + len(data)] = data
        self._cells[_CLOSURE], self._cells[_SEQUENCE] = closure, sequence
        self._cells[_SIZE] = len(data)  # from here on it counts

    def end(self) -> None:
        """All servers have applied it."""
        cells = self._cells
        cells[_ENDED_SEQUENCE] = 0
        cells[_ENDED_CLOSURE] = cells[_CLOSURE]
        cells[_ENDED_SEQUENCE] = cells[_SEQUENCE]
        self.drop()

    def drop(self) -> None:
        """It has ended, or has failed."""
        self._cells[_SIZE] = 0

    def unfinished(self, closure: int, outboxes: dict[tuple[int, int], Memory]) -> Unfinished | None:
        """After the worker's death: the last push of a closure; None if it had pushed nothing.

        outboxes: by server and generation.
        """
        self._look(self._memory.nbytes)
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
        """Give the file descriptor back."""
        self._memory.close()
