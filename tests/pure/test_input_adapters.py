"""Batches of other libraries: recognized, distributed, shared where that can be, and refused with the way out where not."""

import collections
import itertools
import json
import re
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

from replicant.data import AutoShardPolicy, Dataset, DistributedDataset, Options
from replicant.errors import ArgumentTypeError, DatasetError
from replicant.input.adapters import as_dataset
from replicant.input.graph._structure import TensorSpec
from replicant.replicas._topology import Topology

Named = collections.namedtuple("Named", "a b")


@pytest.fixture(scope="module", name="tf")  # of the module: importing libraries changes environment variables
def tensorflow() -> Any:
    return optional("tensorflow")


@pytest.fixture(scope="module")
def grain() -> Any:
    return optional("grain.python")


@pytest.fixture(scope="module")
def torch() -> Any:
    return optional("torch")


@pytest.fixture(scope="module")
def pandas() -> Any:
    return optional("pandas")


def optional(library: str) -> Any:
    """The library, or a skip that says what is missing."""
    return pytest.importorskip(library, reason=f"{library} is optional, and not installed")


def cut(rows, sizes):
    ends = np.cumsum(sizes)
    return [rows[end - size : end].tolist() for end, size in zip(ends, sizes, strict=True)]


def steps(value, num_replicas=2):
    return list(DistributedDataset(value, Topology(replicas_per_worker=num_replicas), cut))


def steps_of_workers(run_workers, make, num_workers=2):
    def worker_steps(worker, exchange):
        return list(DistributedDataset(make(), Topology(num_workers, worker, 1), cut, exchange=exchange))

    return run_workers(num_workers, worker_steps)


def with_policy(dataset, policy):
    options = Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def check_positions(make):
    """An iterator continues at every point, from a state that JSON can hold, in a dataset made anew."""
    whole = steps(make())
    for at in range(len(whole) + 1):
        with iter(DistributedDataset(make(), Topology(replicas_per_worker=2), cut)) as iterator:
            assert list(itertools.islice(iterator, at)) == whole[:at]
            state = json.loads(json.dumps(iterator.state()))
        again = iter(DistributedDataset(make(), Topology(replicas_per_worker=2), cut))
        again.restore(state)
        assert list(again) == whole[at:]


BATCHES = [np.arange(4), np.arange(4, 7)]
CUT = [[[0, 1], [2, 3]], [[4, 5], [6]]]
OF_WORKERS = [[[[0, 1]], [[4, 5]]], [[[2, 3]], [[6]]]]


# Arrays


@pytest.mark.parametrize("array", [np.arange(5), jnp.arange(5), np.arange(5.0, dtype=np.float16)])
def test_an_array_is_one_batch(array):
    assert steps(array) == [[[0, 1, 2], [3, 4]]]
    dataset = as_dataset(array)
    assert (dataset.cardinality(), dataset.element_spec) == (1, TensorSpec((5,), array.dtype))


def test_structures_of_arrays_are_one_batch(run_workers):
    assert steps((np.arange(3), {"s": np.array(["a", "b", "c"])})) == [([[0, 1], [2]], {"s": [["a", "b"], ["c"]]})]
    assert steps(Named(np.arange(2), jnp.ones(2)))[0] == Named([[0], [1]], [[1.0], [1.0]])
    assert steps_of_workers(run_workers, lambda: np.arange(4)) == [[[[0, 1]]], [[[2, 3]]]]


# Iterables and generators


def test_a_list_of_batches_can_be_read_again():
    dataset = DistributedDataset(BATCHES, Topology(replicas_per_worker=2), cut)
    assert list(dataset) == list(dataset) == CUT
    assert dataset.cardinality() == -2
    assert as_dataset(BATCHES).element_spec == TensorSpec((None,), np.int64)
    assert steps([]) == []
    check_positions(lambda: BATCHES)


