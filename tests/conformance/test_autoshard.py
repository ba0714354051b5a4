"""What each worker's replicas see, against what TensorFlow 2.21 gave in several processes.

Workers are threads here; what they read, and how they agree on the end, is what happens in processes.
"""

import re

import numpy as np
import pytest

from replicant.data import (
    AutoShardPolicy,
    Dataset,
    DistributedDataset,
    InputContext,
    Options,
    TextLineDataset,
    TFRecordDataset,
    TFRecordWriter,
)
from replicant.errors import DatasetError
from replicant.replicas._topology import Topology

ONE_RULE = "one cutting rule for every policy"
IN_ORDER = "chunks go to the workers in order"
EARLY_ERRORS = "errors come at once and say what to do"
OWN_SHUFFLE = "shuffle draws its own random numbers"
FALLS_BACK = "AUTO shards by DATA where there are too few files"

GROUPS = ["workers2_replicas1", "workers3_replicas1", "workers2_replicas2"]
SIZES = {"1files_12": [12], "2files_6_6": [6, 6], "3files_5_3_6": [5, 3, 6], "4files_2_7_4_1": [2, 7, 4, 1]}
GRID = re.compile(r"(?P<source>\w+)/(?P<policy>AUTO|DATA|FILE|OFF)/B(?P<batch>\d+)/drop(?P<drop>True|False)")


def cut(rows, sizes):
    ends = np.cumsum(sizes)
    return [rows[end - size : end].tolist() for end, size in zip(ends, sizes, strict=True)]


