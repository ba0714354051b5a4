"""Auto-sharding: who reads what, as literal tables; and the plan that says so."""

import json
import logging
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicant.data import AutoShardPolicy, Dataset, DistributedDataset, Options, ParquetDataset, TextLineDataset
from replicant.errors import ArgumentError, ArgumentTypeError, DatasetError
from replicant.input.distributed import _distributed
from replicant.input.graph._graph import describe
from replicant.input.sharding._rebatch import own_steps
from replicant.replicas._topology import Topology

from ._division import autoshard

AUTO, FILE, DATA, OFF, HINT = (AutoShardPolicy[name] for name in ("AUTO", "FILE", "DATA", "OFF", "HINT"))


def cut(rows, sizes):
    ends = np.cumsum(sizes)
    return [rows[end - size : end].tolist() for end, size in zip(ends, sizes, strict=True)]


def with_policy(dataset, policy):
    options = Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


@pytest.fixture
def steps_of(run_workers):
    """Steps of every worker: steps[worker][step][replica]."""

    def steps(dataset, num_workers, replicas_per_worker, policy):
        dataset = with_policy(dataset, policy)

        def worker_steps(worker, exchange):
            return list(DistributedDataset(dataset, Topology(num_workers, worker, replicas_per_worker), cut, exchange=exchange))

        return run_workers(num_workers, worker_steps)

    return steps


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """files(6, 6): text files of that many lines, which count on."""
    folder = tmp_path_factory.mktemp("lines")

    def make(*sizes):
        first, paths = 0, []
        for number, size in enumerate(sizes):
            paths.append(folder / f"{'-'.join(map(str, sizes))}.{number}.txt")
            paths[-1].write_text("".join(f"{first + i}\n" for i in range(size)))
            first += size
        return [str(path) for path in paths]

    return make


@pytest.mark.parametrize(
    ("num_workers", "replicas", "expected"),  # one row per worker: the batches [0..3], [4..7], [8, 9]
    [
        (1, 1, [[[[0, 1, 2, 3]], [[4, 5, 6, 7]], [[8, 9]]]]),
        (1, 2, [[[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], [9]]]]),
        (2, 1, [[[[0, 1]], [[4, 5]], [[8]]], [[[2, 3]], [[6, 7]], [[9]]]]),
        (2, 2, [[[[0], [1]], [[4], [5]], [[8], [9]]], [[[2], [3]], [[6], [7]], [[], []]]]),
        (3, 1, [[[[0, 1]], [[4, 5]], [[8]]], [[[2, 3]], [[6, 7]], [[9]]], [[[]], [[]], [[]]]]),
        (
            3,
            2,
            [
                [[[0], [1]], [[4], [5]], [[8], [9]]],
                [[[2], [3]], [[6], [7]], [[], []]],
                [[[], []], [[], []], [[], []]],
            ],
        ),
        (4, 1, [[[[0]], [[4]], [[8]]], [[[1]], [[5]], [[9]]], [[[2]], [[6]], [[]]], [[[3]], [[7]], [[]]]]),
        (
            4,
            2,
            [
                [[[0], [1]], [[4], [5]], [[8], [9]]],
                [[[2], [3]], [[6], [7]], [[], []]],
                [[[], []], [[], []], [[], []]],
                [[[], []], [[], []], [[], []]],
            ],
        ),
    ],
)
def test_data(steps_of, num_workers, replicas, expected):
    dataset = Dataset.range(10).batch(4)
    assert steps_of(dataset, num_workers, replicas, DATA) == expected
    assert steps_of(dataset, num_workers, replicas, AUTO) == expected


