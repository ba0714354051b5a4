"""`explain(profile=True)`: what each stage took, and which one binds."""

import itertools
import re
import threading
import time

import numpy as np
import pytest

from replicant.data import Dataset, TextLineDataset
from replicant.errors import DatasetError
from replicant.input._profile import InputProfile, StageProfile
from replicant.input.adapters import as_dataset

PAUSE = 0.004


def slow(x):
    time.sleep(PAUSE)
    return int(x)


def rejecting(x):
    time.sleep(PAUSE)
    return x % 2 == 0


def stages(dataset):
    profile = dataset.explain(profile=True).profile
    return profile, {stage.label: stage for stage in profile.stages}


def test_what_is_printed():
    stage = StageProfile("map(f)", 0.4, 2, "Give it threads.")
    profile = InputProfile(100, 0.5, (StageProfile("TextLineDataset()", 0.05, 1, "Read less."), stage))
    assert profile.binding is stage
    assert str(profile) == (
        "Input profile: 100 batches in 0.5 s, 5 ms for each\n"
        "  TextLineDataset()      0.500 ms per batch  #####\n"
        "  map(f)                 4.000 ms per batch  #################### in 2 threads\n"
        "  map(f) binds. Steps that take longer than 5 ms do not wait for it. Give it threads."
    )
    assert str(InputProfile(0, 0.0, ())) == "Input profile: there was nothing to read"


def test_a_slow_function_binds_with_and_without_threads(tmp_path):
    (tmp_path / "a").write_text("".join(f"{i}\n" for i in range(40)))
    lines = TextLineDataset(tmp_path / "a")
    for dataset, threads, advice in (
        (lines.map(slow).batch(4), 1, r"^Give it threads: num_parallel_calls=replicant\.data\.AUTOTUNE"),
        (lines.map(slow).batch(4).prefetch(2), 1, "^Give it threads"),
        (lines.map(slow, num_parallel_calls=3).batch(4), 3, "^It has threads: make its function cheaper"),
        (lines.filter(lambda line: rejecting(int(line))).batch(4), 1, "^Put it before the stages whose results it leaves out"),
    ):
        profile, found = stages(dataset)
        assert profile.num_elements == (5 if "filter" in advice or "Put it" in advice else 10)
        assert profile.binding.label.startswith(("map(slow)", "filter("))
        assert profile.binding.seconds >= 40 * PAUSE
        assert profile.binding.num_threads == threads
        assert re.search(advice, profile.binding.advice)
        others = [stage.seconds for label, stage in found.items() if stage is not profile.binding]
        assert sum(others) < profile.binding.seconds
        assert found["TextLineDataset()"].advice.startswith("Read several files at a time")


def test_a_stage_that_waits_for_threads_does_not_work():
    profile, found = stages(Dataset.range(40).map(slow).prefetch(4).batch(4).prefetch(1))
    assert found["prefetch(4)"].seconds == found["prefetch(1)"].seconds == 0
    assert found["batch(4)"].seconds < found["map(slow)"].seconds
    assert profile.seconds >= 40 * PAUSE


def test_it_stands_in_the_plan_and_reads_no_more_than_100():
    read = []

    def numbers():
        for i in itertools.count():
            read.append(i)
            yield i

    plan = Dataset.from_generator(numbers, output_signature=Dataset.range(1).element_spec).batch(2).explain(2, profile=True)
    assert plan.profile.num_elements == 100
    assert read == list(range(200))
    lines = str(plan).splitlines()[-4:]
    assert lines[0].startswith("Input profile: 100 batches in ")
    assert [line.strip().partition("(")[0] for line in lines[1:3]] == ["from_generator", "batch"]
    assert lines[3].startswith(f"  {plan.profile.binding.label} binds. Steps that take longer than ")
    assert lines[3].endswith(plan.profile.binding.advice)
    assert plan.to_dict()["profile"]["num_elements"] == 100
    assert Dataset.range(2).explain().profile is None
    assert str(Dataset.range(0).batch(2).explain(profile=True)).endswith("there was nothing to read")


def test_later_orders_and_caches_are_not_touched():
    def make():
        calls = []
        dataset = Dataset.range(12).map(lambda x: (calls.append(int(x)), x)[1]).shuffle(12, seed=1).cache().shuffle(5, seed=2)
        return dataset.interleave(lambda x: Dataset.range(int(x), int(x) + 2).shuffle(2, seed=3), 2), calls

    dataset, calls = make()
    other, _ = make()
    wanted = [list(other), list(other)]
    assert dataset.explain(profile=True).profile.num_elements == 24
    assert calls.count(11) == 1
    assert [list(dataset), list(dataset)] == wanted
    assert calls.count(11) == 2  # the cache had kept nothing
    dataset.explain(profile=True)
    assert calls.count(11) == 2  # and what it keeps now is used


def test_threads_end_and_errors_come_out():
    before = set(threading.enumerate())
    dataset = Dataset.range(1000).map(lambda x: x, num_parallel_calls=2).prefetch(3).batch(2).prefetch(2)
    dataset.explain(profile=True)
    deadline = time.monotonic() + 10
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before

    def broken(x):
        raise ValueError("this function is broken")

    with pytest.raises(ValueError, match="this function is broken"):
        Dataset.range(3).map(broken).explain(profile=True)


def test_elements_of_other_libraries_are_not_used_up():
    taken = []
    dataset = as_dataset(taken.append(i) or np.ones(2) for i in range(3))
    dataset.explain()  # looks at the first element, and keeps it
    before = list(taken)
    with pytest.raises(DatasetError, match=r"explain\(profile=True\) reads elements, and those of a .* might be used up\."):
        dataset.explain(profile=True)
    assert taken == before
    assert len(list(dataset)) == 3
