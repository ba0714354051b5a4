"""Applies pushes to one server's shards. `Applier` is all that a server does with its memory; it needs no process or socket."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ...errors import ParameterServerError
from ..wire import _fence
from ._ledger import Ledger
from ._placing import Shard
from ._push import Change, Operation, Push, num_bytes
from ._store import ServerMemory, ShardView

_CHUNK = 1 << 15  # elements; so many stay in the cache between two passes

_DENSE: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "multiply": np.multiply,
    "divide": np.divide,
    "max": np.maximum,
    "min": np.minimum,
}


class Rule(Protocol):
    """An optimizer on a server."""

    def slots(self, shard: int) -> list[int]:
        """The shards of the optimizer's own variables that belong to a shard."""
        ...

    def update(
        self, step: int, learning_rate: float, items: list[tuple[int, np.ndarray, list[np.ndarray]]], outs: list[list[np.ndarray]]
    ) -> None:
        """For each (shard, gradient, [value, *slots]), write the new [value, *slots] to `outs`, which may be the old arrays."""
        ...


class Applier:
    """The only writer of a server's memory."""

    def __init__(self, memory: ServerMemory):
        self._memory = memory
        self._ledger: Ledger = memory.ledger
        self._shards: dict[int, ShardView] = {}
        self.rules: dict[int, Rule] = {}
        self._low_water = 0  # closures with smaller numbers have ended
        self._repeated: dict[int, int] = {}  # closure -> its last push that a later attempt has applied
        self._begun: tuple[int, Push] | None = None  # the number of updates before the push in progress, and that push

    def add_shard(self, shard: Shard, dtype: np.dtype) -> None:
        """Add a shard, whose first value is already in memory."""
        self._shards[shard.index] = self._memory.view(shard, dtype)

    def recover(self) -> None:
        """Restore the state after some whole number of pushes, when a server was killed or an update failed.

        All shards must have been added.
        """
        ledger = self._ledger
        nbytes = ledger.recover()
        if nbytes:
            for shard, rows, old in _load_rows(self._memory.saved.view(0, nbytes), self._shards):
                write_rows(ledger, shard, self._shards[shard].current, rows, old)
        ledger.settle()
        self._end_push()

    def apply(self, push: Push, operations: list[Operation]) -> bool:
        """Apply a push. Returns False if it had already been applied. If this raises, the push counts wholly or not at all."""
        if self._begun is not None:  # undoing the last push was itself interrupted
            self.recover()
        ledger = self._ledger
        if self._was_applied(push):
            ledger.count_duplicate()
            return False
        self._begun = ledger.updates, push
        try:
            update = _Update(self._shards, self._memory, self.rules)
            update.save_rows(operations)
            for operation in operations:
                update.perform(operation)
            staleness = max(0, ledger.updates - push.seen)
            _fence.fence()
            ledger.commit(update.flipped, push.name, push.low_water, staleness=staleness, nbytes=num_bytes(operations))
        except BaseException:  # recover as if the server had been killed and replaced here
            self.recover()
            raise
        self._end_push()
        return True

    def _end_push(self) -> None:
        """Note that the push in progress, if any, has been applied or undone."""
        if self._begun is not None:
            before, push = self._begun
            if push.attempt > 0 and self._ledger.updates > before:
                self._repeated[push.name.closure] = push.name.sequence
            self._begun = None

    def _was_applied(self, push: Push) -> bool:
        """Whether this push has already been applied, by its worker or another one.

        The push of a dead worker may be read after another worker has repeated its closure, and even after the latter's next push.
        A successor of this server need not remember that, because such a push is lost with the server to which it was sent.
        """
        name = push.name
        if push.low_water > self._low_water:
            self._low_water = push.low_water
            self._repeated = {closure: last for closure, last in self._repeated.items() if closure > push.low_water}
        if name.closure <= self._low_water or self._repeated.get(name.closure, 0) >= name.sequence:
            return True
        return push.attempt > 0 and self._ledger.has_applied(name)