@pytest.mark.parametrize(
    ("num_workers", "replicas", "expected"),  # files of 0..5 and 6..11, batches of 4; a worker's batch lasts a step per worker
    [
        (1, 1, [[[[0, 1, 2, 3]], [[4, 5, 6, 7]], [[8, 9, 10, 11]]]]),
        (1, 2, [[[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]]]]),
        (2, 1, [[[[0, 1]], [[2, 3]], [[4]], [[5]]], [[[6, 7]], [[8, 9]], [[10]], [[11]]]]),
        (2, 2, [[[[0], [1]], [[2], [3]], [[4], [5]]], [[[6], [7]], [[8], [9]], [[10], [11]]]]),
    ],
)
def test_file(steps_of, files, num_workers, replicas, expected):
    dataset = TextLineDataset(files(6, 6)).map(int).batch(4)
    assert steps_of(dataset, num_workers, replicas, FILE) == expected
    assert steps_of(dataset, num_workers, replicas, AUTO) == expected


@pytest.mark.parametrize(
    ("num_workers", "replicas", "expected"),  # files of 0, 1; 2; 3, 4, 5; 6: worker w reads files w, w + W, ...
    [
        (3, 1, [[[[0]], [[1]], [[6]]], [[[2]], [[]], [[]]], [[[3]], [[4]], [[5]]]]),
        (3, 2, [[[[0], [1]], [[6], []]], [[[2], []], [[], []]], [[[3], [4]], [[5], []]]]),
        (4, 1, [[[[0]], [[1]], [[]]], [[[2]], [[]], [[]]], [[[3]], [[4]], [[5]]], [[[6]], [[]], [[]]]]),
        (4, 2, [[[[0], [1]], [[], []]], [[[2], []], [[], []]], [[[3], [4]], [[5], []]], [[[6], []], [[], []]]]),
    ],
)
def test_files_of_unequal_sizes_end_together(steps_of, files, num_workers, replicas, expected):
    dataset = TextLineDataset(files(2, 1, 3, 1)).map(int).batch(2 if num_workers == 3 else 4)
    assert steps_of(dataset, num_workers, replicas, FILE) == expected


PER_FILE = {  # what may happen to rows on the way, without a number of them in it
    "shuffle": lambda dataset: dataset.shuffle(5, seed=1),
    "map": lambda dataset: dataset.map(lambda x: x + 100),
    "map on threads": lambda dataset: dataset.map(lambda x: x + 100, num_parallel_calls=2),
    "filter": lambda dataset: dataset.filter(lambda x: x % 3 > 0),
    "repeat": lambda dataset: dataset.repeat(2),
    "prefetch": lambda dataset: dataset.prefetch(2),
    "cache": lambda dataset: dataset.cache(),
    "twice": lambda dataset: dataset.flat_map(lambda x: Dataset.from_tensors(x).repeat(2)),
}


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
    st.lists(st.sampled_from(list(PER_FILE)), max_size=5),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 4),
)
@settings(max_examples=100)
@pytest.mark.long
def test_files_are_read_by_one_worker_each_in_its_order(run_workers, files, sizes, names, batch_size, num_workers, replicas):  # noqa: PLR0917
    num_workers = min(num_workers, len(sizes))

    def made(paths):
        dataset = TextLineDataset(paths).map(int)
        for name in names:
            dataset = PER_FILE[name](dataset)
        return dataset.batch(batch_size)

    def rows(worker, exchange):
        dataset = with_policy(made(paths), FILE)
        topology = Topology(num_workers, worker, replicas)
        return list(DistributedDataset(dataset, topology, cut, exchange=exchange))

    paths = files(*sizes)
    shares = run_workers(num_workers, rows)
    assert len({len(steps) for steps in shares}) == 1
    for worker, steps in enumerate(shares):
        own = [row.item() for batch in made(paths[worker::num_workers]) for row in batch]
        assert [row for step in steps for share in step for row in share] == own
    everything = [row.item() for batch in made(paths) for row in batch]
    assert sorted(row for steps in shares for step in steps for share in step for row in share) == sorted(everything)


