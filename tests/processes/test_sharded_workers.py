"""FullyShardedStrategy in real processes: W workers with R devices each, against one device, and hostile programs.

One group of processes runs many cases; what each worker wrote is compared here.
"""

import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import replicant

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # test folders are no packages

import _group  # noqa: E402
import _sharded  # noqa: E402

pytestmark = pytest.mark.long

SHAPES = [pytest.param((2, 2), id="2x2"), pytest.param((2, 1), id="2x1", marks=pytest.mark.slow)]
ONCE = ["loop,adam,mlp"]  # what is trained without the slow tests, beside the fit of `model_files`
TRAINED = [
    *[f"{way},{name},mlp" for way in ("loop", "fit") for name in _sharded.OPTIMIZERS],
    *[f"{way},adam,{name}" for way in ("loop", "fit") for name in ("cnn", "transformer")],
]
EACH = {(2, 1): 368, (2, 2): 192}  # bytes of the model; the four numbers of the last bias are too few to be cut
FILES = "own_variables;model_files;checkpoints;goes_on;memory_refused"


def run(folder, shape, cases, model_parallel_size=1):
    """What the workers of a group wrote, in order."""
    (folder / "files" / "model_files").mkdir(parents=True, exist_ok=True)
    environ = {"DEVICES": str(shape[1]), "CASES": cases, "FOLDER": str(folder / "files")}
    environ["MODEL_PARALLEL_SIZE"] = str(model_parallel_size)
    return _group.Group(HERE / "_worker_sharded.py", shape[0], folder, environ=environ).ended_well()


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What each worker wrote for some cases, and the folder where they wrote files. One group for each shape and kind of cases."""
    known, failed = {}, {}

    def of(shape, cases):
        if (shape, cases) in failed:  # it takes a minute to fail again
            pytest.fail(f"the group of {shape} has failed before: {failed[shape, cases]}")
        if (shape, cases) not in known:
            folder = tmp_path_factory.mktemp("group")
            try:
                known[shape, cases] = run(folder, shape, cases), folder / "files"
            except AssertionError as error:
                failed[shape, cases] = str(error)[:1000]
                raise
        return known[shape, cases]

    return of


def near(actual, expected):
    """Whether two nested structures of numbers agree."""
    if isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(near(actual[key], expected[key]) for key in expected)
    if isinstance(expected, list) and any(isinstance(each, list) for each in expected):
        return len(actual) == len(expected) and all(map(near, actual, expected))
    return np.shape(actual) == np.shape(expected) and np.allclose(actual, expected, rtol=1e-5, atol=1e-5)


# Exact


@pytest.mark.parametrize("case", ONCE)
def test_training_equals_one_device(answers, case):
    """The last batch has fewer rows, and the random weights, of one device."""
    expected = _sharded.train(replicant.get_strategy(), case)
    found = answers((2, 2), ";".join([*ONCE, FILES]))[0]
    assert [near(answer[case], expected) for answer in found] == [True, True]


MODEL_AXIS = ["loop,adam,mlp", "loop,adafactor,mlp", "fit,adam,transformer"]


@pytest.mark.slow
def test_a_model_axis_within_each_worker(tmp_path):
    """Two workers with two devices each, which compute one replica together."""
    found = run(tmp_path, (2, 2), ";".join([*MODEL_AXIS, "own_variables", "model_files", "checkpoints"]), model_parallel_size=2)
    for case in MODEL_AXIS:
        expected = _sharded.train(replicant.get_strategy(), case)
        assert [near(answer[case], expected) for answer in found] == [True, True], case


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 2), (2, 1)], ids=["2x2", "2x1"])
@pytest.mark.parametrize("case", [case for case in TRAINED if case not in ONCE])
def test_optimizers_and_models_equal_one_device(answers, case, shape):
    """In a loop, the statistics of BatchNormalization are those of each replica, so it is compared with mirrored replicas."""
    mirrored = replicant.MirroredStrategy([f"cpu:{i}" for i in range(shape[0] * shape[1])])
    expected = _sharded.train(mirrored if case == "loop,adam,cnn" else replicant.get_strategy(), case)
    found = answers(shape, ";".join(case for case in TRAINED if case not in ONCE))[0]
    assert [near(answer[case], expected) for answer in found] == [True, True]


@pytest.mark.parametrize("shape", SHAPES)
def test_variables_are_read_whole_and_kept_in_slices(answers, shape):
    n = shape[0] * shape[1]
    for answer in answers(shape, ";".join([*ONCE, FILES]))[0]:
        found = answer["own_variables"]
        start = np.arange(16).reshape(4, 4)
        stepped = start - n * (n - 1) / 2 / 2  # the replicas' gradients are 0, 1/2, 1, ...
        added = 2 * stepped + 1 - n * (n - 1) / 2 / 2
        assert found["pieces"] == [[4 // n, 4]] * shape[1]
        assert near(found["stepped"], stepped.tolist())
        assert near(found["doubled"], (2 * stepped).tolist())
        assert near(found["added"], added.tolist())
        assert near(found["copies"], [added.tolist()])
        assert near([found["row"], [found["sum"]]], [added[1].tolist(), [float(added.sum() + 16)]])
        assert near(found["function"], (2 * added).tolist())
        assert found["shown"] == "<Variable 'weight' shape=(4, 4) dtype=float32 value=(in slices on all workers)>"


def test_memory_is_that_of_one_process(answers):
    for answer in answers((2, 2), ";".join([*ONCE, FILES]))[0]:
        assert re.fullmatch(
            r"memory works for the devices of one process, but <?FullyShardedStrategy.* spans several\. Use "
            r"strategy\.plan\(fn, args, topology='gpu:8xh100'\), or `replicant plan`, for those\.",
            answer["memory_refused"],
        )


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 2), (2, 1)], ids=["2x2", "2x1"])
@pytest.mark.parametrize("kind", ["sharded", "mirrored"])
def test_micro_batches_equal_whole_batches_on_one_device(tmp_path, kind, shape):
    """In a batch of 8 or 4 rows, a replica has 4, 2 or 1."""
    expected = _sharded.micro_batches(replicant.OneDeviceStrategy("cpu:0"), steps=1)
    environ = {"DEVICES": str(shape[1]), "CASES": "micro_batches", "FOLDER": str(tmp_path), "KIND": kind}
    for answer in _group.Group(HERE / "_worker_sharded.py", shape[0], tmp_path, environ=environ).ended_well():
        assert near(answer["micro_batches"], expected)


@pytest.mark.slow
def test_micro_batches_with_a_model_axis_equal_whole_batches(tmp_path):
    expected = _sharded.micro_batches(replicant.OneDeviceStrategy("cpu:0"), steps=1)
    for answer in run(tmp_path, (2, 2), "micro_batches", model_parallel_size=2):
        assert near(answer["micro_batches"], expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_models_are_saved_once_and_loaded_everywhere(answers, shape, tmp_path):
    expected = _sharded.model_files(replicant.FullyShardedStrategy(["cpu:0"]), str(tmp_path))
    found, folder = answers(shape, ";".join([*ONCE, FILES]))
    n = shape[0] * shape[1]
    for answer in found:
        mine = answer["model_files"]
        table, explained = mine.pop("table"), mine.pop("explained")
        assert table
        assert explained[0].splitlines()[-1] == f"720 bytes in all, {EACH[shape]} on each of {n} devices"
        assert mine.pop("counted") == n
        for key, value in mine.items():
            assert near(value, expected[key]), key
    assert sorted(path.name for path in (folder / "model_files").iterdir()) == [
        "best.keras",
        "counted.weights.h5",
        "function.keras",
        "loop.weights.h5",
        "model.keras",
    ]


@pytest.mark.slow
def test_large_variables_are_never_whole(tmp_path):
    """A worker has slices of them as soon as they are made, loaded or assigned, and trained, with one device's numbers."""
    expected = _sharded.large(replicant.FullyShardedStrategy(["cpu:0"]), str(tmp_path))
    for answer in run(tmp_path, (2, 2), "large"):
        assert answer["large"]["pieces"] == [[[512, 2048]] * 2] * 4
        assert near(answer["large"]["sums"], expected["sums"])


