"""Shuffles in two levels, groups and their elements: every element once, spread evenly, exact positions, one window held."""

import io
import itertools
import json
import re
import tarfile
import tracemalloc

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicant.data import (
    ArrowDataset,
    AutoShardPolicy,
    CsvDataset,
    Dataset,
    DistributedDataset,
    JsonLinesDataset,
    Options,
    ParquetDataset,
    TarDataset,
    TextLineDataset,
    TFRecordDataset,
    TFRecordWriter,
)
from replicant.errors import ArgumentError, ArgumentTypeError, DatasetError, ElementError
from replicant.input.files.columns._parquet import ParquetTables
from replicant.input.transforms.order._permutation import Chunks
from replicant.replicas._topology import Topology
from replicant.storage import _retry
from replicant.storage._store import Store

DATA, FILE = AutoShardPolicy.DATA, AutoShardPolicy.FILE


def write(path, start, stop, groups=None):
    """A Parquet file with these numbers, in row groups of these sizes."""
    table = pa.table({"x": np.arange(start, stop)})
    with pq.ParquetWriter(path, table.schema) as writer:
        for size in groups or [stop - start]:
            writer.write_table(table.slice(0, size), max(1, size))
            table = table.slice(size)
    assert not table.num_rows
    return path


def parquet(paths, **kwargs):
    return ParquetDataset(paths, **kwargs).map(lambda row: row["x"])


def order(dataset):
    return [int(x) for x in dataset]


@pytest.fixture
def uneven(tmp_path):
    """60 rows in groups of very different sizes, one of them empty, in three files, one of them empty."""
    return [
        write(tmp_path / "a", 0, 45, [1, 40, 0, 4]),
        write(tmp_path / "b", 45, 45, [0]),
        write(tmp_path / "c", 45, 60, [2, 2, 11]),
    ]


@pytest.mark.parametrize("window", [1, 2, 3, 8, 1000])
def test_every_row_comes_once_in_another_order_in_every_pass(uneven, window):
    dataset = parquet(uneven).global_shuffle(seed=3, window=window)
    assert len(dataset) == 60
    assert dataset.element_spec == parquet(uneven).element_spec
    passes = [order(dataset) for _ in range(3)] + np.array(order(dataset.repeat(2))).reshape(2, 60).tolist()
    assert [sorted(each) for each in passes] == [list(range(60))] * 5
    assert len({tuple(each) for each in passes}) == 5
    same = parquet(uneven).global_shuffle(seed=3, reshuffle_each_iteration=False, window=window)
    assert order(same) == order(same) == passes[0]
    assert order(parquet(uneven).global_shuffle(window=window)) != order(parquet(uneven).global_shuffle(window=window))


@pytest.mark.parametrize("seed", [-1, 0, 2**70, -(2**70)])
def test_any_seed(uneven, seed):
    first, second = (order(parquet(uneven).global_shuffle(seed, window=2)) for _ in range(2))
    assert first == second
    assert sorted(first) == list(range(60))


def test_few_rows(tmp_path):
    assert order(parquet(write(tmp_path / "none", 0, 0)).global_shuffle(window=2).repeat(2)) == []
    assert order(parquet(write(tmp_path / "one", 0, 1)).global_shuffle(window=2).repeat(2)) == [0, 0]
    assert order(parquet(write(tmp_path / "empty groups", 0, 1, [0, 0, 1, 0])).global_shuffle(window=1)) == [0]


def test_the_order_stays_the_same_in_later_versions(tmp_path):
    path = write(tmp_path / "a", 0, 10, [3, 3, 4])
    assert order(parquet(path).global_shuffle(seed=1, window=2)) == ORDER


ORDER = [3, 8, 4, 5, 6, 9, 7, 0, 1, 2]


# How even the order is


def excess(counts):
    """The chi-square statistic of equally likely cells, in its standard deviations above its mean."""
    counts, expected = np.asarray(counts).ravel(), np.sum(counts) / np.size(counts)
    degrees = counts.size - 1
    return (np.sum((counts - expected) ** 2 / expected) - degrees) / np.sqrt(2 * degrees)