@pytest.mark.parametrize("policy", [OFF, HINT])
@pytest.mark.parametrize(
    ("num_workers", "replicas", "expected"),  # every worker has all of the batches [0..3], [4, 5]
    [
        (1, 1, [[[0, 1, 2, 3]], [[4, 5]]]),
        (1, 2, [[[0, 1], [2, 3]], [[4], [5]]]),
        (2, 1, [[[0, 1]], [[2, 3]], [[4]], [[5]]]),
        (2, 2, [[[0], [1]], [[2], [3]], [[4], [5]]]),
        (3, 1, [[[0, 1]], [[2, 3]], [[4]], [[5]]]),
        (3, 2, [[[0], [1]], [[2], [3]], [[4], [5]]]),
        (4, 1, [[[0]], [[1]], [[2]], [[3]], [[4]], [[5]]]),
        (4, 2, [[[0], [1]], [[2], [3]], [[4], [5]]]),
    ],
)
def test_off(steps_of, policy, num_workers, replicas, expected):
    assert steps_of(Dataset.range(6).batch(4), num_workers, replicas, policy) == [expected] * num_workers


@given(st.integers(0, 100), st.integers(1, 4), st.integers(1, 4))
def test_own_steps_are_the_chunks_without_steps_that_nobody_has(batch_size, num_workers, replicas):
    topology = Topology(num_workers, 0, replicas)
    steps = own_steps(batch_size, topology)
    assert [start for start, _ in steps] == [sum(map(sum, (sizes for _, sizes in steps[:i]))) for i in range(len(steps))]
    assert sum(sum(sizes) for _, sizes in steps) == batch_size
    assert all(len(sizes) == replicas for _, sizes in steps)
    assert 1 <= len(steps) <= num_workers
    assert batch_size == 0 or all(any(sizes) for _, sizes in steps)


SOURCES = {  # how file names get to a reader, and what worker 1 of 2 then reads of files 0 to 3
    "names": TextLineDataset,
    "parallel": lambda paths: TextLineDataset(paths, num_parallel_reads=2),
    "list_files": lambda paths: TextLineDataset(Dataset.list_files(paths, shuffle=False)),
    "shuffled": lambda paths: TextLineDataset(Dataset.list_files(paths, seed=1)),
    "flat_map": lambda paths: Dataset.from_tensor_slices(paths).flat_map(TextLineDataset),
    "interleave": lambda paths: Dataset.list_files(paths, shuffle=False).interleave(TextLineDataset, cycle_length=2),
    "nested": lambda paths: Dataset.from_tensor_slices(paths).flat_map(lambda name: TextLineDataset(name, num_parallel_reads=1)),
    "mapped": lambda paths: Dataset.from_tensor_slices(paths).map(str).repeat(1).flat_map(TextLineDataset),
    "cached": lambda paths: TextLineDataset(paths).cache().repeat(1),
}


@pytest.mark.parametrize("name", SOURCES)
def test_names_of_files_are_found_wherever_they_come_from(files, name):
    paths = files(2, 1, 3, 1)
    dataset = SOURCES[name](paths)
    list(dataset)  # fills a cache, which must not be the workers'
    for worker, lines in enumerate([[0, 1, 3, 4, 5], [2, 6]]):
        node, sharding = autoshard(dataset.node, 2, worker, AUTO)
        assert (sharding.policy, sharding.files) == (FILE, tuple(paths[worker::2]))
        assert sorted(int(line) for line in Dataset(node)) == lines
    assert autoshard(dataset.node, 1, 0, AUTO)[0] is dataset.node


