"""Random pipelines: against a model of tf.data in plain lists, cut at random points, and split over replicas and workers."""

import dataclasses
import functools
import io
import itertools
import json
import operator
import tarfile
from collections.abc import Callable

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicant.data import (
    ArrayRecordDataset,
    AutoShardPolicy,
    Dataset,
    DistributedDataset,
    LitDataDataset,
    MegatronDataset,
    NumpyDataset,
    Options,
    ParquetDataset,
    TarDataset,
    TextLineDataset,
    TokenDataset,
)
from replicant.replicas._topology import Topology

from .test_input_litdata import numbers as litdata
from .test_input_numbered import array_record, megatron, npy, npz

MANY = 60  # elements that are read of a pipeline, which may be infinite


@dataclasses.dataclass(frozen=True)
class Op:
    """One transform: on a dataset, and on an iterator of elements. ``text`` is what a failing example shows."""

    text: str
    apply: Callable
    model: Callable

    def __repr__(self):
        return self.text


def leaves(element):
    return jax.tree_util.tree_leaves(element)


def increment(*element):
    value = element[0] if len(element) == 1 else element
    return jax.tree_util.tree_map(lambda x: x + 1, value)


def is_kept(*element):
    return bool(np.sum(leaves(element)[0]) % 3 != 1)


def called(fn):
    return lambda element: fn(*element) if type(element) is tuple else fn(element)


def model_batch(size, drop):
    def batch(elements):
        elements = iter(elements)
        while chunk := list(itertools.islice(elements, size)):
            if drop and len(chunk) < size:
                return
            yield jax.tree_util.tree_map(lambda *rows: np.stack(rows), *chunk)

    return batch


def model_unbatch(elements):
    for element in elements:
        parts, structure = jax.tree_util.tree_flatten(element)
        for row in zip(*parts, strict=True):
            yield jax.tree_util.tree_unflatten(structure, row)


def model_rebatch(size):
    return lambda elements: model_batch(size, False)(model_unbatch(elements))


class Again:
    """A model that can be iterated repeatedly."""

    def __init__(self, model, parent):
        self.model, self.parent = model, parent

    def __iter__(self):
        return iter(self.model(self.parent))


def model_repeat(count):
    def repeat(elements):
        for _ in itertools.count() if count is None else range(count):
            empty = True
            for element in elements:
                empty = False
                yield element
            if empty:
                return

    return repeat


def twice(*element):
    """A dataset of each element, twice."""
    value = element[0] if len(element) == 1 else element
    return Dataset.from_tensors(value).repeat(2)


def model_interleave(cycle, block):
    def interleave(elements):
        elements = iter(elements)
        slots = [None] * cycle
        turn, ended = 0, False
        while not ended or any(slots):
            if slots[turn] is None and not ended:
                try:
                    slots[turn] = [next(elements)] * 2
                except StopIteration:
                    ended = True
            given = 0
            while slots[turn] and given < block:
                yield slots[turn].pop()
                given += 1
            if not slots[turn] and given < block:  # otherwise its end is noticed in its next turn
                slots[turn] = None
            turn = (turn + 1) % cycle
            if all(slot is None or slot == [] for slot in slots) and ended:
                return

    return interleave


def number_of(*element):
    return int(np.sum(leaves(element)[0]))


def summed(total, element):
    return np.int64(total + number_of(element)), jax.tree_util.tree_map(lambda x: x + total % 5, element)


def model_scan(elements):
    total = np.int64(0)
    for element in elements:
        total, made = summed(total, element)
        yield made


def model_unique(elements):
    seen = []
    for element in itertools.islice(elements, MANY):
        if plain([element]) not in seen:
            seen.append(plain([element]))
            yield element


def whole_window(*parts):
    """The elements of a window, whose components are datasets of their own."""
    return Dataset.zip(*parts)


def model_window(size, shift, stride, drop):
    def window(elements):
        elements = list(itertools.islice(elements, MANY))
        for first in range(0, len(elements), shift):
            found = elements[first : first + (size - 1) * stride + 1 : stride]
            if len(found) == size or not drop:
                yield from found

    return window


def model_groups(size):
    def groups(elements):
        windows = {}
        for element in elements:
            key = called(number_of)(element) % 3
            windows.setdefault(key, []).append(element)
            if len(windows[key]) == size:
                yield from windows.pop(key)
        for key in sorted(windows):
            yield from windows[key]

    return groups


