"""Runs under FILE that go on with other numbers of workers and replicas: every example once in each pass, wherever they end."""

import collections
import dataclasses
import itertools
import json
from collections.abc import Callable

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicant.data import AutoShardPolicy, Dataset, DistributedDataset, Options, ParquetDataset, TextLineDataset
from replicant.errors import DatasetError
from replicant.keras.data._batches import Batches
from replicant.replicas._topology import Topology

AUTO, DATA, FILE, OFF = AutoShardPolicy.AUTO, AutoShardPolicy.DATA, AutoShardPolicy.FILE, AutoShardPolicy.OFF


class HostPlaces:
    """Leaves batches of several workers on the host: each worker gets the parts of its own replicas."""

    def __init__(self, topology, exchange):
        self.ids, self.exchange = topology.local_replica_ids, exchange

    def whole(self, leaf, sizes):
        ends = np.cumsum(sizes)
        return [leaf[ends[i] - sizes[i] : ends[i]].tolist() for i in self.ids]

    def form(self, columns):
        return [[len(part) for part in column] for column in columns]

    def together(self, columns, forms=None):
        assert forms is not None
        return [[np.asarray(part).tolist() for part in column] for column in columns]

    def states(self, state):
        return [json.loads(text) for text in self.exchange(json.dumps(state))]


def on_one_worker(rows, sizes):
    assert not sizes or len(rows) == sum(sizes)
    return [rows.tolist()]


@dataclasses.dataclass
class Group:
    """The steps that a group of workers made: for each, the rows of all of them. Then its position, and whether that is the end."""

    steps: list
    position: dict
    ended: bool

    @property
    def rows(self):
        return [row for step in self.steps for row in step]


@pytest.fixture
def go_on(run_workers):
    """``go_on(make, (num_workers, replicas_per_worker), count, position)`` makes up to `count` steps from a position."""

    def run(make, shape, count, position=None, until=lambda position: False):
        def worker_steps(worker, exchange):
            topology = Topology(shape[0], worker, shape[1])
            several = {"workers": HostPlaces(topology, exchange), "exchange": exchange} if shape[0] > 1 else {}
            steps, ended = [], False
            with iter(DistributedDataset(make(), topology, on_one_worker, **several)) as iterator:
                if position is not None:
                    iterator.restore(position)
                while not ended and len(steps) < count and not until(iterator.state()["position"]):
                    step = next(iterator, None)
                    ended = step is None
                    steps += [] if ended else [step]
                return steps, iterator.state(), ended

        found = run_workers(shape[0], worker_steps)
        together = zip(*[steps for steps, _, _ in found], strict=True)
        steps = [[row for worker in step for replica in worker for row in replica] for step in together]
        return Group(steps, json.loads(json.dumps(found[0][1])), found[0][2])

    return run


# Pipelines


@dataclasses.dataclass(frozen=True)
class Op:
    """A transform, and how it changes how often each example is there. ``text`` is what a failing example shows."""

    text: str
    apply: Callable
    times: int = 1

    def __repr__(self):
        return self.text


def is_kept(x):
    return bool(x % 3 != 1)


def twice(x):
    return Dataset.from_tensors(x).repeat(2)