@pytest.mark.parametrize(
    ("make", "policy", "reason"),
    [
        (lambda paths: Dataset.range(8), DATA, "the dataset reads no files"),
        (lambda paths: Dataset.from_tensor_slices(["a", "b"]), DATA, "the dataset reads no files"),
        (lambda paths: Dataset.list_files(paths).map(len), DATA, "the dataset reads no files"),
        (
            lambda paths: Dataset.zip(TextLineDataset(paths * 2), TextLineDataset(paths * 2)).batch(2),
            DATA,
            "`zip` pairs elements by their places, which shares of files would change",
        ),
        (TextLineDataset, DATA, "3 files cannot be shared among 4 workers"),
        (lambda paths: TextLineDataset(paths[0]), DATA, "1 file cannot be shared among 4 workers"),
        (
            lambda paths: Dataset.zip(TextLineDataset(paths * 2), Dataset.range(8)),
            DATA,
            r"not everything is read from files: range(0, 8, 1) is not",
        ),
        (
            lambda paths: Dataset.zip(TextLineDataset(paths * 2), TextLineDataset(paths)),
            DATA,
            "3 files cannot be shared among 4 workers",
        ),
        (lambda paths: TextLineDataset(paths * 2), FILE, "everything is read from files, and 6 are enough for 4 workers"),
    ],
)
def test_what_auto_decides_and_why(files, make, policy, reason):
    _, sharding = autoshard(make(files(1, 1, 1)).node, 4, 3, AUTO)
    assert (sharding.policy, sharding.reason) == (policy, reason)


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_zip_pairs_what_one_worker_would(steps_of, files, tmp_path, num_workers):
    """The files that are zipped have other sizes, so that shares of them would be other pairs."""
    pq.write_table(pa.table({"x": range(12)}), tmp_path / "x", row_group_size=2)
    pq.write_table(pa.table({"x": range(12)}), tmp_path / "y", row_group_size=4)
    of_groups = Dataset.zip(ParquetDataset(tmp_path / "x"), ParquetDataset(tmp_path / "y")).map(lambda x, y: [x["x"], y["x"]])
    of_files = Dataset.zip(TextLineDataset(files(4, 4, 4)), TextLineDataset(files(2, 4, 6))).map(lambda x, y: [int(x), int(y)])
    for dataset in (of_groups.batch(6), of_files.batch(6)):
        workers = steps_of(dataset, num_workers, 1, AUTO)
        pairs = [pair for step in zip(*workers, strict=True) for (rows,) in step for pair in rows]
        assert pairs == [[i, i] for i in range(12)]
        plan = dataset.explain(num_workers)
        assert plan.is_elastic
        assert "saved positions" not in str(plan)
        assert dataset.explain(num_workers, policy=FILE).is_elastic  # each part keeps its own pairs


def test_other_policies_are_done_as_asked(files):
    node = TextLineDataset(files(6, 6)).node
    names = [
        (autoshard(node, 2, 1, policy)[1].policy, autoshard(node, 2, 1, policy)[1].reason) for policy in (DATA, FILE, OFF, HINT)
    ]
    assert names == [
        (DATA, "AutoShardPolicy.DATA was asked for"),
        (FILE, "AutoShardPolicy.FILE was asked for"),
        (OFF, "AutoShardPolicy.OFF was asked for"),
        (OFF, "AutoShardPolicy.HINT was asked for"),
    ]
    assert autoshard(Dataset.range(3).node, 1, 0, FILE)[1].reason == "there is one worker, which reads everything"


def test_files_that_are_only_listed_are_shared_when_asked(files):
    paths = files(1, 1, 1)
    node, sharding = autoshard(Dataset.list_files(paths, shuffle=False).node, 2, 0, FILE)
    assert list(Dataset(node)) == list(sharding.files) == paths[::2]