GROUPS, ROWS, WINDOW, EPOCHS = 40, 50, 8, 80


def epochs(folder, count):
    """The places of all rows (columns) in many epochs (rows)."""
    path = write(folder / "even", 0, GROUPS * ROWS, [ROWS] * GROUPS)
    batches = ParquetDataset(path).global_shuffle(seed=5, window=WINDOW).batch(GROUPS * ROWS)
    return np.array([np.argsort(next(iter(batches))["x"]) for _ in range(count)])


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    return epochs(tmp_path_factory.mktemp("even"), EPOCHS)


def within_windows(places):
    """How often each row of a group lands in each tenth of its window."""
    tenths = places % (WINDOW * ROWS) * 10 // (WINDOW * ROWS)
    return [np.bincount(tenths[:, row::ROWS].ravel(), minlength=10) for row in range(ROWS)]


@pytest.mark.long
def test_rows_land_evenly_over_a_pass_and_within_windows(places):
    size, groups = GROUPS * ROWS, places.reshape(len(places), GROUPS, ROWS)
    # Over the epochs, a row of each group (rows of one group come together) lands in each fifth of the pass equally often.
    fifths = places[:, ::ROWS] * 5 // size
    assert excess([np.bincount(fifths[:, group], minlength=5) for group in range(GROUPS)]) < 4.5
    # The rows of a group land evenly in their window, wherever they are in the group, and in whichever group they are.
    assert excess(within_windows(places)) < 4.5
    tenths = groups % (WINDOW * ROWS) * 10 // (WINDOW * ROWS)
    assert excess([np.bincount(tenths[:, group].ravel(), minlength=10) for group in range(GROUPS)]) < 4.5
    # Each group shares its window equally often with every other one: the pairs are spread as by chance.
    windows = places[:, ::ROWS] // (WINDOW * ROWS)
    pairs = np.array([np.sum(windows[:, a] == windows[:, b]) for a in range(GROUPS) for b in range(a)])
    chance = (WINDOW - 1) / (GROUPS - 1)
    assert abs(pairs.mean() / EPOCHS - chance) < 1e-12
    assert 0.8 < pairs.var() / (EPOCHS * chance * (1 - chance)) < 1.2


def test_rows_move_as_far_as_in_a_true_permutation(places):
    size = GROUPS * ROWS
    moved = np.abs(places - np.arange(size)).mean()
    assert abs(moved / (size / 3) - 1) < 0.03
    # What two levels do not give: rows of one group are at most a window apart, a third of it on average.
    apart = np.abs(places[:, 1::ROWS] - places[:, ::ROWS])
    assert apart.max() < WINDOW * ROWS
    assert abs(apart.mean() / (WINDOW * ROWS / 3) - 1) < 0.05


def test_the_statistics_find_a_window_that_is_read_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(Chunks, "after", lambda self, place, limit: np.arange(place, min(place + limit, self.permutation.size)))
    assert excess(within_windows(epochs(tmp_path, 5))) > 10


# What is read and held


def watched(monkeypatch):
    """A list of the row groups that are read from now on."""
    read, real = [], ParquetTables.read
    monkeypatch.setattr(ParquetTables, "read", lambda self, group, then=None: read.append(group) or real(self, group, then))
    return read


def test_groups_are_read_once_and_one_window_is_held(tmp_path, monkeypatch):
    size, count, width = 2000, 24, 64
    schema = pa.schema({"x": pa.int64(), "wide": pa.list_(pa.float64(), width)})
    with pq.ParquetWriter(tmp_path / "a", schema) as writer:
        for group in range(count):
            wide = pa.FixedSizeListArray.from_arrays(np.zeros(size * width), width)
            writer.write_table(pa.table({"x": np.arange(group * size, (group + 1) * size), "wide": wide}, schema))
    read = watched(monkeypatch)
    dataset = ParquetDataset(tmp_path / "a").global_shuffle(seed=1, window=3)
    tracemalloc.start()
    before, arrow = tracemalloc.get_traced_memory()[0], pa.total_allocated_bytes()
    most, rows = 0, []
    for batch in dataset.batch(100):
        rows += batch["x"].tolist()
        most = max(most, tracemalloc.get_traced_memory()[0] - before + pa.total_allocated_bytes() - arrow)
    tracemalloc.stop()
    assert sorted(rows) == list(range(size * count))
    assert sorted(read) == list(range(count))
    assert most < 6 * size * 8 * (width + 1)  # of 24 groups; Arrow may reserve twice what it fills


