"""`iterator.stats().epochs_by_source`: how often each source of a mixture was read, at the consumer's place."""

import json
import threading

import pytest

from replicant.data import AutoShardPolicy, Dataset, DistributedDataset, InputOptions, Options, TextLineDataset
from replicant.input.distributed._stats import InputStats
from replicant.input.transforms.mixtures._epochs import epochs_by_source
from replicant.replicas._topology import Topology

ALONE = Topology()


def distributed(dataset, topology=ALONE, exchange=None, **options):
    return iter(DistributedDataset(dataset, topology, lambda rows, sizes: rows, InputOptions(**options), exchange=exchange))


def numbers(*choices):
    return Dataset.from_tensor_slices(list(choices))


def choose(parts, *choices, **kwargs):
    return Dataset.choose_from_datasets(parts, numbers(*choices).repeat(), **kwargs)


def odd(x):
    return x % 2 == 1


@pytest.fixture
def lines(tmp_path):
    (tmp_path / "lines").write_text("".join(f"{i}\n" for i in range(6)))
    return TextLineDataset(tmp_path / "lines")


FOUR, TEN = Dataset.range(4), Dataset.range(10)
CASES = {  # dataset, batches of 3 to take, epochs of each source
    "lengths are known": (choose([FOUR.repeat(), TEN.repeat()], 0, 1, 0), 5, {"0": 2.5, "1": 0.5}),
    "nothing was read": (choose([FOUR.repeat(), TEN.repeat()], 0, 1, 0), 0, {"0": 0, "1": 0}),
    "a source is never chosen": (choose([FOUR.repeat(), TEN], 0, 0, 0), 2, {"0": 1.5, "1": 0}),
    "a source ends": (choose([FOUR, TEN], 0, 1, stop_on_empty_dataset=False), 4, {"0": 1, "1": 0.8}),
    "an empty source": (choose([Dataset.range(0), TEN], 0, 1, stop_on_empty_dataset=False), 2, {"0": 0, "1": 0.6}),
    "whole passes of what has no length": (choose([TEN.filter(odd).repeat(), TEN], 0), 3, {"0": 1, "1": 0}),
    "no length, no repeat, ended": (choose([TEN.filter(odd), TEN], 0, 1, stop_on_empty_dataset=False), 4, {"0": 0, "1": 0.7}),
    "elements are batches": (choose([FOUR.batch(2).repeat(), TEN.batch(5).repeat()], 0, 1).unbatch(), 7, {"0": 1.5, "1": 1.5}),
    "the mixture is repeated": (choose([FOUR, TEN], 0, 1).take(4).repeat(3), 3, {"0": 1.25, "1": 0.4}),
    "a mixture in a mixture": (
        choose([choose([FOUR.repeat(), TEN.repeat()], 0, 1), FOUR.repeat()], 0, 1),
        8,
        {"0.0": 0, "0.1": 3, "1.0": 1.5, "1.1": 0.6},
    ),
    "two mixtures": (
        Dataset.zip(choose([FOUR.repeat(), TEN], 0), choose([TEN, FOUR.repeat()], 1)).map(lambda x, y: x),
        4,
        {"0.0": 3, "0.1": 0, "1.0": 0, "1.1": 3},
    ),
    "a weight of 0": (Dataset.sample_from_datasets([FOUR, TEN, TEN], [1.0, 0.0, 2.0], seed=1), 4, {"0": 0.75, "2": 0.9}),
    "one is left": (Dataset.sample_from_datasets([FOUR.repeat(), TEN.repeat()], [1.0, 0.0], seed=1), 4, {}),
    "weights by step": (
        Dataset.sample_from_datasets([FOUR.repeat(), TEN.repeat()], [(0, [1.0, 0.0]), (6, [0.0, 1.0])], seed=1),
        3,
        {"0": 1.5, "1": 0.3},
    ),
    "a dataset of weights": (
        Dataset.sample_from_datasets([FOUR.repeat(), TEN.repeat()], numbers([0.0, 1.0]).repeat(), seed=1),
        5,
        {"0": 0, "1": 1.5},
    ),
    "none": (TEN.repeat(), 2, {}),
    "inside a function": (numbers(0, 1).flat_map(lambda _: choose([FOUR, TEN], 0, 1)), 1, {}),
}