def not_seven(*element):
    if number_of(*element) % 7 == 0:
        raise ValueError("seven")
    return element[0] if len(element) == 1 else element


CHOICES = [0, 1, 1, 0, 0, 0, 1]


def model_choose(elements):
    inputs = [iter(elements), iter(elements)]
    for choice in CHOICES:
        yield from itertools.islice(inputs[choice], 1)


sizes = st.integers(1, 6)
FLAT = [  # keep the rank of elements
    sizes.map(lambda k: Op(f"take({4 * k})", lambda d: d.take(4 * k), lambda e: itertools.islice(e, 4 * k))),
    sizes.map(lambda k: Op(f"skip({k})", lambda d: d.skip(k), lambda e: itertools.islice(e, k, None))),
    st.tuples(st.integers(1, 3), st.integers(0, 2)).map(
        lambda t: Op(
            f"shard({t[0]}, {t[1] % t[0]})",
            lambda d: d.shard(t[0], t[1] % t[0]),
            lambda e: itertools.islice(e, t[1] % t[0], None, t[0]),
        )
    ),
    st.sampled_from([None, 0, 1, 2, 3]).map(lambda k: Op(f"repeat({k})", lambda d: d.repeat(k), model_repeat(k))),
    st.just(Op("map", lambda d: d.map(increment), lambda e: map(called(increment), e))),
    st.just(Op("filter", lambda d: d.filter(is_kept), lambda e: filter(called(is_kept), e))),
    st.just(Op("cache", lambda d: d.cache(), lambda e: e)),
    st.just(Op("map on threads", lambda d: d.map(increment, num_parallel_calls=2), lambda e: map(called(increment), e))),
    st.tuples(sizes, sizes, st.booleans()).map(
        lambda t: Op(f"interleave{t}", lambda d: d.interleave(twice, *t[:2], 2 if t[2] else None), model_interleave(*t[:2]))
    ),
    st.just(Op("flat_map", lambda d: d.flat_map(twice), model_interleave(1, 1))),
    st.sampled_from([2, 8, 13]).map(lambda k: Op(f"prefetch({k})", lambda d: d.prefetch(k), lambda e: e)),
    st.just(
        Op(
            "concatenate(itself)",
            lambda d: d.concatenate(d.take(2)),
            lambda e: itertools.chain(e, itertools.islice(e, 2)),
        )
    ),
    st.just(Op("scan", lambda d: d.scan(np.int64(0), summed), model_scan)),
    sizes.map(
        lambda k: Op(
            f"take_while(< {3 * k})",
            lambda d: d.take_while(lambda *e: number_of(*e) < 3 * k),
            lambda e: itertools.takewhile(called(lambda *e: number_of(*e) < 3 * k), e),
        )
    ),
    st.just(Op("unique", lambda d: d.take(MANY).unique(), model_unique)),
    st.tuples(sizes, sizes, st.integers(1, 2), st.booleans()).map(
        lambda t: Op(f"window{t}", lambda d: d.take(MANY).window(*t).flat_map(whole_window), model_window(*t))
    ),
    sizes.map(
        lambda k: Op(
            f"group_by_window({k})",
            lambda d: d.group_by_window(lambda *e: number_of(*e) % 3, lambda key, window: window, k),
            model_groups(k),
        )
    ),
    st.just(
        Op(
            "ignore_errors",
            lambda d: d.map(not_seven).ignore_errors(),
            lambda e: filter(lambda element: called(number_of)(element) % 7, e),
        )
    ),
    st.just(
        Op(
            "choose_from_datasets",
            lambda d: Dataset.choose_from_datasets([d, d], Dataset.from_tensor_slices(np.array(CHOICES)), False),
            model_choose,
        )
    ),
]
BATCH = st.tuples(sizes, st.booleans()).map(lambda t: Op(f"batch({t[0]}, {t[1]})", lambda d: d.batch(*t), model_batch(*t)))
UNBATCH = st.just(Op("unbatch", lambda d: d.unbatch(), model_unbatch))
REBATCH = sizes.map(lambda k: Op(f"rebatch({k})", lambda d: d.rebatch(k), model_rebatch(k)))
PAIRS = [
    st.integers(0, 3).map(lambda k: Op(f"enumerate({k})", lambda d: d.enumerate(k), lambda e: enumerate(e, k))),
    st.just(
        Op(
            "zip(range)",
            lambda d: Dataset.zip(Dataset.range(50, 60), d),
            lambda e: zip(map(np.int64, range(50, 60)), e, strict=False),
        )
    ),
]
SHUFFLE = st.tuples(st.integers(1, 12), st.integers(0, 3), st.booleans()).map(
    lambda t: Op(f"shuffle{t}", lambda d: d.shuffle(*t), lambda e: e)
)
GLOBAL_SHUFFLE = st.tuples(st.integers(0, 3), st.booleans()).map(
    lambda t: Op(f"global_shuffle{t}", lambda d: d.global_shuffle(*t), lambda e: e)
)


