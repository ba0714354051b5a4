"""Which checkpoints stay: pure functions of the existing ones."""

import dataclasses
import math
from collections.abc import Collection, Iterable, Sequence

from ._metric_direction import Mode


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint.

    number: the number in its name. saved_at: seconds since the epoch. metric: the value that it is judged by, or None if unknown.
    name, mode: name and mode of the metric, as set in its manager, or None if unknown.
    """

    number: int
    saved_at: float
    metric: float | None = None
    name: str | None = None
    mode: Mode | None = None


def best_of(saved: Iterable[Saved], mode: Mode) -> Saved | None:
    """Return the one with the best metric, and the newest of equals; None if none has one. NaN and infinities do not count."""
    known = [each for each in saved if each.metric is not None and math.isfinite(each.metric)]
    sign = 1 if mode == "max" else -1
    return max(known, key=lambda each: (sign * (each.metric or 0.0), each.number), default=None)


def bests(saved: Sequence[Saved], name: str | None, mode: Mode | None) -> dict[int, Saved]:
    """Return, by number, the best one by this metric and mode, and by every other metric and mode that was used before.

    If the mode of a metric is unknown, both the lowest and the highest count.
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
    """Return what stays for now, what is preserved forever, and what is deleted.

    Args:
        saved: The checkpoints in rising order, without those that are already preserved.
        max_to_keep: How many of the newest stay; None keeps all.
        keep_every_seconds: If set, one per this many seconds is preserved forever among those that are no longer the newest.
        last_preserved: When the last preserved checkpoint was saved, or when saving began if there is none.
        best: The numbers of those that stay in addition to the newest.
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