@pytest.mark.parametrize("worker", [0, 1, 2])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            TextLineDataset,
            r"FILE cannot share 2 files among 3 workers: each needs at least one\. Write the data to 3 files or more\. Or: Set `o",
        ),
        (lambda paths: TextLineDataset(paths[0]), "FILE cannot share 1 file among 3 workers"),
        (lambda paths: Dataset.range(8), r"among the 3 workers, but range\(0, 8, 1\) reads 0 files\. Set .*AutoShardPolicy\.DATA"),
        (lambda paths: Dataset.zip(TextLineDataset(paths * 2), Dataset.range(8)), r"but range\(0, 8, 1\) reads 0 files"),
        (lambda paths: Dataset.range(8).map(str), r"but range\(0, 8, 1\) reads 0 files"),
    ],
)
def test_file_that_cannot_be_is_refused_at_once_on_every_worker(files, make, message, worker):
    dataset = with_policy(make(files(6, 6)).batch(4), FILE)
    with pytest.raises(DatasetError, match=message):
        DistributedDataset(dataset, Topology(3, worker, 1), cut, exchange=lambda value: [value] * 3)
    with pytest.raises(DatasetError, match=message):
        dataset.explain(num_workers=3)


def test_a_file_that_caches_is_each_workers_own(files, tmp_path):
    dataset = TextLineDataset(files(2, 1, 3, 1)).map(int).cache(str(tmp_path / "lines"))
    for _ in range(2):  # written, then replayed
        for worker, lines in enumerate([[0, 1, 3, 4, 5], [2, 6]]):
            assert list(Dataset(autoshard(dataset.node, 2, worker, FILE)[0])) == lines
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lines.worker-0-of-2", "lines.worker-1-of-2"]


def test_workers_agree_on_the_order_of_shuffles_without_a_seed(run_workers):
    def worker_steps(worker, exchange):
        dataset = Dataset.range(16).shuffle(16).cache().shuffle(16).batch(8)  # every process draws its own entropy
        distributed = DistributedDataset(dataset, Topology(2, worker, 2), cut, exchange=exchange)
        return [list(distributed), list(distributed)]

    for first, second in [[worker[i] for worker in run_workers(2, worker_steps)] for i in range(2)]:
        rows = [row for step in (*first, *second) for chunk in step for row in chunk]
        assert sorted(rows) == list(range(16))
        assert rows != list(range(16))


def test_without_a_way_to_agree_such_shuffles_are_refused():
    shuffled = Dataset.range(8).shuffle(8)
    with pytest.raises(DatasetError, match=r"2 workers would shuffle .* different orders.*`shuffle\(buffer_size, seed=1\)`"):
        DistributedDataset(shuffled.batch(4), Topology(2, 0, 1), cut)
    assert len(list(DistributedDataset(Dataset.range(8).shuffle(8, seed=1).batch(4), Topology(2, 0, 1), cut))) == 2


@pytest.mark.parametrize("policy", [OFF, FILE])
def test_what_can_end_at_different_steps_needs_a_way_to_agree(files, policy):
    dataset = with_policy(TextLineDataset(files(6, 6)).batch(4), policy)
    with pytest.raises(DatasetError, match=r"2 workers may have different numbers of steps.*strategy for several workers"):
        DistributedDataset(dataset, Topology(2, 0, 1), cut)


def test_auto_says_once_what_it_does(caplog, capsys, monkeypatch):
    caplog.set_level(logging.INFO)
    _distributed._inform.cache_clear()
    for worker in (0, 1, 0):
        DistributedDataset(Dataset.range(8).batch(4), Topology(2, worker, 1), cut)
    line = (
        "AutoShardPolicy.AUTO: 2 workers share this dataset by DATA, because the dataset reads no files. Every worker reads "
        "everything and keeps its share of each batch."
    )
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("INFO", line)]
    _distributed._inform.cache_clear()
    monkeypatch.setattr(_distributed._logger, "hasHandlers", lambda: False)  # a program that has not configured logging
    for _ in range(2):
        DistributedDataset(Dataset.range(8).batch(4), Topology(2, 0, 1), cut)
    assert capsys.readouterr().err == f"{line}\n"
    DistributedDataset(with_policy(Dataset.range(8).batch(4), DATA), Topology(2, 0, 1), cut)
    DistributedDataset(Dataset.range(8).batch(4), Topology(1, 0, 2), cut)
    assert capsys.readouterr().err == ""