@st.composite
def pipelines(draw, *, shuffles=False, ends_in_batch=False):
    """Up to 6 transforms; batches only of scalars, so that nothing ragged is stacked."""
    ops, batched = [], False
    for _ in range(draw(st.integers(0, 6 - ends_in_batch))):
        choices = FLAT + ([SHUFFLE] * 3 if shuffles else [])
        choices = choices + ([UNBATCH, REBATCH] if batched else [BATCH, *PAIRS])
        op = draw(st.one_of(choices))
        batched = {"batch": True, "unbatch": False}.get(op.text.split("(")[0], batched)
        ops.append(op)
    if ends_in_batch and not batched:
        ops.append(draw(BATCH))
    if shuffles and draw(st.booleans()):
        ops.insert(0, draw(GLOBAL_SHUFFLE))
    return draw(st.integers(0, 13)), tuple(ops)


def build(pipeline):
    size, ops = pipeline
    dataset = Dataset.from_tensor_slices(np.arange(size))
    for op in ops:
        dataset = op.apply(dataset)
    return dataset


def modelled(pipeline):
    size, ops = pipeline
    elements = [np.int64(i) for i in range(size)]
    for op in ops:
        elements = Again(op.model, elements)
    return itertools.islice(iter(elements), MANY)


def plain(elements):
    return [jax.tree_util.tree_map(lambda x: np.asarray(x).tolist(), element) for element in elements]


def read(iterator):
    with iterator:
        return plain(itertools.islice(iterator, MANY))


@given(pipelines())
@settings(max_examples=1000)
@pytest.mark.long
def test_a_pipeline_gives_what_the_model_gives(pipeline):
    assert read(iter(build(pipeline))) == plain(modelled(pipeline))


@given(pipelines(shuffles=True), st.integers(0, 25), st.integers(0, 2))
@settings(max_examples=1000)
@pytest.mark.long
def test_an_iterator_continues_where_another_was(pipeline, cut, passes_before):
    """The state goes through JSON into a freshly built pipeline, as after a restart of the process."""
    dataset = build(pipeline)
    for _ in range(passes_before):
        read(iter(dataset))
    with iter(dataset) as iterator:
        done = list(itertools.islice(iterator, cut))
        state = json.loads(json.dumps(iterator.state()))
        rest = plain(itertools.islice(iterator, MANY))
    assert len(done) <= cut
    fresh = build(pipeline)
    again = iter(fresh)
    again.restore(state)
    assert json.loads(json.dumps(again.state())) == state
    assert read(again) == rest
    if rest and len(rest) < MANY:  # both have reached the end: the passes after it are the same as well
        assert read(iter(fresh)) == read(iter(dataset))


CUT_EVERYWHERE = {
    "blocks of a prefetch": lambda: Dataset.range(20).prefetch(16).repeat(2),
    "shuffle, mapped before": lambda: Dataset.range(20).map(lambda x: x + 1).shuffle(4, seed=1).repeat(3),
    "shuffle of shuffle": lambda: Dataset.range(20).shuffle(3, seed=1).repeat(2).shuffle(5, seed=2),
    "shuffle of two tables": lambda: Dataset.range(9).concatenate(Dataset.range(20, 29)).shuffle(3, seed=1),
    "passes that are cut short": lambda: Dataset.range(20).shuffle(5, seed=1).take(7).repeat(4),
    "cache of a shuffle": lambda: Dataset.range(6).shuffle(6, seed=1).cache().repeat(3),
    "cache that is never complete": lambda: Dataset.range(6).shuffle(6, seed=1).cache().take(4).repeat(3),
    "rows of unequal batches": lambda: Dataset.range(7).batch(3).repeat(2).unbatch().batch(2),
    "batches of two sizes": lambda: Dataset.range(20).batch(20).rebatch([3, 1]),
    "shards over the end of a pass": lambda: Dataset.range(5).repeat(5).shard(3, 2).batch(4),
    "shard of a filter": lambda: Dataset.range(30).filter(lambda x: x % 7 != 3).shard(3, 1).batch(4),
    "zip of different ends": lambda: Dataset.zip(Dataset.range(9).shuffle(4, seed=1), Dataset.range(3).repeat()).repeat(2),
    "everything": lambda: (
        Dataset.range(12)
        .shuffle(5, seed=3)
        .enumerate()
        .map(lambda i, x: x + 100 * i)
        .cache()
        .repeat(3)
        .shuffle(4, seed=4)
        .batch(3)
        .prefetch(2)
    ),
}