def test_a_generator_is_read_once_and_no_further_than_asked():
    made = []

    def batches():
        for batch in BATCHES:
            made.append(len(batch))
            yield batch

    dataset = DistributedDataset(batches(), Topology(replicas_per_worker=2), cut)
    assert made == [4]  # to learn what the elements look like
    assert list(dataset) == CUT
    assert made == [4, 3]
    with pytest.raises(DatasetError, match=r"A generator can be read once.*`Dataset\.from_generator\(fn\)`"):
        list(dataset)
    check_positions(lambda: iter(BATCHES))


def test_an_iterable_that_raises():
    def batches():
        yield BATCHES[0]
        raise KeyError("mine")

    iterator = iter(DistributedDataset(batches(), Topology(replicas_per_worker=2), cut))
    assert next(iterator) == CUT[0]
    with pytest.raises(KeyError, match="mine"):
        next(iterator)


@pytest.mark.parametrize("policy", [AutoShardPolicy.AUTO, AutoShardPolicy.DATA])
def test_what_may_differ_between_workers_cannot_be_shared(policy):
    dataset = with_policy(as_dataset(BATCHES), policy)
    with pytest.raises(
        DatasetError,
        match=r"A list cannot be shared among 2 workers.*distribute_datasets_from_function\(fn\)`.*AutoShardPolicy\.OFF",
    ):
        DistributedDataset(dataset, Topology(2, 0, 1), cut)
    with pytest.raises(DatasetError, match=r"but adapted\(list\) reads 0 files"):
        DistributedDataset(with_policy(dataset, AutoShardPolicy.FILE), Topology(2, 0, 1), cut)


def test_a_share_of_its_own_for_every_worker(run_workers):
    def worker_steps(worker, exchange):
        share = with_policy(as_dataset([np.arange(2) + 10 * i for i in range(worker, 3, 2)]), AutoShardPolicy.OFF)
        by_policy = list(DistributedDataset(share, Topology(2, worker, 1), cut, exchange=exchange))
        return by_policy, list(
            DistributedDataset.from_function(
                lambda context: [np.arange(2) + 10 * i for i in range(context.input_pipeline_id, 3, context.num_input_pipelines)],
                Topology(2, worker, 1),
                lambda values: [value.tolist() for value in values],
                exchange=exchange,
            )
        )

    assert run_workers(2, worker_steps) == [
        ([[[0]], [[1]], [[20]], [[21]]], [[[0, 1]], [[20, 21]]]),
        ([[[10]], [[11]], [[]], [[]]], [[[10, 11]], [[]]]),
    ]


@pytest.mark.parametrize("nothing", [3, None, "text", b"bytes", len])
def test_what_yields_no_batches(nothing):
    with pytest.raises(
        ArgumentTypeError, match=rf"an object that yields global batches.*Received: {type(nothing).__name__}\. Make a dataset"
    ):
        steps(nothing)


def test_what_is_distributed_already_and_what_is_no_tensor():
    dataset = DistributedDataset(Dataset.range(4).batch(2), Topology(), cut)
    with pytest.raises(ArgumentTypeError, match=r"already distributed. Loop over it"):
        DistributedDataset(dataset, Topology(), cut)
    with pytest.raises(DatasetError, match="is a object, which is not a tensor"):
        steps([object()])


# keras.utils.PyDataset


