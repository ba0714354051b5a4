"""Merges the changes of several closures, which read the same values, into one update."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..servers._push import Change, Operation, combine_rows
from ..servers._shares import ROWS, SUM


def merge(offers: Sequence[list[list[Operation]]]) -> list[list[Operation]]:
    """Merge the operations of several closures, each given by server.

    Gradients for the same application of an optimizer are summed, and its step is counted once. If several closures assign to one
    variable, floats such as moving statistics are averaged, and of other values the last one counts. All other operations, such
    as additions, are applied one after the other.

    Changes that name a share are divided here by the total of that share over all closures, for example by their rows together.
    So the update is that of one batch with all of their rows.
    """
    shares = [dict(pair for operations in offer for op in operations for pair in op.shares) for offer in offers]
    names = {name for own in shares for name in own}
    totals = {name: sum(own.get(name, 0.0) for own in shares) for name in names - {SUM}}
    rows = [own.get(ROWS, 0.0) for own in shares] if totals.get(ROWS) and all(ROWS in own for own in shares) else None
    return [_merge_server([offer[server] for offer in offers], totals, rows) for server in range(len(offers[0]))]


class _Given(NamedTuple):
    """An operation, and the position of the closure it comes from."""

    closure: int
    operation: Operation


def _merge_server(parts: Sequence[list[Operation]], totals: Mapping[str, float], rows: Sequence[float] | None) -> list[Operation]:
    groups: dict[Hashable, list[_Given]] = {}
    for closure, operations in enumerate(parts):
        seen: dict[Hashable, int] = {}
        for operation in operations:
            name = _group_of(operation)
            seen[name] = seen.get(name, -1) + 1
            key = (name, seen[name]) if name is not None else (None, closure, seen[name])
            groups.setdefault(key, []).append(_Given(closure, operation))
    return [_merge_group(group, totals, rows) for group in groups.values()]


def _group_of(operation: Operation) -> Hashable:
    """Operations with equal keys are merged; one with None is merged with nothing."""
    if operation.rule >= 0:  # gradients, or the step count of their optimizer
        return operation.kind, operation.rule
    change = operation.changes[0]
    if change.share is not None:
        return operation.kind, change.shard, change.share
    return (operation.kind, change.shard) if operation.kind == "assign" and change.rows is None else None


def _merge_group(group: list[_Given], totals: Mapping[str, float], rows: Sequence[float] | None) -> Operation:
    last, changes = group[-1].operation, [change for _, operation in group for change in operation.changes]
    if last.kind == "assign" and len(group) > 1:
        weights = None if rows is None else [rows[closure] for closure, _ in group]
        return last._replace(changes=[_average(changes, weights)])
    if last.kind == "apply":
        by_shard: dict[int, list[Change]] = {}
        for change in changes:
            by_shard.setdefault(change.shard, []).append(change)
        return group[0].operation._replace(changes=[_sum(found, totals) for found in by_shard.values()])
    if changes[0].share is not None:  # a part of a mean over rows: divided by its own total, it then counts once per row
        total = _sum(changes, totals)
        return last._replace(changes=[total._replace(values=total.values * total.values.dtype.type(totals[ROWS]))])
    return group[0].operation._replace(shares=())


def _average(changes: list[Change], weights: list[float] | None) -> Change:
    values = [change.values for change in changes]
    if not np.issubdtype(values[0].dtype, np.inexact):
        return changes[-1]
    if weights is None or not sum(weights) or len(weights) != len(values):
        return changes[-1]._replace(values=np.mean(values, axis=0, dtype=values[0].dtype))
    return changes[-1]._replace(values=np.average(values, axis=0, weights=weights).astype(values[0].dtype))


def _sum(changes: list[Change], totals: Mapping[str, float]) -> Change:
    """Sum changes of one shard, dividing those of each share by its total."""
    by_share: dict[str | None, list[Change]] = {}
    for change in changes:
        by_share.setdefault(change.share, []).append(change)
    return _plain_sum([_divided(_plain_sum(found), totals.get(share or SUM)) for share, found in by_share.items()])


def _divided(change: Change, total: float | None) -> Change:
    if total is None:
        return change._replace(share=None)
    values = change.values  # a sum over nothing stays zeros
    return change._replace(values=values / values.dtype.type(total) if total else np.zeros_like(values), share=None)


def _plain_sum(changes: list[Change]) -> Change:
    if len(changes) == 1:
        return changes[0]
    dense = [change.values for change in changes if change.rows is None]
    if not dense:
        rows, values = combine_rows(_joined(changes, lambda c: c.rows), _joined(changes, lambda c: c.values))
        return changes[0]._replace(values=values, rows=rows)
    total = dense[0].copy()
    for values in dense[1:]:
        total += values
    for change in changes:
        if change.rows is not None:
            total[change.rows] += change.values  # no row occurs twice in one change
    return changes[0]._replace(values=total, rows=None)


def _joined(changes: list[Change], part: Callable[[Change], Any]) -> np.ndarray:
    return np.concatenate([part(change) for change in changes])