seeds = st.sampled_from([None, 1])
sizes = st.integers(1, 6)
SHUFFLE = st.tuples(st.integers(1, 12), seeds, st.booleans()).map(lambda t: Op(f"shuffle{t}", lambda d: d.shuffle(*t)))
FILTER = st.just(Op("filter", lambda d: d.filter(is_kept)))
OPEN = [  # what a pass can end in
    SHUFFLE,
    SHUFFLE,
    st.just(Op("map", lambda d: d.map(lambda x: x + 0))),
    st.just(Op("map on threads", lambda d: d.map(lambda x: x + 0, num_parallel_calls=2))),
    FILTER,
    st.sampled_from([1, 3, 9]).map(lambda k: Op(f"prefetch({k})", lambda d: d.prefetch(k))),
    st.tuples(sizes, sizes).map(lambda t: Op(f"interleave{t}", lambda d: d.interleave(twice, *t), 2)),
    sizes.map(lambda k: Op(f"batch({k}), unbatch", lambda d: d.batch(k).unbatch())),
    st.tuples(sizes, sizes).map(lambda t: Op(f"batch, rebatch{t}, unbatch", lambda d: d.batch(t[0]).rebatch(t[1]).unbatch())),
]
# After a `repeat` without an end, a filter that keeps nothing of a worker's files looks on for ever, as in TensorFlow.
AFTER_FOREVER = [each for each in OPEN if each is not FILTER]
CLOSED = [
    st.just(Op("cache", lambda d: d.cache())),
    st.just(Op("zip(itself)", lambda d: Dataset.zip(d, d).map(lambda a, b: a))),
    st.just(Op("concatenate(itself)", lambda d: d.concatenate(d), 2)),
    st.just(Op("enumerate", lambda d: d.enumerate().map(lambda i, x: x))),
    st.tuples(seeds, st.booleans()).map(
        lambda t: Op(f"sample{t}", lambda d: Dataset.sample_from_datasets([d, d], [0.3, 0.7], *t[:1]), 2)
    ),
    sizes.map(lambda k: Op(f"window({k})", lambda d: d.window(k).flat_map(lambda window: window))),
    sizes.map(lambda k: Op(f"groups({k})", lambda d: d.group_by_window(lambda x: x % 3, lambda key, window: window, k))),
    st.just(Op("ignore_errors", lambda d: d.ignore_errors())),
    st.just(Op("scan", lambda d: d.scan(np.int64(0), lambda total, x: (total + x, x)))),
]
LOSING = [  # leave out other examples if the files are shared in another way
    sizes.map(lambda k: Op(f"take({2 * k})", lambda d: d.take(2 * k))),
    sizes.map(lambda k: Op(f"skip({k})", lambda d: d.skip(k))),
    st.integers(0, 1).map(lambda k: Op(f"shard(2, {k})", lambda d: d.shard(2, k))),
    sizes.map(lambda k: Op(f"batch({k}, drop_remainder=True), unbatch", lambda d: d.batch(k, drop_remainder=True).unbatch())),
]
REPEAT = st.sampled_from([0, 1, 2, 3]).map(lambda k: Op(f"repeat({k})", lambda d: d.repeat(k), k))
FOREVER = Op("repeat()", lambda d: d.repeat())
SOURCES = {
    "lines": lambda paths: TextLineDataset(paths).map(int),
    "shuffled lists": lambda paths: Dataset.list_files(paths, shuffle=True).interleave(TextLineDataset, 2, 2).map(int),
    "interleaved": lambda paths: Dataset.from_tensor_slices(paths).interleave(lines_shuffled, 3, 1, 2).map(int),
    "row groups": lambda paths: ParquetDataset([path.replace(".txt", ".parquet") for path in paths]).map(lambda row: row["x"]),
}


def lines_shuffled(path):
    return TextLineDataset(path).shuffle(3)


@dataclasses.dataclass(frozen=True)
class Pipeline:
    source: str
    files: tuple  # how many examples each has
    ops: tuple
    batch: int
    drop: bool = False

    def paths(self, folder):
        """Write the files if they are not there, and return their names. Examples are numbers from 0."""
        place = folder / "-".join(map(str, self.files))
        if not place.exists():
            place.mkdir()
            first = 0
            for number, size in enumerate(self.files):
                path = place / f"{number}.txt"
                path.write_text("".join(f"{first + i}\n" for i in range(size)))
                table = pa.table({"x": pa.array(range(first, first + size), pa.int64())})
                pq.write_table(table, path.with_suffix(".parquet"), row_group_size=2)
                first += size
        return [str(place / f"{number}.txt") for number in range(len(self.files))]

    def make(self, folder, policy):
        dataset = SOURCES[self.source](self.paths(folder))
        for op in self.ops:
            dataset = op.apply(dataset)
        options = Options()
        options.experimental_distribute.auto_shard_policy = policy
        return dataset.batch(self.batch, self.drop).with_options(options)

    def counts(self):
        """How often each example is there."""
        kept = [x for x in range(sum(self.files)) if is_kept(x) or all(op.text != "filter" for op in self.ops)]
        times = int(np.prod([op.times for op in self.ops]))
        return collections.Counter({x: times for x in kept if times})


NOTHING, KEPT = st.just(()), st.just(False)


