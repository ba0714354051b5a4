"""Which checkpoints stay, as literal tables: small integers are numbers and seconds alike."""

from typing import Any

import pytest

from replicant.checkpoint._retention import Saved, best_of, divided

NAN = float("nan")


@pytest.mark.parametrize(
    ("numbers", "options", "stay", "preserved", "gone"),
    [
        ([1, 2, 3], {"max_to_keep": None}, [1, 2, 3], [], []),
        ([], {"max_to_keep": 1}, [], [], []),
        ([1], {"max_to_keep": 1}, [1], [], []),
        ([1, 2, 3], {"max_to_keep": 5}, [1, 2, 3], [], []),
        ([1, 2, 3, 4], {"max_to_keep": 2}, [3, 4], [], [1, 2]),
        ([10, 20, 30], {"max_to_keep": 1, "keep_every_seconds": 100}, [30], [], [10, 20]),
        ([10, 20, 30], {"max_to_keep": 1, "keep_every_seconds": 20}, [30], [20], [10]),
        ([10, 20, 30, 40, 50], {"max_to_keep": 1, "keep_every_seconds": 20}, [50], [20, 40], [10, 30]),
        ([10, 20, 30], {"max_to_keep": 1, "keep_every_seconds": 20, "last_preserved": 5}, [30], [], [10, 20]),
        ([10, 20, 30], {"max_to_keep": 1, "keep_every_seconds": 0}, [30], [10, 20], []),
    ],
)
def test_newest_and_one_per_period_stay(numbers: Any, options: Any, stay: Any, preserved: Any, gone: Any) -> None:
    saved = [Saved(number, saved_at=number) for number in numbers]
    rules = {"keep_every_seconds": None, "last_preserved": 0, "mode": None, **options}
    assert [[each.number for each in part] for part in divided(saved, **rules)] == [stay, preserved, gone]


@pytest.mark.parametrize(
    ("metrics", "mode", "best"),
    [
        ([], "min", None),
        ([None, NAN], "min", None),
        ([3.0, 1.0, 2.0], "min", 2),
        ([3.0, 1.0, 2.0], "max", 1),
        ([1.0, 1.0, 2.0], "min", 2),
        ([NAN, 5.0, None], "max", 2),
        ([-1.0, 0.0, -2.0], "min", 3),
    ],
)
def test_the_best(metrics: Any, mode: Any, best: int | None) -> None:
    found = best_of([Saved(i + 1, 0.0, metric) for i, metric in enumerate(metrics)], mode)
    assert (found and found.number) == best


def test_the_best_stays_besides_the_newest_until_there_is_a_better_one() -> None:
    saved: list[Saved] = []
    kept = []
    for number, metric in enumerate([0.5, 0.1, 0.4, 0.3, 0.05, 0.2, 0.2, 0.2], 1):
        saved, _, _ = divided(
            [*saved, Saved(number, number, metric)], max_to_keep=2, keep_every_seconds=None, last_preserved=0, mode="min"
        )
        kept.append([each.number for each in saved])
    assert kept == [[1], [1, 2], [2, 3], [2, 3, 4], [4, 5], [5, 6], [5, 6, 7], [5, 7, 8]]