def test_rows_that_are_skipped_are_not_read(uneven, monkeypatch):
    whole = order(parquet(uneven).global_shuffle(seed=1, window=2))
    read = watched(monkeypatch)
    for count in (0, 7, 45, 58, 60, 99):
        read.clear()
        assert order(parquet(uneven).global_shuffle(seed=1, window=2).skip(count)) == whole[count:]
        assert len(read) <= 8
    assert not read


# Positions


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("kwargs", [{}, {"filters": [("x", ">", 3)]}, {"on_error": "skip"}])
@pytest.mark.long_cases("kwargs1-3")
def test_a_position_leads_to_the_same_rest_from_every_point(uneven, window, kwargs):
    def make():
        return parquet(uneven, **kwargs).global_shuffle(window=window).repeat(2)

    dataset = make()
    with iter(dataset) as iterator:
        states, whole = [], []
        for x in iterator:
            whole.append(int(x))
            states.append(json.loads(json.dumps(iterator.state())))
    assert sorted(whole) == sorted([*range(4 if "filters" in kwargs else 0, 60)] * 2)
    assert max(len(json.dumps(state)) for state in states) < 600
    for cut in range(0, len(whole), 1 if window == 3 else 7):
        again = iter(make())
        again.restore(states[cut])
        assert order(again) == whole[cut + 1 :], cut


def test_a_position_of_other_files_is_refused(tmp_path):
    paths = [write(tmp_path / "a", 0, 9, [3, 3, 3]), write(tmp_path / "b", 9, 12)]

    def position(cut):
        with iter(parquet(paths).global_shuffle(seed=1, window=2)) as iterator:
            assert len(list(itertools.islice(iterator, cut))) == cut
            return iterator.state()

    def rest(state):
        iterator = iter(parquet(paths).global_shuffle(seed=1, window=2))
        iterator.restore(state)
        return list(iterator)

    state = position(2)
    write(paths[1], 9, 12, [1, 2])
    with pytest.raises(
        DatasetError, match=r"ParquetDataset: the files have changed since.*they had 4 parts in all, and have 5 now"
    ):
        rest(state)
    write(paths[1], 9, 13)
    write(paths[0], 0, 10, [4, 3, 3])
    with pytest.raises(DatasetError, match=r"files have changed since.*those of window 0 are others, or have . elements now. Put"):
        rest(state)
    with pytest.raises(DatasetError, match=r"position"):
        iter(parquet(paths).global_shuffle(seed=1, window=3)).restore(state)


# Other files


def make_files(tmp_path, write_one, count=5, size=4):
    return [write_one(tmp_path / f"{i}", range(i * size, (i + 1) * size)) for i in range(count)]


def tar_file(path, numbers):
    with tarfile.open(path, "w") as tar:
        for i in numbers:
            for kind in ("n", "other") if i % 3 else ("n",):
                member = tarfile.TarInfo(f"{i:04}.{kind}")
                member.size = 4
                tar.addfile(member, io.BytesIO(b"%4d" % i))
    return path


def record_file(path, numbers):
    with TFRecordWriter(path) as writer:
        for i in numbers:
            writer.write(b"%d" % i)
    return path


def text_file(text):
    def write_one(path, numbers):
        path.write_text("".join(text(i) for i in numbers))
        return path

    return write_one


def arrow_file(path, numbers):
    with pa.ipc.new_file(path, pa.schema({"x": pa.int64()})) as writer:
        for i in numbers:
            writer.write_batch(pa.record_batch({"x": [i]}))
    return path