@st.composite
def pipelines(draw, *kinds, after=NOTHING, drop=KEPT):
    ops = draw(st.lists(st.one_of(*kinds), max_size=4))
    return Pipeline(
        draw(st.sampled_from(list(SOURCES))),
        draw(st.lists(st.integers(0, 7), min_size=3, max_size=6).map(tuple)),
        (*ops, *draw(after)),
        draw(st.integers(1, 6)),
        draw(drop),
    )


SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 2))  # workers, and replicas for each
KILLS = st.lists(st.tuples(SHAPES, st.integers(0, 8)), min_size=1, max_size=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


FEW, MANY = settings(max_examples=10), settings(max_examples=400)


def both(test):
    """The test with few random examples, and a slow one with many."""
    return pytest.mark.parametrize("run", [FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"])(test)


def killed(go_on, make, kills, shape, position=None):
    """The rows of a run that is killed and goes on with other workers, to its end, and the last position."""
    rows = []
    for each, count in kills:
        group = go_on(make, each, count, position)
        rows, position = rows + group.rows, group.position
    group = go_on(make, shape, 10_000, position)
    assert group.ended
    return rows + group.rows


@both
def test_every_example_is_seen_once_in_each_pass(run, folder, go_on):
    @run
    @given(pipelines(*OPEN, *OPEN, *CLOSED, REPEAT), st.sampled_from([FILE, FILE, AUTO]), KILLS, SHAPES)
    def check(pipeline, policy, kills, shape):
        def make():
            return pipeline.make(folder, policy)

        assert make().explain(2).is_elastic
        assert collections.Counter(killed(go_on, make, kills, shape)) == pipeline.counts()

    check()


@both
def test_what_transforms_leave_out_is_what_the_first_workers_would_have_left_out(run, folder, go_on):
    @run
    @given(pipelines(*OPEN, *LOSING, *CLOSED[:4], drop=st.booleans()), KILLS, SHAPES)
    def check(pipeline, kills, shape):
        def make():
            return pipeline.make(folder, FILE)

        assert make().explain(2).is_elastic
        unseeded = any("None" in op.text for op in pipeline.ops) or pipeline.source in ("shuffled lists", "interleaved")
        rows = killed(go_on, make, kills, shape)
        whole = go_on(make, kills[0][0], 10_000).rows
        assert collections.Counter(rows) <= pipeline.counts()
        if not unseeded:
            assert sorted(rows) == sorted(whole)
        elif all(op.text != "filter" for op in pipeline.ops):  # they are other examples each time, of which it keeps others
            assert len(rows) == len(whole)

    check()


@both
@pytest.mark.long
def test_without_an_end_all_files_are_shared_anew_after_the_same_pass(run, folder, go_on):
    @run
    @given(pipelines(*OPEN, *CLOSED, after=st.lists(st.one_of(*AFTER_FOREVER), max_size=3).map(lambda ops: (FOREVER, *ops))), KILLS)
    def check(pipeline, kills):
        def make():
            return pipeline.make(folder, FILE)

        assert make().explain(2).is_elastic
        rows, position = [], None
        for number, (shape, count) in enumerate([*kills, kills[0]]):
            other = (shape[0] % 3 + 1, shape[1])  # so that there is a rest in any case
            group = go_on(make, shape, count, position)
            rows, position = rows + group.rows, group.position
            rest = go_on(make, other, 0, position)
            if "rest" not in rest.position["position"]:
                assert "rest" not in position["position"]
                continue
            passes = rest.position["position"]["rest"]["passes"]
            over = go_on(make, other, 10_000, rest.position, until=lambda position: "rest" not in position)
            last = over.steps.pop() if not over.ended else []  # belongs to the next pass
            each = collections.Counter({x: times * passes for x, times in pipeline.counts().items()})
            assert collections.Counter(rows + over.rows) == each, number
            rows, position = rows + over.rows + last, over.position
            if over.ended:
                return

    check()


@both
def test_shuffles_of_files_in_windows_go_on(run, folder, go_on):
    """Each of the first workers had shuffled its own files."""
    paths = Pipeline("lines", (5, 3, 4, 1, 6, 2), (), 2).paths(folder)

    @run
    @given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 2), KILLS, SHAPES)
    def check(window, batch, passes, kills, shape):
        def make():
            return of_files(paths).global_shuffle(seed=1, window=window).repeat(passes).batch(batch)

        assert make().explain(2).is_elastic
        assert sorted(killed(go_on, make, kills, shape)) == sorted([*go_on(make, (1, 1), 1000).rows])

    check()


# What a position refuses, and special cases


def of_files(paths, policy=FILE):
    options = Options()
    options.experimental_distribute.auto_shard_policy = policy
    return TextLineDataset(paths).map(int).with_options(options)


@pytest.fixture
def paths(folder):
    return Pipeline("lines", (5, 3, 4), (), 2).paths(folder)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d.repeat().batch(4, drop_remainder=True), r"without end, and batch\(4, drop_remainder=True\) goes on"),
        (lambda d: d.repeat().enumerate().batch(4), r"without end, and enumerate\(0\) goes on from one pass to the next"),
        (lambda d: d.flat_map(lambda x: Dataset.from_tensors(x).repeat()).batch(4), "of which one pass has no end"),
    ],
)
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (2, 2)])
def test_what_cannot_go_on_says_so_before_and_is_refused(paths, go_on, change, why, shape):
    def make():
        return change(of_files(paths))

    assert not make().explain(2).is_elastic
    position = go_on(make, (2, 1), 3).position
    assert go_on(make, (2, 1), 3, position).steps == go_on(make, (2, 1), 6).steps[3:]
    with pytest.raises(DatasetError, match=rf"by 2 workers of 1 replica\(s\).* by {shape[0]} of {shape[1]} in .*: .*{why}"):
        go_on(make, shape, 3, position)


