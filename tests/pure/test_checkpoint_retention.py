"""Which checkpoints stay, as literal tables: small integers are numbers and seconds alike."""

import inspect
from typing import Any

import keras
import pytest

from replicant.checkpoint.policy._metric_direction import direction_of
from replicant.checkpoint.policy._retention import Saved, best_of, bests, divided
from replicant.errors import ArgumentError

NAN = float("nan")
REQUIRED = {"num_classes": 3, "target_class_ids": [0], "recall": 0.5, "precision": 0.5, "specificity": 0.5, "sensitivity": 0.5}


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
    rules = {"keep_every_seconds": None, "last_preserved": 0, **options}
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
        ([1.0, float("-inf"), 2.0], "min", 1),
        ([1.0, float("inf"), NAN], "max", 1),
    ],
)
def test_the_best(metrics: Any, mode: Any, best: int | None) -> None:
    found = best_of([Saved(i + 1, 0.0, metric) for i, metric in enumerate(metrics)], mode)
    assert (found and found.number) == best


def test_the_best_stays_besides_the_newest_until_there_is_a_better_one() -> None:
    saved: list[Saved] = []
    kept = []
    for number, metric in enumerate([0.5, 0.1, 0.4, 0.3, 0.05, 0.2, 0.2, 0.2], 1):
        saved = [*saved, Saved(number, number, metric, "loss", "min")]
        best = bests(saved, "loss", "min")
        saved, _, _ = divided(saved, max_to_keep=2, keep_every_seconds=None, last_preserved=0, best=best)
        kept.append([each.number for each in saved])
    assert kept == [[1], [1, 2], [2, 3], [2, 3, 4], [4, 5], [5, 6], [5, 6, 7], [5, 7, 8]]


def test_the_best_by_every_metric_and_mode_that_was_used_counts() -> None:
    saved = [
        Saved(1, 0, 0.9, "accuracy", "max"),
        Saved(2, 0, 0.1, "accuracy", "max"),
        Saved(3, 0, 7.0, "loss", "min"),
        Saved(4, 0, 8.0, "loss", "min"),
        Saved(5, 0, 1.0),
        Saved(6, 0, 3.0),
        Saved(7, 0, 2.0),  # nobody knows whether 1.0 or 3.0 is the best
        Saved(8, 0, NAN, "loss", "min"),
        Saved(9, 0, None, "loss", "min"),
    ]
    assert sorted(bests(saved, None, None)) == [1, 3, 5, 6]
    assert sorted(bests(saved, "loss", "max")) == [1, 3, 4, 5, 6]
    assert sorted(bests(saved, "accuracy", "min")) == [1, 2, 3, 5, 6]
    assert bests([], "loss", "min") == {}


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("loss", "min"),
        ("val_loss", "min"),
        ("decoder_loss", "min"),
        ("accuracy", "max"),
        ("val_acc", "max"),
        ("sparse_categorical_accuracy", "max"),
        ("head_accuracy_2", "max"),
        ("AUC", "max"),
        ("val_auc_1", "max"),
        ("f1_score", "max"),
        ("mean_io_u", "max"),
        ("mean_squared_error", "min"),
        ("val_mae", "min"),
        ("cosine_similarity", "max"),
        ("negative_log_likelihood", "min"),
        ("log_likelihood", "max"),
        ("perplexity", "min"),
    ],
)
def test_the_name_says_which_way(name: str, mode: str) -> None:
    assert direction_of(name) == mode


@pytest.mark.parametrize(
    "name", ["score", "reward", "", "lr", "inaccuracy", "neg_mean_squared_error", "minus_accuracy", "loss_accuracy", "auc_drop"]
)
def test_a_name_that_does_not_say_it_is_an_error(name: str) -> None:
    message = rf"best_metric='{name}': the name does not say whether more or less is better\. Pass best_mode='max' if"
    with pytest.raises(ArgumentError, match=message):
        direction_of(name)


def test_the_metrics_of_keras_go_the_way_that_keras_says() -> None:
    told = {}
    for kind in vars(keras.metrics).values():
        if isinstance(kind, type) and issubclass(kind, keras.metrics.Metric):
            parameters = inspect.signature(kind.__init__).parameters
            try:
                metric = kind(**{name: value for name, value in REQUIRED.items() if name in parameters})
            except (TypeError, ValueError, NotImplementedError):
                continue  # a base class
            if hasattr(metric, "_direction"):
                told[metric.name] = {"up": "max", "down": "min"}[metric._direction]
    assert len(told) > 25
    assert {name: direction_of(name) for name in told} == told