FILES = {
    "tar": (tar_file, lambda paths: TarDataset(paths).map(lambda sample: np.int64(int(sample["n"])))),
    "records": (record_file, lambda paths: TFRecordDataset(paths).map(lambda record: np.int64(int(record)))),
    "text": (text_file(lambda i: f"{i}\n"), lambda paths: TextLineDataset(paths).map(np.int64)),
    "json": (text_file(lambda i: f'{{"x": {i}}}\n'), lambda paths: JsonLinesDataset(paths).map(lambda line: line["x"])),
    "csv": (text_file(lambda i: f"{i}\n"), lambda paths: CsvDataset(paths, [np.int32(0)]).map(lambda x: x)),
    "arrow": (arrow_file, lambda paths: ArrowDataset(paths).map(lambda row: row["x"])),
}


@pytest.mark.parametrize("kind", FILES)
def test_every_format_of_files(tmp_path, kind):
    write_one, read = FILES[kind]
    paths = make_files(tmp_path, write_one)
    dataset = read(paths).global_shuffle(seed=2, window=2)
    with iter(dataset) as iterator:
        states, whole = [iterator.state()], []
        for x in iterator:
            whole.append(int(np.squeeze(x)))
            states.append(json.loads(json.dumps(iterator.state())))
    assert sorted(whole) == list(range(20))
    assert whole != sorted(whole)
    for cut, state in enumerate(states):
        again = iter(read(paths).global_shuffle(seed=2, window=2))
        again.restore(state)
        assert [int(np.squeeze(x)) for x in again] == whole[cut:]
    second = [int(np.squeeze(x)) for x in dataset]
    assert sorted(second) == list(range(20))
    assert second != whole


def test_shards_on_a_store_are_read_in_order_and_once(tmp_path, monkeypatch):
    urls = []
    for path in make_files(tmp_path, tar_file):
        fsspec.filesystem("memory").pipe(f"/groups/{path.name}", path.read_bytes())
        urls.append(f"memory://groups/{path.name}")
    whole = [sample["__key__"] for sample in TarDataset(urls).global_shuffle(seed=4, window=2)]
    assert sorted(whole) == [f"{i:04}" for i in range(20)]
    ranges = []
    real = Store.read

    def read(self, start, stop, facts, unwanted=None):
        ranges.append((self.url, start))
        return real(self, start, stop, facts, unwanted)

    monkeypatch.setattr(Store, "read", read)
    dataset = TarDataset(urls).global_shuffle(seed=4, window=2)
    iterator = iter(dataset)
    assert [next(iterator)["__key__"] for _ in range(9)] == whole[:9]
    assert len(ranges) == 5  # four shards, each once, and before them the first file for the spec
    assert ranges[0] == ("memory://groups/0", 0)
    assert len({*ranges[1:]}) == 4
    state = iterator.state()
    again = iter(TarDataset(urls).global_shuffle(seed=4, window=2))
    again.restore(state)
    assert [sample["__key__"] for sample in again] == whole[9:]
    fsspec.filesystem("memory").pipe("/groups/0", (tmp_path / "1").read_bytes())
    fsspec.filesystem("memory").pipe("/groups/1", (tmp_path / "0").read_bytes())
    for url in urls:
        fsspec.filesystem("memory").pipe(f"/groups/{url[-1]}", fsspec.filesystem("memory").cat(f"/groups/{url[-1]}"))
    changed = iter(TarDataset(urls).global_shuffle(seed=4, window=2))
    changed.restore(state)
    with pytest.raises(DatasetError, match="those of window 1 are others"):
        list(changed)


def test_a_store_that_does_not_answer_is_asked_again(tmp_path, monkeypatch):
    path = tar_file(tmp_path / "0", range(4))
    fsspec.filesystem("memory").pipe("/groups/s", path.read_bytes())
    iterator = iter(TarDataset(["memory://groups/s"], on_error="skip").global_shuffle(seed=1, window=1))
    assert TarDataset(["memory://groups/s"]).element_spec

    def read(*args):
        raise _retry.RemoteError("could not read s")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "read", read)
        for _ in range(2):
            with pytest.raises(DatasetError, match="could not read s"):
                next(iterator)
    assert sorted(int(sample["n"]) for sample in iterator) == [0, 1, 2, 3]
    assert iterator.num_skipped == 0


