"""Local SGD over real workers: compared with NumPy, with one device, and with itself after an interruption."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # test folders are no packages

import _group  # noqa: E402

WORKERS = [2, pytest.param(3, marks=pytest.mark.slow)]
DILOCO = {"outer_learning_rate": 0.7, "outer_momentum": 0.9}
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(26, 4)).astype(np.float32), rng.normal(size=(26, 1)).astype(np.float32)
BATCHES = [7, 4, 0]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """``answers(workers, local_steps, outer, parts)`` is what the workers wrote."""
    known = {}

    def of(workers, steps, outer, parts):
        key = workers, steps, json.dumps(outer), parts
        if known.get(key) == "failed":
            pytest.fail("this group of workers failed in an earlier test")
        if key not in known:
            known[key] = "failed"
            folder = tmp_path_factory.mktemp("group")
            arguments = [str(steps), json.dumps(outer), parts]
            known[key] = _group.Group(HERE / "_worker_local_sgd.py", workers, folder, arguments).ended_well()
        return known[key]

    return of


def gradient(w, rows):
    x, y = X[rows].astype(np.float64), Y[rows].astype(np.float64)
    return 2 * x.T @ (x @ w - y) / len(rows)


def local_sgd(batches, k, rate=1.0, momentum=0.0, epochs=1):
    """The weights and the number of rounds, in float64. `batches` has the rows of each batch of each worker."""
    anchor, speed, rounds = np.full((4, 1), 1.0), np.zeros((4, 1)), 0
    for _ in range(epochs):
        left = [list(each) for each in batches]
        while any(left) or True:
            changes, rows, whole = [], [], True
            for mine in left:
                w, seen = anchor.copy(), 0
                steps, mine[:] = mine[:k], mine[k:]
                for batch in steps:
                    if len(batch):
                        w, seen = w - 0.1 * gradient(w, batch), seen + len(batch)
                whole = whole and len(steps) < k
                changes.append(w - anchor)
                rows.append(seen)
            rounds += 1
            if sum(rows):
                change = sum(c * r for c, r in zip(changes, rows, strict=True)) / sum(rows)
                speed = momentum * speed + change
                anchor = anchor + rate * (change + momentum * speed if momentum else change)
            if whole:
                break
    return anchor, rounds


def shares(workers):
    """The rows of each worker of the global batches 12, 12 and 2."""
    cut = [[], [], []]
    for first, size in ((0, 12), (12, 12), (24, 2)):
        each = -(-size // workers)
        for rank in range(workers):
            cut[rank].append(np.arange(first, first + size)[rank * each : (rank + 1) * each])
    return cut[:workers]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.long
def test_one_local_step_of_sgd_is_one_device(answers, workers):
    w = np.full((4, 1), 1.0)
    for _ in range(2):
        for first, size in ((0, 12), (12, 12), (24, 2)):
            w = w - 0.1 * gradient(w, np.arange(first, first + size))
    for answer in answers(workers, 1, {}, "alike,fit"):
        np.testing.assert_allclose(answer["alike"]["weight"], w, rtol=1e-6, atol=1e-6)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    return _group.Group(HERE / "_worker_local_sgd.py", 1, folder, ["1", "{}", "fit"]).ended_well()[0]["fit"]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.long_cases("2")
def test_one_local_step_of_fit_is_one_device(answers, alone, workers):
    for answer in answers(workers, 1, {}, "alike,fit"):
        found = answer["fit"]
        for name in ("weights", "val_loss", "evaluated", "predicted"):
            for a, b in zip(found[name], alone[name], strict=True):
                np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("part", ["alike", "uneven"])
@pytest.mark.long
def test_rounds_with_momentum_are_those_of_numpy(answers, workers, part):
    if part == "alike":
        w, rounds = local_sgd(shares(workers), 3, 0.7, 0.9, epochs=2)
        steps = [6] * workers if workers == 2 else [6, 6, 4]  # batches without rows are left out
    else:
        batches = [[np.arange(i * (rank + 2), (i + 1) * (rank + 2)) % 26 for i in range(BATCHES[rank])] for rank in range(workers)]
        w, rounds = local_sgd(batches, 3, 0.7, 0.9)
        steps = BATCHES
    for rank, answer in enumerate(answers(workers, 3, DILOCO, "alike,uneven,fit,statistics,resume")):
        np.testing.assert_allclose(answer[part]["weight"], w, rtol=1e-5, atol=1e-5)
        assert answer[part]["count"] == steps[rank]  # integers stay each worker's own
        assert answer[part]["rounds"] == rounds


@pytest.mark.long
def test_rounds_longer_than_the_data(answers):
    w, _ = local_sgd(shares(2), 100, 0.7, 0.9, epochs=2)
    for answer in answers(2, 100, DILOCO, "alike,uneven"):
        np.testing.assert_allclose(answer["alike"]["weight"], w, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.long
def test_after_fit_all_workers_have_the_same_weights(answers, workers):
    first, *others = [answer["fit"] for answer in answers(workers, 3, DILOCO, "alike,uneven,fit,statistics,resume")]
    for other in others:
        assert other == first


@pytest.mark.long
def test_statistics_are_the_mean_of_the_workers(answers):
    first, second = [answer["statistics"] for answer in answers(2, 3, DILOCO, "alike,uneven,fit,statistics,resume")]
    assert first["weights"] == second["weights"]
    wanted = np.zeros(4)
    for rank in range(2):
        mean = np.zeros(4)
        for first_row in (0, 12):
            mean = 0.5 * mean + 0.5 * X[first_row + 6 * rank : first_row + 6 * rank + 6].mean(0)
        wanted += mean / 2
    np.testing.assert_allclose(first["mean"], wanted, rtol=1e-5)
    assert first["seed"] != second["seed"]  # the workers were seeded differently, and go on so


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("part", ["fit", "loop"])
def test_an_interrupted_round_goes_on_bit_for_bit(answers, workers, part):
    for answer in answers(workers, 3, DILOCO, "alike,uneven,fit,statistics,resume"):
        uninterrupted, resumed = answer["resume"][part]
        assert resumed == uninterrupted


def test_a_checkpoint_for_all_workers_is_refused(answers):
    for rank, answer in enumerate(answers(2, 3, DILOCO, "alike,uneven,fit,statistics,resume")):
        assert "would be written by all of them" in answer["resume"]["refused"]
        assert f'"<folder>/worker-{rank}"' in answer["resume"]["refused"]


@pytest.mark.parametrize(
    ("change", "steps"),  # rounds have 3 steps and epochs 5: one begins before steps 0, 3, 5, 8, 10 and 13
    [("older", 10), ("damaged", 10), ("gone", 7), ("foreign", 7)],
)
@pytest.mark.long
def test_all_go_on_from_the_newest_backup_that_all_have(answers, change, steps):
    for rank, answer in enumerate(answers(2, 3, DILOCO, "lost")):
        weights, _ = answer["lost"]["uninterrupted"]
        found, taken, told, left = answer["lost"][change]
        assert taken == steps
        assert left == []
        assert len(told) == (change == "damaged" and rank == 0)
        if change == "gone":  # the other worker's optimizer and random states
            assert found == answers(2, 3, DILOCO, "lost")[0]["lost"][change][0]
        else:
            assert found == weights  # the same bits


@pytest.mark.long
def test_a_worker_that_loops_more_often_is_told(tmp_path):
    group = _group.Group(HERE / "_worker_local_sgd.py", 2, tmp_path, ["2", "{}", "rounds_apart"])
    first, second = [each.answer["rounds_apart"] for each in group.wait(120)]
    assert first == "done"
    assert second.startswith("WorkerLostError")
    assert "worker 0" in second
