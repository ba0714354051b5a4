"""Mixtures: the draws depend on seed and step alone, so any number of workers sees one sequence, and may change on the way."""

import itertools
import json

import numpy as np
import pytest

from replicant.data import AutoShardPolicy, Dataset, DistributedDataset, TextLineDataset
from replicant.replicas._topology import Topology


@pytest.fixture
def mixture(tmp_path):
    """Make a function of nothing that returns the global batches of two sources of four files each."""
    for source, number in itertools.product("ab", range(4)):
        (tmp_path / f"{source}{number}.txt").write_text("".join(f"{source}{number}{line}\n" for line in range(5)))

    def make():
        sources = [TextLineDataset(sorted(map(str, tmp_path.glob(f"{source}*")))) for source in "ab"]
        return Dataset.sample_from_datasets(sources, [0.7, 0.3], seed=3).batch(6)

    return make


def opened(dataset, num_workers, position=None):
    topologies = [Topology(num_workers, worker, 1) for worker in range(num_workers)]
    iterators = [iter(DistributedDataset(dataset(), each, lambda rows, sizes: rows)) for each in topologies]
    if position is not None:
        for iterator in iterators:
            iterator.restore(position)
    return iterators


def read(iterators, steps=None):
    """The global batches of some steps, or of all that are left."""
    shares = [list(itertools.islice(iterator, steps)) for iterator in iterators]
    return [[row for part in parts for row in part.tolist()] for parts in zip(*shares, strict=True)]


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_any_number_of_workers_sees_one_sequence(mixture, num_workers):
    assert read(opened(mixture, num_workers)) == [batch.tolist() for batch in mixture()]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3), (3, 1)])
@pytest.mark.parametrize("step", [0, 1, 4, 7])
def test_another_number_of_workers_goes_on(mixture, before, after, step):
    workers = opened(mixture, before)
    first = read(workers, step)
    position = json.loads(json.dumps(workers[0].state()))
    for worker in workers:
        worker.close()
    assert first + read(opened(mixture, after, position)) == [batch.tolist() for batch in mixture()]


def test_the_plan_says_why_and_file_is_done_as_asked(mixture):
    plan = mixture().explain(num_workers=2)
    assert (plan.policy, plan.reason) == (
        AutoShardPolicy.DATA,
        "`sample_from_datasets` draws one sequence, whatever the number of workers",
    )
    assert mixture().explain(num_workers=2, policy=AutoShardPolicy.FILE).policy is AutoShardPolicy.FILE


@pytest.mark.parametrize("weights", [[1e308, 1e308], [5e-324, 5e-324], [1e308, 1e308, 1e308]])
def test_extreme_weights_are_ratios(weights):
    parts = [Dataset.from_tensors(np.int64(number)).repeat() for number in range(len(weights))]
    ones, others = (Dataset.sample_from_datasets(parts, each, seed=1).take(200) for each in (weights, [1.0] * len(weights)))
    assert list(ones) == list(others)
    as_dataset = Dataset.from_tensors(np.array(weights)).repeat()
    assert list(Dataset.sample_from_datasets(parts, as_dataset, seed=1).take(200)) == list(others)


def test_a_rare_dataset_that_is_left_alone_takes_one_draw_per_element():
    dataset = Dataset.sample_from_datasets([Dataset.range(3), Dataset.range(10, 13)], [1.0, 1e-12], seed=1)
    with iter(dataset) as iterator:
        assert [int(x) for x in itertools.islice(iterator, 5)] == [0, 1, 2, 10, 11]
        position = json.loads(json.dumps(iterator.state()))
        assert [int(x) for x in iterator] == [12]
    assert position["position"]["drawn"] == 6  # one of them found that the first had ended
    again = iter(dataset)
    again.restore(position)
    assert [int(x) for x in again] == [12]