class _Update:
    """One push in progress. `flipped` holds the shards whose new values are in their other buffers."""

    def __init__(self, shards: dict[int, ShardView], memory: ServerMemory, rules: dict[int, Rule]):
        self._shards = shards
        self._memory = memory
        self._rules = rules
        self._ledger = memory.ledger
        self.flipped: list[int] = []

    def save_rows(self, operations: list[Operation]) -> None:
        """Save the old values of all rows that will change in place."""
        wanted = [
            (shard, change.rows)
            for operation in operations
            for change in operation.changes
            if change.rows is not None
            for shard in [change.shard, *self._slots(operation, change.shard)]
        ]
        if wanted:
            self._ledger.note_undo(_save_rows(self._memory, [(s, r, self._shards[s].current[r]) for s, r in wanted]))

    def perform(self, operation: Operation) -> None:
        if operation.kind == "apply":
            self._apply_gradients(operation)
        else:
            for change in operation.changes:
                self._change(operation.kind, change)

    def _change(self, kind: str, change: Change) -> None:
        if change.rows is not None:
            view = self._shards[change.shard]
            target = view.other if change.shard in self.flipped else view.current
            old = target[change.rows]
            new = change.values if kind == "assign" else _DENSE[kind](old, change.values)
            write_rows(self._ledger, change.shard, target, change.rows, new)
            return
        old, new = self._buffers(change.shard)
        if kind == "assign":
            np.copyto(new, change.values)
        else:
            _DENSE[kind](old, change.values, out=new, casting="unsafe")

    def _slots(self, operation: Operation, shard: int) -> list[int]:
        return self._rules[operation.rule].slots(shard) if operation.kind == "apply" else []

    def _buffers(self, shard: int) -> tuple[np.ndarray, np.ndarray]:
        """The buffers to read the value from, and to write the next one to."""
        view = self._shards[shard]
        if shard in self.flipped:
            return view.other, view.other
        self.flipped.append(shard)
        self._ledger.started[shard] += 1
        _fence.fence()
        return view.current, view.other

    def _apply_gradients(self, operation: Operation) -> None:
        rule = self._rules.get(operation.rule)
        if rule is None:
            raise ParameterServerError(
                f"This server does not know optimizer {operation.rule}. Make the optimizer in strategy.scope(), on the coordinator."
            )
        items, outs, in_place = [], [], []
        for change in operation.changes:
            shards = [change.shard, *rule.slots(change.shard)]
            if change.rows is None:
                pairs = [self._buffers(shard) for shard in shards]
                items.append((change.shard, change.values, [old for old, _ in pairs]))
                outs.append([new for _, new in pairs])
                continue
            targets = [self._shards[s].other if s in self.flipped else self._shards[s].current for s in shards]
            blocks = [target[change.rows] for target in targets]
            items.append((change.shard, change.values, blocks))
            outs.append(blocks)
            in_place += list(zip(shards, targets, [change.rows] * len(shards), blocks, strict=True))
        rule.update(operation.step, operation.learning_rate, items, outs)
        for shard, target, rows, block in in_place:
            write_rows(self._ledger, shard, target, rows, block)


def write_rows(ledger: Ledger, shard: int, target: np.ndarray, rows: np.ndarray, new: np.ndarray) -> None:
    """Change rows in place. A concurrent reader of the shard sees that its count in ``in_place`` is odd, or has changed."""
    in_place = ledger.in_place
    in_place[shard] |= 1
    _fence.fence()
    target[rows] = new
    _fence.fence()
    in_place[shard] += 1


def subtract_scaled(new: np.ndarray, old: np.ndarray, gradient: np.ndarray, factor: float) -> None:
    """Compute ``new = old - factor * gradient`` in one pass over the memory."""
    scale = new.dtype.type(-factor)
    if new.size <= _CHUNK:
        np.add(old, gradient * scale, out=new)
        return
    new, old, gradient = new.reshape(-1), old.reshape(-1), gradient.reshape(-1)
    scaled = np.empty(_CHUNK, np.result_type(gradient, scale))
    for start in range(0, new.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        found = gradient[part]
        np.add(old[part], np.multiply(found, scale, out=scaled[: found.size]), out=new[part])


def _save_rows(memory: ServerMemory, items: list[tuple[int, np.ndarray, np.ndarray]]) -> int:
    """Write (shard, rows, old values) to the server's memory for saved rows. Returns the number of bytes."""
    head = np.array([len(items), *[x for shard, rows, _ in items for x in (shard, rows.size)]], np.int64)
    parts = [head.view(np.uint8)]
    for _, rows, old in items:
        parts += [np.ascontiguousarray(rows, np.int64).view(np.uint8), np.ascontiguousarray(old).reshape(-1).view(np.uint8)]
    data = np.concatenate(parts)
    if data.nbytes > memory.saved.nbytes:
        memory.saved.grow(2 * data.nbytes)
        memory.saved_bytes = memory.saved.view(0, memory.saved.nbytes)
    np.copyto(memory.saved_bytes[: data.nbytes], data)
    return data.nbytes


def _load_rows(data: np.ndarray, shards: dict[int, ShardView]) -> list[tuple[int, np.ndarray, np.ndarray]]:
    count = int(data[:8].view(np.int64)[0])
    head = data[8 : 8 + 16 * count].view(np.int64).reshape(count, 2)
    at, items = 8 + 16 * count, []
    for shard, num_rows in head.tolist():
        rows = data[at : at + 8 * num_rows].view(np.int64)
        at += 8 * num_rows
        like = shards[shard].current
        nbytes = num_rows * like.itemsize * int(np.prod(like.shape[1:], dtype=np.int64))
        items.append((shard, rows, np.frombuffer(data[at : at + nbytes].tobytes(), like.dtype).reshape(num_rows, *like.shape[1:])))
        at += nbytes
    return items
