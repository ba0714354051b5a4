"""MultiWorkerMirroredStrategy in real processes: W workers with R devices each, against one device and one process.

One group of processes runs many cases; what each worker wrote is compared here.
"""

import json
import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest

import replicant

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # test folders are no packages

import _group  # noqa: E402
import _training  # noqa: E402

CASES = {
    (2, 1): "values loop dropout unseeded fit own_step own_data checkpoints callbacks summaries",
    (3, 1): "values loop fit own_step",
    (2, 2): "values loop fit own_step own_data meshes",
}
FIRST = {  # what the cases that `make test` runs ask for
    (2, 1): "values loop dropout unseeded fit own_step checkpoints callbacks summaries",
    (2, 2): "values own_data meshes",
}
RUNS_ALL = "1" in (os.environ.get("REPLICANT_TEST_SLOW"), os.environ.get("REPLICANT_TEST_FULL"))
ALL = [pytest.param(shape, id=f"{shape[0]}x{shape[1]}") for shape in CASES]
TENSORFLOW = [(3, 1), (2, 2)]  # these find each other as TensorFlow's do


def tf_config(rank, ports):
    """The variables of one of the workers, described as TensorFlow does: a chief and workers."""
    addresses = [f"127.0.0.1:{port}" for port in ports]
    task = {"type": "worker", "index": rank - 1} if rank else {"type": "chief", "index": 0}
    config = {"cluster": {"chief": addresses[:1], "worker": addresses[1:]}, "task": task}
    return {"TF_CONFIG": json.dumps(config), "JAX_PROCESS_ID": None, "JAX_NUM_PROCESSES": None, "JAX_COORDINATOR_ADDRESS": None}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What the workers of a group wrote, in order, and the folder where they wrote files."""
    known = {}

    def of(shape):
        if known.get(shape) == "failed":
            pytest.fail("this group of workers failed in an earlier test")
        if shape not in known:
            known[shape] = "failed"
            folder = tmp_path_factory.mktemp("group")
            (folder / "files").mkdir()
            cases = CASES[shape] if RUNS_ALL else FIRST[shape]
            environ = {"DEVICES": str(shape[1]), "CASES": cases, "FOLDER": str(folder / "files")}
            ports = [_group.free_port() for _ in range(shape[0])]

            def variables(rank):
                return environ | (tf_config(rank, ports) if shape in TENSORFLOW else {})

            group = _group.Group(HERE / "_worker_training.py", shape[0], folder, environ=variables)
            known[shape] = group.ended_well(), folder / "files"
        return known[shape]

    return of


@pytest.fixture(scope="module")
def one_device():
    """The same training without a strategy."""
    programs = {"loop": _training.custom_loop, "fit": _training.fit, "own_step": _training.own_step}
    return {name: program(replicant.get_strategy()) for name, program in programs.items()}


def near(actual, expected, tolerance=1e-5):
    """Whether two nested structures of numbers agree."""
    if isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(near(actual[key], expected[key], tolerance) for key in expected)
    if isinstance(expected, list) and expected and isinstance(expected[0], list):
        return len(actual) == len(expected) and all(near(a, b, tolerance) for a, b in zip(actual, expected, strict=True))
    return np.shape(actual) == np.shape(expected) and np.allclose(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.cases("loop-2x1", "fit-2x1", "own_step-2x1")
@pytest.mark.parametrize("shape", ALL)
@pytest.mark.parametrize("case", ["loop", "fit", "own_step"])
def test_training_equals_one_device_on_every_worker(answers, one_device, shape, case):
    for answer in answers(shape)[0]:
        assert near(answer[case], one_device[case])


@pytest.mark.cases("2x1")
@pytest.mark.parametrize("shape", ALL)
def test_all_workers_hold_the_same(answers, shape):
    first, *others = answers(shape)[0]
    for other in others:
        for case in set(first) & {"loop", "dropout", "unseeded", "fit", "own_step", "callbacks"}:
            assert other[case] == first[case], case  # the same bits


@pytest.mark.cases("2x1", "2x2")
@pytest.mark.parametrize("shape", ALL)
@pytest.mark.long_cases("2x2")
def test_run_reduce_gather_and_variables(answers, shape):
    workers, replicas = shape
    n = workers * replicas
    rows = [[float(i)] * 2 for i in range(n) for _ in range(i + 1)]
    for worker, answer in enumerate(answers(shape)[0]):
        own_ids = list(range(worker * replicas, (worker + 1) * replicas))
        assert answer["values"] == {
            "sum": sum(range(n)),
            "mean of rows": pytest.approx(np.mean(rows)),
            "gather": rows,
            "total": n + sum(range(n)),
            "own": 11.0 * sum(range(n)),
            "all_reduce": (n - 1) / 2,
            "all_gather": list(map(float, range(n))),
            "ragged": [[2 * x for x in row] for row in rows],
            "local": [i + 1.0 for i in own_ids],  # of this worker's replicas, as in TensorFlow
            "local stairs": [i + 1 for i in own_ids],
            "assigned": 7.0 + n,
        }


@pytest.mark.cases("2x2")
@pytest.mark.parametrize("shape", [shape for shape in ALL if "own_data" in CASES[shape.values[0]]])
def test_each_worker_its_own_data(answers, shape):
    """As TensorFlow gives them for one replica per worker; with more, cut as documented."""
    workers, replicas = shape
    found = [answer["own_data"] for answer in answers(shape)[0]]
    share = -(-4 // (workers * replicas))
    assert found[0]["off"][0] == [list(range(i * share, (i + 1) * share)) for i in range(replicas)]
    assert all(own["off"] == found[0]["off"] for own in found)  # every worker has all elements
    lengths = [3 + 4 * worker for worker in range(workers)]
    for worker, own in enumerate(found):
        seen = [row for step, _ in own["uneven"] for rows in step for row in rows]
        assert seen == list(range(lengths[worker]))
        assert [gathered for _, gathered in own["uneven"]] == [gathered for _, gathered in found[0]["uneven"]]
        assert len(own["uneven"]) == max(math.ceil(math.ceil(length / 2) / replicas) for length in lengths)
        assert own["rest"][0] == own["rest"][1]  # go on from a saved position: each worker at its own
    everybody = [row for own in found for rows in own["unseeded"] for row in rows]
    assert sorted(everybody) == list(range(20))  # nothing twice, nothing never, although no shuffle had a seed
    names = [name for own in found for names, _ in own["texts"] for rows in names for name in rows]
    assert sorted(names) == [f"row {i}" for i in range(5)]
    assert [total for _, total in found[0]["texts"]] == [0 + 1 + 2 + 3, 4]


def test_a_mesh_that_the_user_has_set_changes_nothing(answers):
    """Also one of all workers' devices with Explicit axes, of which each worker has a part."""
    expected = [1.0 + 6, [1 + 6 - 2 + 1.0] * 3, [1 + 6 - 2.0] * 3, [0.0, 2.0, 4.0, 6.0]]
    assert [answer["meshes"] for answer in answers((2, 2))[0]] == [[expected] * 3] * 2