@pytest.mark.parametrize("name", CUT_EVERYWHERE)
def test_an_iterator_continues_from_every_point(name):
    make = CUT_EVERYWHERE[name]
    whole = read(iter(make()))
    for cut in range(len(whole) + 1):
        with iter(make()) as iterator:
            assert plain(itertools.islice(iterator, cut)) == whole[:cut]
            state = json.loads(json.dumps(iterator.state()))
        again = iter(make())
        again.restore(state)
        assert read(again) == whole[cut:], cut


def test_an_iterator_that_has_read_on_can_go_back():
    dataset = Dataset.range(8).shuffle(8, seed=1).cache().batch(2)
    with iter(dataset) as iterator:
        first = plain(itertools.islice(iterator, 2))
        state = iterator.state()
        rest = plain(iterator)
        iterator.restore(state)
        assert plain(iterator) == rest
    assert sorted(functools.reduce(operator.iadd, first + rest, [])) == list(range(8))


def test_a_position_in_another_pass_than_the_cached_one():
    """The cache keeps the first complete pass; a position in an incomplete one leads back to that one's order."""
    dataset = Dataset.range(8).shuffle(8, seed=1).cache()
    interrupted = iter(dataset)
    begun = plain(itertools.islice(interrupted, 3))
    state = interrupted.state()
    rest = plain(interrupted)
    fresh = Dataset.range(8).shuffle(8, seed=1).cache()
    next(iter(fresh))
    kept = plain(fresh)  # the second order
    assert kept != begun + rest
    again = iter(fresh)
    again.restore(state)
    assert plain(again) == rest


@given(pipelines(shuffles=True, ends_in_batch=True), st.integers(1, 5), st.integers(1, 3))
@settings(max_examples=150)
@pytest.mark.long
def test_replicas_of_all_workers_together_see_what_one_device_sees(pipeline, num_workers, replicas_per_worker):
    workers = []
    for worker in range(num_workers):
        topology = Topology(num_workers, worker, replicas_per_worker)
        with iter(DistributedDataset(build(pipeline), topology, Part)) as iterator:
            workers.append(list(itertools.islice(iterator, MANY)))
    together = [jax.tree_util.tree_map(joined, *step) for step in zip(*workers, strict=True)]
    assert plain(together) == read(iter(build(pipeline)))


