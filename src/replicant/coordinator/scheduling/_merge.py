"""One update out of the changes of several functions that saw the same values."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..servers._push import Change, Operation, combine_rows
from ..servers._shares import ROWS, SUM


def merge(offers: Sequence[list[list[Operation]]]) -> list[list[Operation]]:
    """Operations by server, of several functions, as those of one.

    Gradients that are for the same application of an optimizer are summed, and its step is counted once. Values that several
    assign to one variable are averaged if they are floats, as moving statistics are; otherwise the last counts. Everything else,
    such as sums, happens one after the other.

    Where functions say what their changes are shares of, the sums are divided here: by the rows of all functions, say, so that
    the update is that of one batch with all of their rows.
    """
    shares = [dict(pair for operations in offer for op in operations for pair in op.shares) for offer in offers]
    names = {name for own in shares for name in own}
    totals = {name: sum(own.get(name, 0.0) for own in shares) for name in names - {SUM}}
    rows = [own.get(ROWS, 0.0) for own in shares] if totals.get(ROWS) and all(ROWS in own for own in shares) else None
    return [_merge_server([offer[server] for offer in offers], totals, rows) for server in range(len(offers[0]))]


class _Given(NamedTuple):
    """An operation, and the number of the function whose it is."""

    function: int
    operation: Operation


def _merge_server(parts: Sequence[list[Operation]], totals: Mapping[str, float], rows: Sequence[float] | None) -> list[Operation]:
    groups: dict[Hashable, list[_Given]] = {}
    for function, operations in enumerate(parts):
        seen: dict[Hashable, int] = {}
        for operation in operations:
            name = _group_of(operation)
            seen[name] = seen.get(name, -1) + 1
            key = (name, seen[name]) if name is not None else (None, function, seen[name])
            groups.setdefault(key, []).append(_Given(function, operation))
    return [_merge_group(group, totals, rows) for group in groups.values()]


def _group_of(operation: Operation) -> Hashable:
    """What is merged with what. None: with nothing."""
    if operation.rule >= 0:  # gradients, or the count of their application
        return operation.kind, operation.rule
    change = operation.changes[0]
    if change.share is not None:
        return operation.kind, change.shard, change.share
    return (operation.kind, change.shard) if operation.kind == "assign" and change.rows is None else None


def _merge_group(group: list[_Given], totals: Mapping[str, float], rows: Sequence[float] | None) -> Operation:
    last, changes = group[-1].operation, [change for _, operation in group for change in operation.changes]
    if last.kind == "assign" and len(group) > 1:
        weights = None if rows is None else [rows[function] for function, _ in group]
        return last._replace(changes=[_average(changes, weights)])
    if last.kind == "apply":
        by_shard: dict[int, list[Change]] = {}
        for change in changes:
            by_shard.setdefault(change.shard, []).append(change)
        return group[0].operation._replace(changes=[_sum(found, totals) for found in by_shard.values()])
    if changes[0].share is not None:  # of a mean over rows: divided by what its terms are, it counts once for each row
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
    """The sum of changes of one shard, with the terms of each share divided by its total."""
    by_share: dict[str | None, list[Change]] = {}
    for change in changes:
        by_share.setdefault(change.share, []).append(change)
    return _plain_sum([_divided(_plain_sum(found), totals.get(share or SUM)) for share, found in by_share.items()])


def _divided(change: Change, total: float | None) -> Change:
    if total is None:
        return change._replace(share=None)
    values = change.values  # a sum over nothing is zeros, and stays so
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
            total[change.rows] += change.values  # no row is twice in one change
    return changes[0]._replace(values=total, rows=None)


def _joined(changes: list[Change], part: Callable[[Change], Any]) -> np.ndarray:
    return np.concatenate([part(change) for change in changes])