@pytest.mark.parametrize("buffer", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_each_source(name, buffer):
    dataset, steps, expected = CASES[name]
    with distributed(dataset.batch(3).prefetch(2), experimental_per_replica_buffer_size=buffer) as iterator:
        for _ in range(steps):
            next(iterator)
        assert iterator.stats().epochs_by_source == pytest.approx(expected)  # of what was returned, not of what waits
        position = json.loads(json.dumps(iterator.state()))
    with distributed(dataset.batch(3).prefetch(2)) as iterator:
        iterator.restore(position)
        assert iterator.stats().epochs_by_source == pytest.approx(expected)


def test_at_the_end(lines):
    mixture = choose([lines.filter(lambda line: int(line) < 3), lines], 0, 1, stop_on_empty_dataset=False)
    with distributed(mixture.batch(2)) as iterator:
        assert len(list(iterator)) == 5
        assert iterator.stats().epochs_by_source == {"0": 0, "1": 0}


def test_workers_that_read_one_sequence_count_all_of_it(lines):
    mixture = choose([lines.repeat(), TEN.map(str).map(str.encode).repeat()], 0, 1).batch(4)
    for worker in range(2):
        with distributed(mixture, Topology(2, worker, 1)) as iterator:
            for _ in range(4):
                next(iterator)
            assert iterator.stats().epochs_by_source == pytest.approx({"0": 1, "1": 0.8})


def test_positions_of_before_count_from_there():
    dataset = choose([FOUR.repeat(), TEN.repeat()], 0, 1)
    iterator = iter(dataset)
    for _ in range(4):
        next(iterator)
    position = json.loads(json.dumps(iterator.state()))
    assert epochs_by_source([dataset.node], position) == {"0": 0.5, "1": 0.2}
    (mixture,) = [each for each in _dicts(position) if "given_by_source" in each]
    del mixture["given_by_source"], mixture["passes_by_source"]
    iterator.restore(position)
    assert [next(iterator) for _ in range(2)] == [2, 2]
    assert epochs_by_source([dataset.node], iterator.state()) == {"0": 0.25, "1": 0.1}


def _dicts(value):
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _dicts(each)
    if isinstance(value, dict):
        yield value


def test_they_are_shown_and_written():
    stats = InputStats(4, 256, 2.0, 0.5, 1, 2, epochs_by_source={"0": 2.5, "1": 0.125})
    assert str(stats).endswith("1 of 2 elements ready, epochs by source 0: 2.50, 1: 0.12")
    assert (stats.scalars()["input/epochs/0"], stats.scalars()["input/epochs/1"]) == (2.5, 0.125)
    assert (stats - InputStats(2, 128, 1.0, 0.5, 1, 2, epochs_by_source={"0": 1.0})).epochs_by_source == stats.epochs_by_source


def test_by_files_each_worker_counts_passes_over_its_own(tmp_path):
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.FILE
    parts = []
    for part in "ab":
        for i in range(2):
            (tmp_path / f"{part}{i}").write_text("x\n" * (4 + 2 * i))
        parts.append(TextLineDataset([str(tmp_path / f"{part}{i}") for i in range(2)]).repeat())
    dataset = Dataset.sample_from_datasets(parts, [0.5, 0.5], seed=1).batch(4).with_options(options)
    meeting, values, found = threading.Barrier(2), {}, {}

    def work(worker):
        def exchange(value):
            values[worker] = value
            meeting.wait(30)
            both = [values[0], values[1]]
            meeting.wait(30)
            return both

        with distributed(dataset, Topology(2, worker, 1), exchange=exchange) as iterator:
            for _ in range(10):  # 20 elements of this worker: 12 and 8
                next(iterator)
            found[worker] = iterator.stats().epochs_by_source

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {0: {"0": 2, "1": 1}, 1: {"0": 1, "1": 1}}  # a pass is whole when the next one begins