def test_random_numbers_do_not_depend_on_the_spread_over_workers(answers):
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=False)
    in_one_process = _training.custom_loop(strategy, dropout=0.4)
    for answer in answers((2, 1))[0]:
        assert near(answer["dropout"], in_one_process)


def test_without_seeds_all_workers_start_with_the_chiefs_values(answers):
    first, second = answers((2, 1))[0]
    assert first["unseeded"] == second["unseeded"]
    assert first["unseeded"]["losses"] != first["loop"]["losses"]


def test_checkpoints_are_written_once_and_restored_everywhere(answers):
    found, folder = answers((2, 1))
    for answer in found:
        assert answer["checkpoints"] == {
            "paths": ["ckpt-1", "ckpt-2", "ckpt-3"],
            "restored": "ckpt-3",
            "counter": 5.0,
            "own": 1.0,
            "found": ["ckpt-2", "ckpt-3"],
            "copies": [float(found.index(answer))],
        }
    counter = replicant.Variable(0.0)
    replicant.Checkpoint(counter=counter).restore(folder / "checkpoints" / "ckpt-2").expect_partial()
    assert float(counter) == 3.0  # the chief's, by a process on its own


def test_fit_goes_on_after_an_interruption_and_only_the_chief_writes(answers):
    found, folder = answers((2, 1))
    for answer in found:
        assert answer["callbacks"]["resumed"] == answer["callbacks"]["plain"]  # the same program: the same bits
    written = sorted(path.name for path in folder.iterdir() if path.name not in ("checkpoints", "summaries"))
    assert written == ["plain-0.csv", "plain-0.weights.h5", "resumed-0.csv", "resumed-0.weights.h5"]


def test_only_the_chief_writes_summaries(answers):
    found, folder = answers((2, 1))
    assert [answer["summaries"] for answer in found] == [[True, True], [False, True]]
    assert len(list((folder / "summaries").iterdir())) == 1


def test_the_chief_is_known(answers):
    assert [answer["chief"] for answer in answers((2, 1))[0]] == [[True] * 3, [False] * 3]
