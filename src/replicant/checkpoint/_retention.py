"""Which checkpoints stay: pure functions of what there is."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

Mode = Literal["min", "max"]


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint. number: of its name. saved_at: seconds since the epoch. metric: what it is judged by, None if unknown."""

    number: int
    saved_at: float
    metric: float | None = None


def best_of(saved: Sequence[Saved], mode: Mode) -> Saved | None:
    """The one with the best metric, the newest of equals; None if none has one. NaN is no metric."""
    known = [each for each in saved if each.metric is not None and not math.isnan(each.metric)]
    sign = 1 if mode == "max" else -1
    return max(known, key=lambda each: (sign * (each.metric or 0.0), each.number), default=None)


def divided(
    saved: Sequence[Saved], *, max_to_keep: int | None, keep_every_seconds: float | None, last_preserved: float, mode: Mode | None
) -> tuple[list[Saved], list[Saved], list[Saved]]:
    """What stays for now, what is preserved for ever, and what is deleted.

    Args:
        saved: in rising order; only those that are not preserved already.
        max_to_keep: the newest that stay; None: all.
        keep_every_seconds: of those that leave the newest, one per so many seconds is preserved for ever; None: none is.
        last_preserved: when the last one that is preserved was saved; before there is one, when saving began.
        mode: how metrics are compared, so that the best one stays; None: they are not.
    """
    if max_to_keep is None:
        return list(saved), [], []
    best = best_of(saved, mode) if mode else None
    num_old = max(0, len(saved) - max_to_keep)
    stay, preserved, gone = [], [], []
    for each in saved[:num_old]:
        if keep_every_seconds is not None and each.saved_at - last_preserved >= keep_every_seconds:
            last_preserved = each.saved_at
            preserved.append(each)
        else:
            (stay if each is best else gone).append(each)
    return [*stay, *saved[num_old:]], preserved, gone
