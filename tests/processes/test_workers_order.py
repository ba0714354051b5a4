"""Two real workers that look at their datasets on their own, as often as they like, see every example once in each epoch."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # test folders are no packages

import _group  # noqa: E402
import _pipelines  # noqa: E402

pytestmark = pytest.mark.long

QUIET = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
FULL = os.environ.get("REPLICANT_TEST_FULL") == "1"
SLOW = os.environ.get("REPLICANT_TEST_SLOW") == "1"
COUNT = 150 * min(20, int(os.environ.get("REPLICANT_TEST_RUNS", "20"))) if FULL else 150 if SLOW else 50


def drawn(count: int) -> list[dict]:
    """The same pipelines every time."""
    plans: list[dict] = []

    @settings(max_examples=count, derandomize=True, phases=[Phase.generate], suppress_health_check=QUIET, database=None)
    @given(_pipelines.pipelines())
    def collect(plan):
        plans.append(plan)

    collect()
    return plans


@pytest.fixture(scope="module")
def plans():
    """The pipelines that both workers read."""
    return drawn(COUNT)


@pytest.fixture(scope="module")
def answers(plans, tmp_path_factory):
    """What both workers wrote."""
    folder = tmp_path_factory.mktemp("order")
    (folder / "plans.json").write_text(json.dumps(plans))
    (folder / "files").mkdir()
    for size in {plan["size"] for plan in plans}:
        _pipelines.write_files(folder / "files", size)
    environ = {"PLANS": str(folder / "plans.json"), "FOLDER": str(folder / "files")}
    return _group.Group(HERE / "_worker_order.py", 2, folder, environ=environ).ended_well(1800.0)


@pytest.mark.again
def test_every_example_once_per_epoch(plans, answers):
    failures = []
    for plan, one, other in zip(plans, answers[0]["epochs"], answers[1]["epochs"], strict=True):
        wrong = [error for error in (one["error"], other["error"]) if error]
        for epoch, (mine, its) in enumerate(zip(one["seen"], other["seen"], strict=True)):
            if sorted(mine + its) != _pipelines.expected(plan):
                wrong.append((epoch, mine, its))
        if wrong:
            failures.append((plan, wrong))
    assert not failures, f"{len(failures)} of {len(plans)}, the first: {failures[0]}"
    assert {plan["source"] for plan in plans} == {"arrays", "files", "listed files", "interleaved files", "generator"}
    assert all(len(answer["epochs"][0]["seen"]) == 3 for answer in answers)


SAID = {  # on both workers, but for the one whose own cache is refused
    "order of files": r"different lists of files \(names: 4 on worker 0, 4 on worker 1\).* number 0: '.*-0\.txt' on .* 0, '.*-3",
    "number of files": r"\(names: 4 on worker 0, 3 on worker 1\).* number 3: '.*-3\.txt' on worker 0, nothing on worker 1\. Give",
    "sizes of files": (
        r"different files with the same name: '.*12-2\.txt' is 7 bytes on worker 0, 2 bytes on worker 1\. Copy the data"
    ),
    "arrays": r"different data: the values of from_tensor_slices\(1000 x int64\[\]\) on worker 1 differ from those on worker 0",
    "floats": r"different data: the values of from_tensor_slices\(1000 x float32\[\]\) on worker 1 differ from those on worker 0",
    "shards": r"not the same.*: .*shard\(2, 0\) > batch\(2\) on worker 0, .*shard\(2, 1\) > batch\(2\) on worker 1\. Build",
    "policies": r"different auto-shard policies: AUTO on worker 0, OFF on worker 1\. Set the same",
    "generators": r"from_generator\(.*\), part 0 of the pipeline, draws from a random generator whose state on worker 1 differs "
    "from that on worker 0",
    "global generators": r"from_generator\(.*, draws from a random generator whose state on worker 1 differs from that on worker 0",
    "caches": r"the function of map\(.*\): its code, its defaults or what it captures differ\. Delete the file",
}


@pytest.mark.parametrize("name", SAID)
def test_a_difference_between_the_workers_has_a_name(answers, name):
    for answer in answers:
        assert re.search(SAID[name], answer["errors"][name]), answer["errors"][name]
    if name == "caches":
        assert answers[0]["errors"][name].startswith("Worker 1 could not begin a pass over its dataset, so this worker cannot")


def test_fit_sees_every_example_once_whoever_looked_at_the_dataset(answers):
    for answer in answers:
        assert answer["fit"] == [-30.0, -60.0]  # the mean of 0 to 15, four times in each epoch