def test_what_workers_had_under_off_is_not_continued_by_files(paths, go_on):
    """Under OFF, the files of a worker are whatever it says that they are."""
    position = go_on(lambda: of_files(paths, OFF).batch(2), (2, 1), 2).position
    with pytest.raises(DatasetError, match="It cannot be continued by 2 of 1 in this pipeline: only they know what it was"):
        go_on(lambda: of_files(paths).batch(2), (2, 1), 2, position)


def test_other_replicas_do_not_go_on_in_the_middle_of_a_batch_under_off(paths, go_on):
    def make():
        return of_files(paths, OFF).batch(5)

    def count(shapes, steps):
        groups = [go_on(make, shapes[0], steps)]
        groups.append(go_on(make, shapes[1], 100, groups[0].position))
        return collections.Counter(groups[0].rows + groups[1].rows)

    assert count([(2, 1), (2, 1)], 1) == dict.fromkeys(range(12), 2)
    assert count([(2, 1), (2, 2)], 2) == dict.fromkeys(range(12), 2)
    with pytest.raises(DatasetError, match="It cannot be continued by 2 of 2 in this pipeline: only they know what it was"):
        count([(2, 1), (2, 2)], 1)


def test_a_part_that_another_library_made_stays_with_its_worker():
    table = datasets.Dataset.from_dict({"x": list(range(6))})
    dataset = Dataset.from_huggingface(table.to_iterable_dataset(num_shards=3)).batch(2)
    line = "continue with 2 workers only, because each has a part of a Hugging Face IterableDataset, which its library makes\n"
    assert line in str(dataset.explain(2, policy=FILE))
    assert dataset.explain(2).is_elastic


def test_fit_refuses_a_pass_of_other_workers_if_it_counts_steps(paths, go_on):
    def make(dataset):
        options = Options()
        options.experimental_distribute.auto_shard_policy = FILE
        return dataset.with_options(options)

    listed = Dataset.list_files(paths, shuffle=False).map(lambda name: 1)
    for dataset, known in ((listed.batch(2), True), (listed.filter(lambda x: True).batch(2), False)):
        position = go_on(lambda dataset=dataset: make(dataset), (2, 1), 1).position
        batches = Batches(DistributedDataset(make(dataset), Topology(), lambda rows, sizes: rows), lambda batch: batch, KeyError)
        if known:
            with pytest.raises(
                DatasetError, match=r"`fit` expects the 2 steps .* other workers began this pass with files of their"
            ):
                batches.go_to(position, 1)
        else:
            batches.go_to(position, 1)
            assert [row for batch in batches for row in batch] == [1]
        batches.close()