def each(values):
    return [np.asarray(value).tolist() for value in values]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Text and TFRecord files of 100 * file + row."""
    folder = tmp_path_factory.mktemp("files")
    for name, sizes in SIZES.items():
        for number, size in enumerate(sizes):
            rows = [str(100 * number + row) for row in range(size)]
            (folder / f"{name}-{number}.txt").write_text("".join(f"{row}\n" for row in rows))
            with TFRecordWriter(folder / f"{name}-{number}.tfrecord") as writer:
                for row in rows:
                    writer.write(row.encode())
    return folder


def elements(source, folder, files=slice(None)):
    """The unbatched dataset of a recorded source, or of some of its files."""
    if source.startswith("range"):
        return Dataset.range(int(source.removeprefix("range")))
    if source == "gen7":
        return Dataset.from_generator(lambda: iter(np.arange(7)))
    kind, layout = re.fullmatch(r"([a-z_]+)_(\dfiles.*)", source).groups()
    paths = [str(folder / f"{layout}-{i}.{'tfrecord' if kind == 'tfrecord' else 'txt'}") for i in range(len(SIZES[layout]))][files]
    made = {
        "text": lambda: TextLineDataset(paths),
        "tfrecord": lambda: TFRecordDataset(paths),
        "interleave": lambda: Dataset.from_tensor_slices(paths).interleave(TextLineDataset, cycle_length=2),
        "list_files": lambda: Dataset.list_files(paths, shuffle=False).flat_map(TextLineDataset),
    }[kind]()
    return made.map(int)


def has_files(source):
    return source.startswith(("text", "tfrecord", "interleave", "list_files"))


def with_policy(dataset, policy):
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy[policy]
    return dataset.with_options(options)


def steps_of_workers(run_workers, make, num_workers, replicas_per_worker):
    def worker_steps(worker, exchange):
        topology = Topology(num_workers, worker, replicas_per_worker)
        return list(DistributedDataset(make(), topology, cut, exchange=exchange))

    return run_workers(num_workers, worker_steps)


def by_rule(batches_of_workers, num_workers, replicas_per_worker, *, shared):
    """The documented answer, written without the code under test."""
    steps = [[] for _ in range(num_workers)]
    for worker, batches in enumerate(batches_of_workers):
        for batch in batches:
            share = -(-len(batch) // (num_workers * replicas_per_worker))
            chunks = [batch[i * share : (i + 1) * share] for i in range(num_workers * replicas_per_worker)]
            if shared:
                steps[worker].append(chunks[worker * replicas_per_worker : (worker + 1) * replicas_per_worker])
                continue
            while chunks and chunks[0]:
                steps[worker].append(chunks[:replicas_per_worker])
                chunks = chunks[replicas_per_worker:]
    longest = max(map(len, steps))
    return [own + [[[]] * replicas_per_worker] * (longest - len(own)) for own in steps]


def dealt_in_turn(steps):
    """The same chunks as TensorFlow deals them: the first of every worker, then the second of every worker."""
    num_workers = len(steps)
    dealt = []
    for step in zip(*steps, strict=True):
        chunks = [chunk for worker in step for chunk in worker]
        dealt.append([chunks[worker::num_workers] for worker in range(num_workers)])
    return [[step[worker] for step in dealt] for worker in range(num_workers)]


def read_batches(dataset):
    return [batch.tolist() for batch in dataset]


@pytest.mark.cases(
    "AUTO-workers2_replicas1",
    "AUTO-workers3_replicas1",
    "DATA-workers3_replicas1",
    "DATA-workers2_replicas2",
    "FILE-workers3_replicas1",
    "FILE-workers2_replicas2",
    "OFF-workers2_replicas1",
)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("policy", ["AUTO", "DATA", "FILE", "OFF"])
def test_grid(figures, report, run_workers, folder, group, policy):  # noqa: PLR0917 - fixtures
    num_workers, replicas = int(group[7]), int(group[-1])
    cases = {name: match for name in figures["groups"][group] if (match := GRID.fullmatch(name)) and match["policy"] == policy}
    assert len(cases) >= 15
    for name, match in cases.items():
        source, batch, drop = match["source"], int(match["batch"]), match["drop"] == "True"
        expected = figures["groups"][group][name]
        actual = steps_of_workers(
            run_workers,
            lambda s=source, b=batch, d=drop: with_policy(elements(s, folder).batch(b, d), policy),
            num_workers,
            replicas,
        )
        by_files = policy == "FILE" or (policy == "AUTO" and has_files(source))
        batches = [
            read_batches(elements(source, folder, slice(worker, None, num_workers) if by_files else slice(None)).batch(batch, drop))
            for worker in range(num_workers)
        ]
        shared = policy != "OFF" and not by_files
        assert actual == by_rule(batches, num_workers, replicas, shared=shared), name
        if actual == expected:
            report.passed(f"{group} {name}")
        elif shared:
            assert replicas > 1, name
            assert dealt_in_turn(actual) == expected, name
            report.different(f"{group} {name}", IN_ORDER)
        else:
            full = all(len(its) == batch for own in batches for its in own)
            assert batch % (num_workers * replicas) or not full, name
            report.different(f"{group} {name}", ONE_RULE)


def test_every_other_case_is_known(figures):
    for group in GROUPS:
        assert {name for name in figures["groups"][group] if not GRID.fullmatch(name)} == set(OTHERS)


def of_range(number):
    return lambda: Dataset.range(number).batch(4)


OTHERS = {
    "range6_repeat2/AUTO/B4": lambda: Dataset.range(6).repeat(2).batch(4),
    "range12_batch4_shuffle_seed/AUTO": lambda: Dataset.range(12).shuffle(12, seed=7).batch(4),
    "range12_map/AUTO/B4": lambda: Dataset.range(12).map(lambda x: 10 * x).batch(4),
    "batches_4_1_6_2/AUTO": lambda: Dataset.from_generator(lambda: (100 * size + np.arange(size) for size in (4, 1, 6, 2))),
    "range12/AUTO/two_epochs/B4": of_range(12),
    "gather": of_range(7),
    "value_fn": None,
    "from_function/same": lambda context: Dataset.range(7).batch(2),
    "from_function/shard": lambda context: sharded(context, drop=False),
    "from_function/shard_drop": lambda context: sharded(context, drop=True),
    "from_function/uneven": lambda context: Dataset.range(3 + 4 * context.input_pipeline_id).batch(2),
}


def sharded(context, drop):
    return Dataset.range(13).shard(context.num_input_pipelines, context.input_pipeline_id).batch(2, drop)


def judge(report, case, actual, expected):
    """Equal, or the same chunks for other workers."""
    if actual == expected:
        report.passed(case)
    else:
        assert dealt_in_turn(actual) == expected, case
        report.different(case, IN_ORDER)


@pytest.mark.parametrize("group", GROUPS)
def test_other_datasets(figures, report, run_workers, group):
    num_workers, replicas = int(group[7]), int(group[-1])
    for name in ("range6_repeat2/AUTO/B4", "range12_map/AUTO/B4", "batches_4_1_6_2/AUTO"):
        actual = steps_of_workers(run_workers, OTHERS[name], num_workers, replicas)
        judge(report, f"{group} {name}", actual, figures["groups"][group][name])
    name = "range12_batch4_shuffle_seed/AUTO"
    actual = steps_of_workers(run_workers, OTHERS[name], num_workers, replicas)
    flat = sorted(row for worker in actual for step in worker for chunk in step for row in chunk)
    assert flat == list(range(12))
    report.different(f"{group} {name}", OWN_SHUFFLE)


@pytest.mark.parametrize("group", GROUPS)
def test_two_passes_and_gather(figures, report, run_workers, group):
    num_workers, replicas = int(group[7]), int(group[-1])

    def twice(worker, exchange):
        dataset = DistributedDataset(of_range(12)(), Topology(num_workers, worker, replicas), cut, exchange=exchange)
        return [list(dataset), list(dataset)]

    first, second = zip(*run_workers(num_workers, twice), strict=True)
    assert first == second
    expected = figures["groups"][group]["range12/AUTO/two_epochs/B4"]
    judge(report, f"{group} range12/AUTO/two_epochs/B4", list(first), [passes[0] for passes in expected])
    assert all(passes[0] == passes[1] for passes in expected)

    steps = steps_of_workers(run_workers, of_range(7), num_workers, replicas)
    gathered = [[row for worker in step for chunk in worker for row in chunk] for step in zip(*steps, strict=True)]
    assert gathered == [[0, 1, 2, 3], [4, 5, 6]]
    expected = figures["groups"][group]["gather"]
    if replicas == 1:
        assert expected == [gathered] * num_workers
        report.passed(f"{group} gather")
    else:
        assert expected == [[[0, 2, 1, 3], [4, 6, 5]]] * num_workers
        report.different(f"{group} gather", IN_ORDER)


@pytest.mark.parametrize("group", GROUPS)
def test_replica_ids_of_workers(figures, report, group):
    num_workers, replicas = int(group[7]), int(group[-1])
    ids = [Topology(num_workers, worker, replicas).local_replica_ids for worker in range(num_workers)]
    total = sum(10 * i for own in ids for i in own)
    assert [[[10 * i for i in own], total] for own in ids] == figures["groups"][group]["value_fn"]
    report.passed(f"{group} value_fn")


@pytest.mark.parametrize("group", GROUPS)
def test_from_function(figures, report, run_workers, group):
    num_workers, replicas = int(group[7]), int(group[-1])
    for name in ("same", "shard", "shard_drop", "uneven"):
        contexts = {}

        def worker_steps(worker, exchange, name=name, contexts=contexts):
            def dataset_fn(context):
                contexts[worker] = context
                return OTHERS[f"from_function/{name}"](context)

            topology = Topology(num_workers, worker, replicas)
            return list(DistributedDataset.from_function(dataset_fn, topology, each, exchange=exchange))

        steps = run_workers(num_workers, worker_steps)
        assert steps == figures["groups"][group][f"from_function/{name}"], name
        assert contexts == {w: InputContext(num_workers, w, num_workers * replicas) for w in range(num_workers)}
        report.passed(f"{group} from_function/{name}")


def test_risky_cases(figures, report, run_workers, folder):
    """Those that fail or hang in TensorFlow."""
    for recorded in figures["risky"]:
        num_workers, replicas, case = recorded["workers"], recorded["replicas"], recorded["case"]
        source, policy, batch = case.split("/")
        name = f"risky {num_workers}x{replicas} {case}"

        def make(source=source, batch=int(batch), policy=policy):
            dataset = Dataset.range(12) if source == "nobatch" else elements(source, folder)
            return with_policy(dataset.batch(batch) if batch else dataset, policy)

        if policy == "HINT":
            assert steps_of_workers(run_workers, make, num_workers, replicas) == recorded["per_worker"]
            report.passed(name)
            continue
        assert all("error" in worker for worker in recorded["per_worker"])
        if policy == "AUTO" and source != "nobatch":
            whole = read_batches(make())
            actual = steps_of_workers(run_workers, make, num_workers, replicas)
            assert actual == by_rule([whole] * num_workers, num_workers, replicas, shared=True)
            report.different(name, FALLS_BACK)
            continue
        message = {
            "nobatch": "is a scalar.*batch",
            "range12": rf"files .* among the {num_workers} workers, but range.* reads 0 files\. .*AutoShardPolicy\.DATA",
            "gen7": rf"among the {num_workers} workers, but from_generator.* reads 0 files\. .*AutoShardPolicy\.DATA",
        }.get(source, rf"FILE cannot share \d files? among {num_workers} workers.*AutoShardPolicy\.DATA")
        for worker in range(num_workers):  # at creation, on every worker, without asking the others
            with pytest.raises(DatasetError, match=message):
                DistributedDataset(make(), Topology(num_workers, worker, replicas), cut, exchange=lambda number: [number])
        report.different(name, EARLY_ERRORS)