# The plan


def test_the_plan_of_files(files):
    paths = files(6, 6, 6)
    plan = TextLineDataset(paths).batch(6).explain(num_workers=2, replicas_per_worker=2)
    assert str(plan) == (
        "Input plan: 2 workers, 4 replicas\n"
        "  policy: FILE, because everything is read from files, and 3 are enough for 2 workers\n"
        "  global batches: of 6\n"
        f"  worker 0: replicas 0, 1; reads {paths[0]}, {paths[2]}; rows per batch: 2 + 2, then 2 + 0\n"
        f"  worker 1: replicas 2, 3; reads {paths[1]}; rows per batch: 2 + 2, then 2 + 0"
    )


@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (lambda: Dataset.range(10).batch(4), (4, 2)),
        (lambda: Dataset.range(8).batch(4), (4, None)),
        (lambda: Dataset.range(10).batch(4, drop_remainder=True), (4, None)),
        (lambda: Dataset.range(10).batch(4).map(lambda x: x).cache().prefetch(2), (4, 2)),
        (lambda: Dataset.range(10).repeat().batch(4), (4, None)),
        (lambda: Dataset.range(10).filter(lambda x: x > 3).batch(4), (4, None)),
        (lambda: Dataset.range(10).batch(5).rebatch([3, 1]), (None, None)),
        (lambda: Dataset.from_tensors([1, 2, 3]).repeat(2), (3, None)),
        (lambda: Dataset.from_tensors(([1, 2, 3], [1])).repeat(2), (None, None)),
    ],
)
def test_batch_sizes_of_the_plan(make, sizes):
    plan = make().explain()
    assert (plan.batch_size, plan.last_batch_size) == sizes


@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.sampled_from([DATA, OFF]))
def test_what_the_plan_says_is_what_runs(size, batch, num_workers, replicas, policy):
    dataset = with_policy(Dataset.range(size).batch(batch), policy)
    plan = dataset.explain(num_workers, replicas)
    for worker in range(num_workers):
        distributed = DistributedDataset(
            dataset, Topology(num_workers, worker, replicas), lambda rows, sizes: sizes, exchange=lambda value: [value]
        )
        assert distributed.explain() == plan
        steps = list(distributed)
        if num_workers * replicas == 1:
            continue  # not cut at all
        full, last = plan.workers[worker].steps, plan.workers[worker].last_steps
        assert steps == [sizes for _ in range(size // batch) for sizes in full] + list(last)
        assert plan.workers[worker].replica_ids == Topology(num_workers, worker, replicas).local_replica_ids


@pytest.mark.parametrize(
    ("num_workers", "policy", "said"),
    [
        (1, AUTO, None),
        (2, AUTO, None),
        (4, AUTO, None),
        (1, FILE, None),
        (2, FILE, None),
        (2, OFF, "continue with 2 workers only, because each reads its own part"),
        (1, OFF, "continue with 1 worker only, because each reads its own part"),
        (1, DATA, None),
        (2, DATA, None),
    ],
)
def test_the_plan_says_whether_the_number_of_workers_may_change(files, num_workers, policy, said):
    plan = TextLineDataset(files(2, 2, 2)).batch(2).explain(num_workers, policy=policy)
    check_what_is_said_of_positions(plan, said)


def check_what_is_said_of_positions(plan, said):
    lines = [line for line in str(plan).splitlines() if line.startswith("  saved positions: ")]
    assert lines == ([] if said is None else [f"  saved positions: {said}"])
    assert plan.is_elastic == (said is None)
    assert plan.to_dict()["is_elastic"] == plan.is_elastic


ON_AND_ON = "continue with 2 workers only, because each repeats its own part without end, and {} goes on from one pass to the next"
NO_END = "continue with 2 workers only, because each reads its own part, of which one pass has no end"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda lines: lines.repeat().shuffle(3).batch(2), None),
        (lambda lines: lines.cache().repeat().batch(2).map(len).prefetch(2), None),
        (lambda lines: lines.batch(2, drop_remainder=True).repeat(), None),
        (lambda lines: lines.repeat(2).batch(2, drop_remainder=True), None),
        (lambda lines: lines.repeat().take(5).batch(2), None),
        (lambda lines: lines.repeat(2).repeat().batch(2), None),
        (lambda lines: lines.flat_map(lambda line: Dataset.from_tensors(line).repeat(2)).repeat().batch(2), None),
        (lambda lines: Dataset.zip(lines, lines.repeat()).batch(2), None),
        (lambda lines: lines.repeat().batch(2, drop_remainder=True), ON_AND_ON.format("batch(2, drop_remainder=True)")),
        (lambda lines: lines.repeat().enumerate().batch(2), ON_AND_ON.format("enumerate(0)")),
        (lambda lines: lines.repeat().skip(1).batch(2), ON_AND_ON.format("skip(1)")),
        (lambda lines: Dataset.zip(lines.repeat(), lines.repeat()).batch(2), ON_AND_ON.format("zip")),
        (lambda lines: lines.flat_map(lambda line: Dataset.from_tensors(line).repeat()).batch(2), NO_END),
        (lambda lines: lines.repeat().repeat(2).batch(2), NO_END),
        (lambda lines: lines.flat_map(lambda line: Dataset.from_tensors(line).repeat()).repeat().batch(2), NO_END),
    ],
)
def test_the_plan_names_what_keeps_the_number_of_workers(files, make, said):
    plan = make(TextLineDataset(files(2, 2, 2))).explain(2, policy=FILE)
    check_what_is_said_of_positions(plan, said)


