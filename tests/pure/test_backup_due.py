"""When a backup is due after so much time: the workers ask the chief's clock about once a second, not at every step."""

import itertools
import types

import pytest

from replicant.keras.callbacks import _backup


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves; `questions` are the times at which all workers asked."""
    made = types.SimpleNamespace(now=0.0, questions=[])

    def chiefs(label, make):
        made.questions.append(made.now)
        return make()

    monkeypatch.setattr(_backup, "time", types.SimpleNamespace(monotonic=lambda: made.now))
    monkeypatch.setattr(_backup, "chiefs", chiefs)
    return made


def backups(clock, amount, lengths):
    """At which times backups are made, in steps of these lengths."""
    due, made = _backup._Due("seconds", amount), []
    for length in lengths:
        clock.now += length
        if due.steps(1):
            made.append(clock.now)
            due.saved()
    return made


def test_workers_ask_about_once_a_second(clock):
    made = backups(clock, 600.0, [0.01] * 120_300)
    assert made == pytest.approx([600.0, 1200.0], abs=2.5)
    assert len(clock.questions) < 1.1 * 1200 + 30


def test_steps_that_become_slower_are_asked_about_more_often(clock):
    made = backups(clock, 10.0, [0.01] * 500 + [1.0] * 200)
    assert 10.0 <= made[0] <= 10.0 + 101  # the steps that nobody was to ask about
    assert all(later - earlier <= 12.0 for earlier, later in itertools.pairwise(made[1:]))


def test_a_short_time_is_kept(clock):
    assert backups(clock, 0.001, [0.01] * 5) == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05])
    made = backups(clock, 0.5, [0.1] * 20)
    assert len(made) >= 3
    assert all(0.49 < later - earlier < 0.81 for earlier, later in itertools.pairwise(made))
