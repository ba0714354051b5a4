"""Which checkpoints stay: pure functions of what there is."""

import dataclasses
import math
from collections.abc import Collection, Iterable, Sequence

from ._direction import Mode


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint.

    number: of its name. saved_at: seconds since the epoch. metric: what it is judged by, None if unknown. name, mode: of the
    metric, as its manager was told; None if unknown.
    """

    number: int
    saved_at: float
    metric: float | None = None
    name: str | None = None
    mode: Mode | None = None


def best_of(saved: Iterable[Saved], mode: Mode) -> Saved | None:
    """The one with the best metric, the newest of equals; None if none has one. NaN and the infinities are no metrics."""
    known = [each for each in saved if each.metric is not None and math.isfinite(each.metric)]
    sign = 1 if mode == "max" else -1
    return max(known, key=lambda each: (sign * (each.metric or 0.0), each.number), default=None)


def bests(saved: Sequence[Saved], name: str | None, mode: Mode | None) -> dict[int, Saved]:
    """All that may be the best one, by number: by this metric and mode, and by every other that some were saved under.

    Where it was not noted how a metric is compared, both the lowest and the highest count.
    """
    judges: set[tuple[str | None, Mode | None]] = {(each.name, each.mode) for each in saved if each.metric is not None}
    if name is not None:
        judges.add((name, mode))
    found: dict[int, Saved] = {}
    for judge, how in judges:
        alike = [each for each in saved if each.name == judge]
        directions: tuple[Mode, ...] = ("min", "max") if how is None else (how,)
        for direction in directions:
            best = best_of(alike, direction)
            if best is not None:
                found[best.number] = best
    return found


def divided(
    saved: Sequence[Saved],
    *,
    max_to_keep: int | None,
    keep_every_seconds: float | None,
    last_preserved: float,
    best: Collection[int] = (),
) -> tuple[list[Saved], list[Saved], list[Saved]]:
    """What stays for now, what is preserved for ever, and what is deleted.

    Args:
        saved: in rising order; only those that are not preserved already.
        max_to_keep: the newest that stay; None: all.
        keep_every_seconds: of those that leave the newest, one per so many seconds is preserved for ever; None: none is.
        last_preserved: when the last one that is preserved was saved; before there is one, when saving began.
        best: numbers of those that stay besides the newest.
    """
    if max_to_keep is None:
        return list(saved), [], []
    num_old = max(0, len(saved) - max_to_keep)
    stay, preserved, gone = [], [], []
    for each in saved[:num_old]:
        if keep_every_seconds is not None and each.saved_at - last_preserved >= keep_every_seconds:
            last_preserved = each.saved_at
            preserved.append(each)
        else:
            (stay if each.number in best else gone).append(each)
    return [*stay, *saved[num_old:]], preserved, gone