# Damage


def damaged(path):
    data = bytearray(path.read_bytes())
    data[8:40] = b"\xff" * 32
    path.write_bytes(data)


def until_an_error(iterator):
    """The elements before the first error, its message, and the position before each element and before the error."""
    found, states = [], []
    while True:
        states.append(iterator.state())
        try:
            found.append(int(next(iterator)))
        except DatasetError as error:
            with pytest.raises(DatasetError, match=re.escape(str(error))):  # an error passes over nothing
                next(iterator)
            assert iterator.state() == states[-1]
            return found, str(error), states


def test_what_is_wrong_with_a_file_is_raised_after_the_other_rows_of_the_window(tmp_path):
    paths = make_files(tmp_path, lambda path, numbers: write(path, numbers.start, numbers.stop, [2, 2]))
    damaged(paths[2])
    (tmp_path / "4").unlink()
    with pytest.raises(DatasetError, match=r"cannot read '.*4'"):
        next(iter(parquet(paths).global_shuffle(seed=1, window=3)))
    lenient = iter(parquet(paths, on_error="skip").global_shuffle(seed=1, window=3))
    assert sorted(order(lenient)) == [*range(8), *range(10, 16)]
    assert lenient.num_skipped == 2 + 1
    del paths[4]

    found, message, states = until_an_error(iter(parquet(paths).global_shuffle(seed=1, window=3)))
    assert message.startswith(f"ParquetDataset: cannot read row group 0 of {str(paths[2])!r}")
    whole = order(parquet(paths).global_shuffle(seed=1, window=3).ignore_errors())
    assert sorted(whole) == [*range(8), *range(10, 16)]
    assert found == whole[: len(found)]
    for i, state in enumerate(states):
        again = iter(parquet(paths).global_shuffle(seed=1, window=3))
        again.restore(json.loads(json.dumps(state)))
        assert until_an_error(again)[:2] == (found[i:], message)


def test_lines_that_are_wrong_cost_one_element_each(tmp_path):
    paths = make_files(tmp_path, text_file(lambda i: "no\n" if i % 4 == 1 else f'{{"x": {i}}}\n'))
    rows = JsonLinesDataset(paths).map(lambda line: line["x"]).global_shuffle(seed=1, window=2)
    good = [i for i in range(20) if i % 4 != 1]
    assert sorted(order(rows.ignore_errors())) == good
    with pytest.raises(ElementError, match="it is not JSON"):
        list(rows)
    lenient = iter(JsonLinesDataset(paths, on_error="skip").global_shuffle(seed=1, window=2))
    assert len(list(lenient)) == 15
    assert lenient.num_skipped == 5


# Several workers


class Part:
    def __init__(self, rows, sizes):
        self.rows = rows


def options(policy):
    made = Options()
    made.experimental_distribute.auto_shard_policy = policy
    return made


def share(dataset, num_workers, worker, count=None, position=None):
    """What one worker has of some steps, and its position after them."""
    exchange = {"exchange": lambda value: [value]} if num_workers > 1 else {}
    with iter(DistributedDataset(dataset, Topology(num_workers, worker, 1), Part, **exchange)) as iterator:
        if position is not None:
            iterator.restore(position)
        steps = [part.rows.tolist() for part in itertools.islice(iterator, count)]
        return steps, iterator.state()


@given(st.data())
@settings(max_examples=40, deadline=None)
@pytest.mark.long
def test_a_run_continues_with_any_number_of_workers(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("elastic")
    sizes = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=8), label="rows of the groups")
    total = sum(sizes)
    path = write(folder / "a", 0, total, sizes)
    window, batch = data.draw(st.integers(1, 4), label="window"), data.draw(st.integers(1, 5), label="batch")

    def make():
        return parquet(path).global_shuffle(seed=6, window=window).repeat(2).batch(batch).with_options(options(DATA))

    assert make().explain(3).is_elastic
    whole = [each.tolist() for each in make()]
    done, position = [], None
    for cut in [*data.draw(st.lists(st.integers(0, 4), max_size=3), label="kill points"), None]:
        num_workers = data.draw(st.integers(1, 9), label="workers")
        shares = [share(make(), num_workers, worker, cut, position) for worker in range(num_workers)]
        assert len({json.dumps(state) for _, state in shares}) == 1
        done += [sum(parts, []) for parts in zip(*(steps for steps, _ in shares), strict=True)]
        position = json.loads(json.dumps(shares[0][1]))
    assert done == whole