# Checkpoints


@pytest.mark.parametrize("shape", SHAPES)
def test_checkpoints_go_on_with_any_devices(answers, shape):
    found, folder = answers(shape, ";".join([*ONCE, FILES]))
    on_one = _sharded.goes_on(replicant.OneDeviceStrategy("cpu:0"), folder / "checkpoints")
    mirrored = _sharded.goes_on(replicant.MirroredStrategy([f"cpu:{i}" for i in range(4)]), folder / "checkpoints")
    assert near(mirrored, on_one)
    for answer in found:
        assert answer["checkpoints"]["name"] == "ckpt-1"
        n = shape[0] * shape[1]
        parts = {f"slices-{number}.bin": number // shape[1] for number in range(n)}  # and the worker that writes each
        assert answer["checkpoints"]["files"] == sorted(["arrays.bin", "manifest.json", *parts])
        assert [int(writer.split()[1]) for writer in answer["checkpoints"]["writers"]] == list(parts.values())
        assert answer["checkpoints"]["saved"] == answer["checkpoints"]["restored"]
        assert near(answer["goes_on"], on_one)


@pytest.mark.slow
def test_workers_go_on_from_checkpoints_of_other_strategies(tmp_path):
    folder = tmp_path / "files" / "checkpoints"
    _sharded.checkpoints(replicant.MirroredStrategy(["cpu:0", "cpu:1"]), str(folder))
    expected = _sharded.goes_on(replicant.OneDeviceStrategy("cpu:0"), folder)
    for answer in run(tmp_path, (2, 2), "goes_on"):
        assert near(answer["goes_on"], expected)


# Never hang


ALONE = {
    "numpy,steps": "read variables at different times|went on with the next step",
    "ops,end": "has ended its program",
    "callback,end": "went on with the next step",
    "get_weights,late": "waited 8 s in .* for worker 1",
    "save,steps": "do different things at the same time|went on with the next step",
    "checkpoint,steps": "do different things at the same time|went on with the next step",
    "assign,steps": "do different things at the same time",
    "large,steps": "do different things at the same time",
}
READS = ("numpy", "ops", "callback", "get_weights", "save")


@pytest.mark.parametrize("mode", [pytest.param(mode, marks=[] if mode == "numpy,steps" else pytest.mark.slow) for mode in ALONE])
def test_what_the_chief_does_alone_is_an_error(tmp_path, mode):
    environ = {"MODE": mode, "FOLDER": str(tmp_path), "REPLICANT_EXCHANGE_TIMEOUT": "8"}
    group = _group.Group(HERE / "_worker_sharded_alone.py", 2, tmp_path, environ=environ)
    chief, other = group.wait(120)
    assert chief.status == 1, chief.err
    assert re.search(rf"Error: .*({ALONE[mode]})", chief.out, re.DOTALL), chief.out
    if mode.split(",")[0] in READS:
        assert "call numpy(), get_weights(), save() and checkpoint.save() on all workers" in chief.out
    assert other.status == (0 if mode.endswith("end") and mode.startswith("ops") else 1), other.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "message"),
    [
        (
            "differ,steps",
            r"have cut different values into slices\. .*set_random_seed.*\n  worker 0 .*large: \w{8}\n  worker 1 .*large: ",
        ),
        ("keras backup,end", r"fit: BackupAndRestore reads weights on the chief only.* Use replicant\.keras\.callbacks\.BackupAnd"),
    ],
)
def test_what_no_worker_may_do_is_an_error_on_all(tmp_path, mode, message):
    environ = {"MODE": mode, "FOLDER": str(tmp_path)}
    for worker in _group.Group(HERE / "_worker_sharded_alone.py", 2, tmp_path, environ=environ).wait(120):
        assert worker.status == 1, worker.err
        assert re.search(message, worker.out), worker.out


# Faults


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_job_whose_worker_was_killed_goes_on_to_the_same_numbers(tmp_path, killed):
    expected = _sharded.backup(replicant.get_strategy(), str(tmp_path / "one"))
    environ = {
        "DEVICES": "2",
        "CASES": "backup",
        "FOLDER": str(tmp_path / "files"),
        "SLOWLY": "1",
        "REPLICANT_HEARTBEAT_TIMEOUT": "8",
    }
    first = _group.Group(HERE / "_worker_sharded.py", 2, tmp_path, environ=environ)
    first.wait_for_line(killed, "epoch 1 batch 1")
    first.workers[killed].send_signal(signal.SIGKILL)
    began = time.monotonic()
    ended = first.wait(120)
    assert time.monotonic() - began < 40
    assert (ended[killed].status, ended[1 - killed].status) == (-9, 1), ended[1 - killed].err
    second = _group.Group(HERE / "_worker_sharded.py", 2, tmp_path, environ={**environ, "SLOWLY": ""})
    for answer in second.ended_well():
        assert near(answer["backup"], expected)
    assert "epoch 0" not in (tmp_path / "0.out").read_text()  # it went on, and did not begin again