def test_data_that_several_workers_cannot_share_have_positions_for_one(files):
    plan = TextLineDataset(files(2)).batch(2).explain(1, policy=FILE)
    check_what_is_said_of_positions(plan, "continue with 1 worker only, because others cannot share the data at all")


def test_explain_takes_another_policy_and_refuses_nonsense():
    dataset = Dataset.range(8).batch(4)
    assert dataset.explain(2).policy is DATA
    assert dataset.explain(2, policy=OFF).policy is OFF
    with pytest.raises(ArgumentError, match=r"explain: num_workers must be at least 1\. Received: 0"):
        dataset.explain(0)
    with pytest.raises(ArgumentTypeError, match=r"auto_shard_policy must be a .*Received: 'DATA'"):
        dataset.explain(policy="DATA")
    with pytest.raises(ArgumentError, match="explain: replicas_per_worker must be at least 1"):
        dataset.explain(replicas_per_worker=0)
    assert re.match(r"Input plan: 1 worker, 1 replica\n", str(Dataset.from_generator(lambda: iter([])).explain()))


def test_a_position_inside_a_batch_that_lasts_several_steps(files, run_workers):
    dataset = with_policy(TextLineDataset(files(6, 6)).map(int).batch(4), FILE)

    def worker_steps(worker, exchange):
        distributed = DistributedDataset(dataset, Topology(2, worker, 1), cut, exchange=exchange)
        whole = list(distributed)
        for at in range(len(whole) + 1):
            with iter(distributed) as iterator:
                assert [next(iterator) for _ in range(at)] == whole[:at]
                state = json.loads(json.dumps(iterator.state()))
            again = iter(distributed)
            again.restore(state)
            assert list(again) == whole[at:]
        return whole

    assert run_workers(2, worker_steps)[1] == [[[6, 7]], [[8, 9]], [[10]], [[11]]]


def test_the_description_of_a_pipeline_names_its_own_number_of_files(files):
    dataset = TextLineDataset(files(2, 1, 3, 1))
    assert describe(autoshard(dataset.node, 2, 0, FILE)[0]) == describe(dataset.node).replace("4 files", "2 files")