def test_auto_means_data_and_file_shuffles_own_groups(tmp_path):
    path = write(tmp_path / "a", 0, 24, [4] * 6)
    dataset = parquet(path).global_shuffle(seed=1, window=2).batch(4)
    plan = dataset.explain(3)
    assert (plan.policy, plan.is_elastic) == (DATA, True)
    assert plan.reason == "`global_shuffle` gives one order, whatever the number of workers"
    alone = dataset.explain(3, policy=FILE)
    assert (alone.policy, alone.is_elastic) == (FILE, True)
    assert [worker.files for worker in alone.workers] == [
        tuple(f"{path} (row group {group})" for group in (worker, worker + 3)) for worker in range(3)
    ]
    own = [share(dataset.with_options(options(FILE)), 3, worker)[0] for worker in range(3)]
    rows = [sorted(x for step in steps for x in step) for steps in own]
    assert rows == [[*range(4 * worker, 4 * worker + 4), *range(4 * worker + 12, 4 * worker + 16)] for worker in range(3)]
    with pytest.raises(DatasetError, match="cannot share 1 file among 7 workers"):
        dataset.explain(7, policy=FILE)
    assert dataset.explain(7).policy is DATA


def test_workers_that_cannot_agree_on_an_order_are_refused(tmp_path):
    dataset = parquet(write(tmp_path / "a", 0, 4)).global_shuffle(window=1).batch(2)
    with pytest.raises(DatasetError, match=r"`global_shuffle` has no seed.*Give it one: `global_shuffle\(seed=1\)`"):
        DistributedDataset(dataset, Topology(2, 0, 1), Part)


def test_the_profile_has_a_stage_for_it(tmp_path):
    dataset = parquet(write(tmp_path / "a", 0, 40, [4] * 10)).global_shuffle(seed=1, window=2).batch(4)
    stages = dataset.explain(profile=True).profile.stages
    assert [stage.label for stage in stages if "shuffle" in stage.label] == ["global_shuffle(seed=1, window=2) of ParquetDataset()"]
    assert all("num_parallel_reads" not in stage.advice for stage in stages)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda files: Dataset.range(9).global_shuffle(window=2),
            DatasetError,
            r"`range\(0, 9, 1\)` is not a dataset of named files\. Call it directly",
        ),
        (
            lambda files: ParquetDataset(files).take(2).global_shuffle(window=2),
            DatasetError,
            r"`take\(2\)` is not a dataset of named files",
        ),
        (lambda files: ParquetDataset(files, batch_rows=2).global_shuffle(window=2), DatasetError, "is not a dataset of named"),
        (
            lambda files: TextLineDataset(files, num_parallel_reads=2).global_shuffle(window=2),
            DatasetError,
            "is not a dataset of named files.*no num_parallel_reads",
        ),
        (
            lambda files: ParquetDataset(files).global_shuffle(),
            DatasetError,
            r"only give them in order\. Call `global_shuffle\(window=8\)`",
        ),
        (
            lambda files: ParquetDataset(files).skip(1).global_shuffle(),
            DatasetError,
            r"`ParquetDataset\(\)` can only give them in order",
        ),
        (lambda files: ParquetDataset(files).global_shuffle(window=0), ArgumentError, "window must be at least 1. Received: 0"),
        (lambda files: ParquetDataset(files).global_shuffle(window="2"), ArgumentTypeError, "window must be an integer"),
    ],
)
def test_what_is_refused(uneven, make, error, message):
    with pytest.raises(error, match=message):
        make(uneven)