@pytest.mark.parametrize("shapes", list(itertools.permutations([(1, 1), (2, 1), (3, 2)])))
@pytest.mark.parametrize("policies", [(FILE, DATA, FILE), (DATA, FILE, DATA), (AUTO, AUTO, AUTO)])
def test_policies_may_change_as_well(paths, go_on, shapes, policies):
    """Also without a change of workers in between, and with a batch that was cut in its middle."""
    rows, position = [], None
    for shape, policy, count in zip((*shapes, shapes[-1]), (*policies, FILE), (3, 1, 1, 100), strict=True):
        group = go_on(lambda policy=policy: of_files(paths, policy).batch(3), shape, count, position)
        rows, position = rows + group.rows, group.position
    assert sorted(rows) == list(range(12))


def test_the_rest_is_read_as_under_data_and_later_passes_by_files(paths, go_on):
    def make():
        return of_files(paths).repeat(3).batch(4)  # files of 0..4, 5..7 and 8..11

    begun = go_on(make, (2, 1), 2)
    assert begun.steps == [[0, 1, 5, 6], [2, 3, 7, 5]]  # worker 1 is in its second pass
    after = go_on(make, (3, 1), 100, begun.position)
    rest = [[4, 8, 9, 10], [11, 0, 1, 2], [3, 4, 8, 9], [10, 11], [6, 7]]  # of the two passes
    assert after.steps == [*rest, [0, 1, 5, 8, 9], [2, 3, 6, 10, 11], [4, 7]]
    assert "rest" not in after.position["position"]


@pytest.mark.parametrize("where", ["memory", "file"])
def test_a_cache_keeps_nothing_of_others(paths, go_on, tmp_path, where):
    """Each part is cached for itself, and read again by those who share the files anew."""

    def make():
        return of_files(paths).cache(str(tmp_path / "cache") if where == "file" else "").repeat(3).batch(4)

    for cut in range(12):
        for path in tmp_path.iterdir():
            path.unlink()
        rows = killed(go_on, make, [((2, 1), cut), ((3, 1), 2)], (1, 2))
        assert collections.Counter(rows) == dict.fromkeys(range(12), 3), cut


DEEP = {
    "prefetch": lambda d: d.prefetch(9).batch(2),
    "prefetched batches": lambda d: d.batch(2).prefetch(2),
    "shuffle": lambda d: d.shuffle(15, seed=1).batch(2),
    "threads": lambda d: d.map(lambda x: x + 0, num_parallel_calls=2).batch(2),
    "interleave": lambda d: d.interleave(Dataset.from_tensors, 3).batch(2).prefetch(1),
}


@pytest.mark.parametrize("name", DEEP)
def test_several_passes_may_have_begun(paths, go_on, name):
    def make():
        return DEEP[name](of_files(paths).repeat(6))

    for cut in (9, 17):
        rows = killed(go_on, make, [((2, 1), cut), ((3, 1), 2)], (1, 2))
        assert collections.Counter(rows) == dict.fromkeys(range(12), 6), cut


def test_known_numbers_of_steps_do_not_end_the_pass_of_others(folder, go_on):
    """Workers that go on in the middle of a batch make more steps than if they had begun."""
    names = Pipeline("lines", (1,) * 12, (), 2).paths(folder)

    def make():
        options = Options()
        options.experimental_distribute.auto_shard_policy = FILE
        listed = Dataset.list_files(sorted(names), shuffle=False).map(sorted(names).index)
        return listed.batch(2, drop_remainder=True).repeat(3).with_options(options)

    places = HostPlaces(Topology(2, 0, 1), None)
    known = DistributedDataset(make(), Topology(2, 0, 1), on_one_worker, exchange=lambda value: [value] * 2, workers=places)
    assert known.cardinality() == 18
    for cut in range(8):
        rows = killed(go_on, make, [((1, 1), cut)], (3, 1))
        assert collections.Counter(rows) == dict.fromkeys(range(12), 3), cut
        rows = killed(go_on, make, [((3, 1), cut)], (2, 1))
        assert collections.Counter(rows) == dict.fromkeys(range(12), 3), cut