class Numbers(keras.utils.PyDataset):
    """Batches [0..3], [4..6], with what was called written down."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return BATCHES[index], BATCHES[index] * 2.0

    def on_epoch_begin(self):
        self.calls.append("begin")

    def on_epoch_end(self):
        self.calls.append("end")


def test_a_py_dataset(run_workers):
    numbers = Numbers()
    dataset = DistributedDataset(numbers, Topology(replicas_per_worker=2), cut)
    assert [x for x, _ in dataset] == [x for x, _ in dataset] == CUT
    assert numbers.calls == ["begin", "end"] * 2
    assert dataset.cardinality() == 2
    shares = steps_of_workers(run_workers, Numbers)
    assert [[x for x, _ in worker] for worker in shares] == OF_WORKERS
    check_positions(Numbers)


def test_a_py_dataset_without_end():
    class Endless(keras.utils.PyDataset):
        num_batches = None

        def __getitem__(self, index):
            return np.full(2, index)

    dataset = DistributedDataset(Endless(), Topology(replicas_per_worker=2), cut)
    assert dataset.cardinality() == -1
    with iter(dataset) as iterator:
        assert list(itertools.islice(iterator, 3)) == [[[0], [0]], [[1], [1]], [[2], [2]]]


# pandas


def test_pandas(pandas):
    frame = pandas.DataFrame({"x": [1, 2, 3], "name": ["a", "b", "c"]})
    assert steps(frame) == [{"x": [[1, 2], [3]], "name": [["a", "b"], ["c"]]}]
    assert steps(frame["x"]) == [[[1, 2], [3]]]
    rows = Dataset.from_tensor_slices(dict(frame)).batch(2)
    assert steps(rows) == [{"x": [[1], [2]], "name": [["a"], ["b"]]}, {"x": [[3], []], "name": [["c"], []]}]


# Grain


def test_a_grain_map_dataset(grain, run_workers):

    def make():
        return grain.MapDataset.range(7).batch(4)

    assert steps(make()) == CUT
    assert steps_of_workers(run_workers, make) == OF_WORKERS
    check_positions(make)
    assert as_dataset(make().repeat()).cardinality() == -1
    assert steps(grain.MapDataset.range(8).batch(2).filter(lambda b: b[0] % 4 == 0)) == [[[0], [1]], [[4], [5]]]
    check_positions(lambda: grain.MapDataset.range(20).seed(3).shuffle().batch(4))


def test_a_grain_iter_dataset(grain, run_workers):

    def make():
        return grain.MapDataset.range(7).to_iter_dataset().batch(4)

    assert steps(make()) == CUT
    assert steps_of_workers(run_workers, make) == OF_WORKERS
    check_positions(make)
    check_positions(lambda: grain.MapDataset.range(20).seed(3).shuffle().to_iter_dataset().filter(lambda x: x % 3 > 0).batch(2))


def test_a_grain_data_loader(grain, run_workers):

    def make():
        return grain.DataLoader(
            data_source=np.arange(7),
            sampler=grain.SequentialSampler(7, shard_options=grain.NoSharding()),
            operations=[grain.Batch(4)],
            worker_count=0,
        )

    assert steps(make()) == CUT
    assert as_dataset(make()).node.label == "adapted(Grain DataLoader)"
    assert steps_of_workers(run_workers, make) == OF_WORKERS
    check_positions(make)
    dataset = DistributedDataset(make(), Topology(replicas_per_worker=2), cut)
    state = iter(dataset).state()
    state["position"]["share"]["source"]["iterator"] = {"base64": "not base64!"}
    iterator = iter(dataset)
    iterator.restore(state)
    with pytest.raises(DatasetError, match="position of a Grain DataLoader is damaged"):
        next(iterator)


def sharded_loader(grain, num_records, count, index=0, *, drop_remainder=False, worker_count=0, size=4, epochs=1):
    options = grain.ShardOptions(shard_index=index, shard_count=count, drop_remainder=drop_remainder)
    return grain.DataLoader(
        data_source=np.arange(num_records),
        sampler=grain.IndexSampler(num_records, shard_options=options, num_epochs=epochs),
        operations=[grain.Batch(size)],
        worker_count=worker_count,
    )


def test_records_that_a_grain_sampler_loses(grain):
    """Grain reads as many records of each shard as of the smallest: the fourth of the first shard of ten in three is lost."""
    loader = sharded_loader(grain, 10, 3)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2]]
    with pytest.warns(UserWarning, match=r"never reads 1 of the records of its shard \(shard 0 of 3\): of a number"):
        as_dataset(loader)
    as_dataset(sharded_loader(grain, 10, 3, index=1))  # has three records
    as_dataset(sharded_loader(grain, 10, 3, drop_remainder=True))  # Grain says itself what it drops
    as_dataset(sharded_loader(grain, 9, 3))


@pytest.mark.parametrize("kind", ["map", "iter"])
def test_shards_of_grain_that_draw_the_same_numbers(grain, kind):

    def drawn(dataset):
        dataset = dataset.random_map(lambda x, rng: float(rng.random()))
        return dataset if kind == "map" else dataset.to_iter_dataset()

    everything = grain.MapDataset.range(12).seed(1)
    assert list(drawn(everything[0::3])) == list(drawn(everything[1::3]))
    with pytest.warns(UserWarning, match=r"behind a slice with the step 3.*the n-th records of all 3 slices get the same numbers"):
        as_dataset(drawn(everything[1::3]).batch(2))
    before = everything.random_map(lambda x, rng: float(rng.random()))[1::3]
    as_dataset((before if kind == "map" else before.to_iter_dataset()).batch(2))
    as_dataset(drawn(everything[:6]).batch(2))


def test_a_shard_of_grain_is_not_cut_again(grain):
    with pytest.raises(DatasetError, match="A Grain DataLoader cannot be shared among 2 workers"):
        DistributedDataset(sharded_loader(grain, 8, 2), Topology(2, 0, 1), cut)


@pytest.mark.parametrize(("drop_remainder", "there", "alone"), [(False, 4, 3), (True, 0, 1)])
def test_batches_that_depend_on_the_processes_of_grain(grain, drop_remainder, there, alone):
    """Nobody starts the processes here: what they would make is told before."""

    def make(worker_count, num_records):
        return grain.DataLoader(
            data_source=np.arange(num_records),
            sampler=grain.IndexSampler(num_records, shard_options=grain.NoSharding(), num_epochs=1),
            operations=[grain.Batch(4, drop_remainder=drop_remainder)],
            worker_count=worker_count,
        )

    num_records = 6 if drop_remainder else 10
    assert sum(1 for _ in make(0, num_records)) == alone
    with pytest.warns(UserWarning, match=rf"makes {there} batches with worker_count=2, and {alone} without processes"):
        as_dataset(make(2, num_records))


# torch


def test_a_torch_data_loader(torch):
    pairs = torch.utils.data.TensorDataset(torch.arange(7), torch.arange(7) * 2.0)
    loader = torch.utils.data.DataLoader(pairs, batch_size=4)
    assert [x for x, _ in steps(loader)] == CUT
    assert steps(loader)[1][1] == [[8.0, 10.0], [12.0]]
    check_positions(lambda: loader)
    with pytest.raises(DatasetError, match="A torch DataLoader cannot be shared among 2 workers"):
        DistributedDataset(loader, Topology(2, 0, 1), cut)
    words = torch.utils.data.DataLoader([{"w": "a", "n": 1}, {"w": "b", "n": 2}], batch_size=2)
    assert steps(words) == [{"w": [["a"], ["b"]], "n": [[1], [2]]}]


# tf.data


def tf_files(tf, folder, sizes):
    paths = []
    for number, size in enumerate(sizes):
        paths.append(str(folder / f"{number}.txt"))
        (folder / f"{number}.txt").write_text("".join(f"{6 * number + i}\n" for i in range(size)))
    return tf.data.TextLineDataset(paths).map(lambda line: tf.strings.to_number(line, tf.int64)).batch(4)


def with_tf_policy(tf, dataset, policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = getattr(tf.data.experimental.AutoShardPolicy, policy)
    return dataset.with_options(options)


def test_a_tf_dataset(tf, run_workers):
    assert steps(tf.data.Dataset.range(7).batch(4)) == CUT
    dataset = as_dataset(tf.data.Dataset.from_tensor_slices({"x": [1.0, 2.0], "s": ["a", "b"]}).batch(2))
    assert dataset.element_spec == {"x": TensorSpec((None,), np.float32), "s": TensorSpec((None,), object)}
    assert dataset.cardinality() == 1
    assert as_dataset(tf.data.Dataset.range(3).repeat()).cardinality() == -1
    assert steps(dataset) == [{"x": [[1.0], [2.0]], "s": [[b"a"], [b"b"]]}]
    assert steps_of_workers(run_workers, lambda: tf.data.Dataset.range(7).batch(4)) == OF_WORKERS
    check_positions(lambda: tf.data.Dataset.range(20).shuffle(5, seed=1).batch(4))


def test_the_random_order_of_a_tf_dataset_without_a_seed_goes_on(tf):
    def make():
        return as_dataset(tf.data.Dataset.range(100).shuffle(100).batch(4))

    iterator = iter(make())
    for _ in range(3):
        next(iterator)
    state = json.loads(json.dumps(iterator.state()))
    rest = [element.tolist() for element in iterator]
    again = iter(make())
    again.restore(state)
    assert [element.tolist() for element in again] == rest
    assert len(rest) == 22


def test_workers_shuffle_a_tf_dataset_without_a_seed_alike(tf, run_workers):
    workers = steps_of_workers(run_workers, lambda: tf.data.Dataset.range(16).shuffle(16).batch(4))
    assert sorted(sum((sum(sum(steps, []), []) for steps in workers), [])) == list(range(16))


def test_a_damaged_position_of_a_tf_dataset(tf):
    iterator = iter(as_dataset(tf.data.Dataset.range(8).batch(4)))
    next(iterator)
    state = json.dumps(iterator.state())
    broken = re.sub(r'("it.index": ")[^"]*', r"\1AAAA", state)
    assert broken != state
    again = iter(as_dataset(tf.data.Dataset.range(8).batch(4)))
    again.restore(json.loads(broken))
    with pytest.raises(
        DatasetError, match=r"(?s)The position of a tf\.data\.Dataset is damaged: .*Start a new pass, or use an older position\."
    ):
        next(again)


def test_all_policies_of_a_tf_dataset(tf, run_workers, tmp_path):
    dataset = tf_files(tf, tmp_path, (6, 6))
    of_files = [[[[0, 1]], [[2, 3]], [[4]], [[5]]], [[[6, 7]], [[8, 9]], [[10]], [[11]]]]
    of_data = [[[[0, 1]], [[4, 5]], [[8, 9]]], [[[2, 3]], [[6, 7]], [[10, 11]]]]
    everything = [[[[i, i + 1]] for i in range(0, 12, 2)]] * 2
    expected = {"FILE": of_files, "DATA": of_data, "AUTO": of_data, "OFF": everything}
    for policy, shares in expected.items():
        assert steps_of_workers(run_workers, lambda p=policy: with_tf_policy(tf, dataset, p)) == shares, policy


@pytest.mark.parametrize("worker", [0, 1, 2])
def test_a_tf_dataset_with_too_few_files_is_refused_at_once(tf, tmp_path, worker):
    for dataset in (tf_files(tf, tmp_path, (6, 6)), tf.data.Dataset.range(8).batch(4)):
        with pytest.raises(
            DatasetError, match=r"(?s)FILE cannot share this tf.data.Dataset among 3 workers.*DATA.*TensorFlow says"
        ):
            DistributedDataset(with_tf_policy(tf, dataset, "FILE"), Topology(3, worker, 1), cut, exchange=lambda value: [value])


def test_a_tf_dataset_of_other_than_dense_tensors(tf):
    ragged = tf.data.Dataset.from_tensors(tf.ragged.constant([[1], [2, 3]]))
    with pytest.raises(DatasetError, match=r"Only dense tensors of known rank.*RaggedTensorSpec.*to_tensor"):
        steps(ragged)
