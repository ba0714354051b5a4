"""One update out of the changes of several functions that saw the same values."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from ._push import Change, Operation, combine_rows


def merge(offers: Sequence[list[list[Operation]]]) -> list[list[Operation]]:
    """Operations by server, of several functions, as those of one.

    Gradients that are for the same application of an optimizer are summed, and its step is counted once. Values that several
    assign to one variable are averaged if they are floats, as moving statistics are; otherwise the last counts. Everything else,
    such as sums, happens one after the other.
    """
    return [_merge_server([offer[server] for offer in offers]) for server in range(len(offers[0]))]


def _merge_server(parts: Sequence[list[Operation]]) -> list[Operation]:
    groups: dict[Hashable, list[Operation]] = {}
    for function, operations in enumerate(parts):
        seen: dict[Hashable, int] = {}
        for operation in operations:
            name = _group_of(operation)
            seen[name] = seen.get(name, -1) + 1
            key = (name, seen[name]) if name is not None else (None, function, seen[name])
            groups.setdefault(key, []).append(operation)
    return [_merge_group(group) for group in groups.values()]


def _group_of(operation: Operation) -> Hashable:
    """What is merged with what. None: with nothing."""
    if operation.rule >= 0:  # gradients, or the count of their application
        return operation.kind, operation.rule
    change = operation.changes[0]
    return (operation.kind, change.shard) if operation.kind == "assign" and change.rows is None else None


def _merge_group(group: list[Operation]) -> Operation:
    if len(group) == 1 or group[0].kind == "add":
        return group[0]
    if group[0].kind == "assign":
        values = [operation.changes[0].values for operation in group]
        is_float = np.issubdtype(values[0].dtype, np.inexact)
        value = np.mean(values, axis=0, dtype=values[0].dtype) if is_float else values[-1]
        return group[-1]._replace(changes=[group[-1].changes[0]._replace(values=value)])
    by_shard: dict[int, list[Change]] = {}
    for operation in group:
        for change in operation.changes:
            by_shard.setdefault(change.shard, []).append(change)
    return group[0]._replace(changes=[_sum(changes) for changes in by_shard.values()])


def _sum(changes: list[Change]) -> Change:
    """The sum of gradients of one shard."""
    if len(changes) == 1:
        return changes[0]
    dense = [change.values for change in changes if change.rows is None]
    if not dense:
        rows, values = combine_rows(_joined(changes, lambda c: c.rows), _joined(changes, lambda c: c.values))
        return Change(changes[0].shard, values, rows)
    total = dense[0].copy()
    for values in dense[1:]:
        total += values
    for change in changes:
        if change.rows is not None:
            total[change.rows] += change.values  # no row is twice in one change
    return Change(changes[0].shard, total, None)


def _joined(changes: list[Change], part: Callable[[Change], Any]) -> np.ndarray:
    return np.concatenate([part(change) for change in changes])