SOURCES = {
    "arrays": lambda size, folder: Dataset.from_tensor_slices(np.arange(size)),
    "text": lambda size, folder: TextLineDataset(sorted(folder.glob(f"{size}-*.txt"))).map(np.int64),
    "parquet": lambda size, folder: ParquetDataset(sorted(folder.glob(f"{size}-*.parquet"))).map(lambda row: row["x"]),
    "shuffled groups": lambda size, folder: (
        ParquetDataset(sorted(folder.glob(f"{size}-*.parquet"))).global_shuffle(seed=1, window=2).map(lambda row: row["x"])
    ),
    "shuffled tar": lambda size, folder: (
        TarDataset(sorted(folder.glob(f"{size}-*.tar"))).global_shuffle(seed=2).map(lambda sample: np.int64(int(sample["x"])))
    ),
    "array_record": lambda size, folder: ArrayRecordDataset(sorted(folder.glob(f"{size}-*.array_record"))).map(np.int64),
    "shuffled array_record": lambda size, folder: (
        ArrayRecordDataset(sorted(folder.glob(f"{size}-*.array_record"))).global_shuffle(seed=5).map(np.int64)
    ),
    "litdata": lambda size, folder: LitDataDataset(folder / f"{size}-litdata").map(lambda row: row["n"]),
    "shuffled litdata": lambda size, folder: (
        LitDataDataset(folder / f"{size}-litdata").global_shuffle(seed=6).map(lambda row: row["n"])
    ),
    "npy": lambda size, folder: NumpyDataset(sorted(folder.glob(f"{size}-*.npy"))).map(np.int64),
    "shuffled npy": lambda size, folder: NumpyDataset(sorted(folder.glob(f"{size}-*.npy"))).global_shuffle(seed=3).map(np.int64),
    "npz": lambda size, folder: NumpyDataset(sorted(folder.glob(f"{size}-*.npz")), columns=["x"]).map(lambda row: row["x"]),
    "tokens": lambda size, folder: TokenDataset(sorted(folder.glob(f"{size}-*.tokens")), 2, stride=1, dtype="uint16").map(
        lambda ids: np.int64(ids[0])
    ),
    "megatron": lambda size, folder: MegatronDataset(sorted(folder.glob(f"{size}-*.idx"))).map(lambda ids: np.int64(ids[-1])),
    "shuffled megatron": lambda size, folder: (
        MegatronDataset(sorted(folder.glob(f"{size}-*.idx"))).global_shuffle(seed=4).map(lambda ids: np.int64(ids[-1]))
    ),
    "mixture": lambda size, folder: Dataset.sample_from_datasets(
        [Dataset.range(size // 2), SOURCES["text"](size, folder)], weights=[(0, [1.0, 0.0]), (3, [0.3, 0.7])], seed=1
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """For each size, three files of each format with the numbers below it, one of which may be empty."""
    folder = tmp_path_factory.mktemp("numbers")
    for size in range(14):
        litdata(folder / f"{size}-litdata", *map(len, np.array_split(np.arange(size), 3)))
        for number, part in enumerate(np.array_split(np.arange(size), 3)):
            (folder / f"{size}-{number}.txt").write_text("".join(f"{x}\n" for x in part))
            pq.write_table(pa.table({"x": part}), folder / f"{size}-{number}.parquet", row_group_size=2)
            with tarfile.open(folder / f"{size}-{number}.tar", "w") as tar:
                for x in part:
                    member = tarfile.TarInfo(f"{x}.x")
                    member.size = len(str(x))
                    tar.addfile(member, io.BytesIO(str(x).encode()))
            begin = sum(len(each) for each in np.array_split(np.arange(size), 3)[:number])
            array_record(folder / f"{size}-{number}.array_record", begin, begin + len(part))
            npy(folder / f"{size}-{number}.npy", begin, begin + len(part))
            npz(folder / f"{size}-{number}.npz", begin, begin + len(part))
            np.append(part, 99).astype("<u2").tofile(folder / f"{size}-{number}.tokens")
            megatron(folder / f"{size}-{number}", [[7] * (x % 3) + [x] for x in part])
    return folder


@given(pipelines(shuffles=True, ends_in_batch=True), st.sampled_from(list(SOURCES)), st.data())
@settings(max_examples=250)
@pytest.mark.long
def test_a_run_continues_with_any_number_of_workers(folder, pipeline, source, data):
    """The steps before each kill and after it together are those of one device, so no example is lost or seen twice."""

    def make():
        dataset = SOURCES[source](pipeline[0], folder)
        for op in pipeline[1]:
            if source == "arrays" or not op.text.startswith("global_shuffle"):  # which needs random access
                dataset = op.apply(dataset)
        options = Options()
        options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA
        return dataset.with_options(options)

    def steps(num_workers, count, position=None):
        """The global batches of these steps, and the position after them."""
        shares, positions = [], []
        for worker in range(num_workers):
            with iter(DistributedDataset(make(), Topology(num_workers, worker, 1), Part)) as iterator:
                if position is not None:
                    iterator.restore(position)
                shares.append(list(itertools.islice(iterator, count)))
                positions.append(json.dumps(iterator.state()))
        assert len(set(positions)) == 1
        return plain(jax.tree_util.tree_map(joined, *step) for step in zip(*shares, strict=True)), json.loads(positions[0])

    assert make().explain(3).is_elastic
    whole = read(iter(make()))
    done, position = [], None
    for cut in data.draw(st.lists(st.integers(0, 8), min_size=1, max_size=3), label="kill points"):
        before, position = steps(data.draw(st.integers(1, 4), label="workers"), cut, position)
        done += before
    rest, _ = steps(data.draw(st.integers(1, 4), label="workers"), MANY - len(done), position)
    assert done + rest == whole


class Part:
    """What one worker has of a component."""

    def __init__(self, rows, sizes):
        assert len(rows) == sum(sizes)
        self.rows = rows


def joined(*parts):
    return np.concatenate([part.rows for part in parts])
