"""What is refused, and what the messages say."""

import numpy as np
import pytest

from replicant.data import AutoShardPolicy, Dataset, DistributedDataset, InputOptions, Options
from replicant.errors import ArgumentError, ArgumentTypeError, DatasetError, ElementError
from replicant.replicas._topology import Topology

NUMBERS = Dataset.range(4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: NUMBERS.batch(0), ArgumentError, "batch: batch_size must be at least 1. Received: 0"),
        (lambda: NUMBERS.batch(-2), ArgumentError, "batch: batch_size must be at least 1. Received: -2"),
        (lambda: NUMBERS.batch(2.0), ArgumentTypeError, "batch: batch_size must be an integer. Received: 2.0"),
        (lambda: NUMBERS.rebatch(0), ArgumentError, "rebatch: batch_size must be at least 1. Received: 0"),
        (lambda: NUMBERS.rebatch([2, -1]), ArgumentError, "rebatch: batch_size must be at least 1. Received: -1"),
        (lambda: NUMBERS.rebatch([]), ArgumentError, "rebatch: batch_size must name at least one size"),
        (lambda: NUMBERS.shuffle(0), ArgumentError, "shuffle: buffer_size must be at least 1. Received: 0"),
        (lambda: NUMBERS.shuffle(2, seed="x"), ArgumentTypeError, "shuffle: seed must be an integer. Received: 'x'"),
        (lambda: NUMBERS.repeat(-2), ArgumentError, "repeat: count must be at least -1. Received: -2"),
        (lambda: NUMBERS.take(-2), ArgumentError, "take: count must be at least -1. Received: -2"),
        (lambda: NUMBERS.skip(-2), ArgumentError, "skip: count must be at least -1. Received: -2"),
        (lambda: NUMBERS.prefetch(-2), ArgumentError, "prefetch: buffer_size must be at least -1. Received: -2"),
        (lambda: NUMBERS.shard(0, 0), ArgumentError, "shard: num_shards must be at least 1. Received: 0"),
        (lambda: NUMBERS.shard(2, -1), ArgumentError, "shard: index must be at least 0. Received: -1"),
        (lambda: NUMBERS.shard(2, 2), ArgumentError, "shard: index must be from 0 to 1 with 2 shards. Received: 2"),
        (lambda: NUMBERS.enumerate("1"), ArgumentTypeError, "enumerate: start must be an integer. Received: '1'"),
        (lambda: NUMBERS.map(3), ArgumentTypeError, "map takes a function of one element. Received: 3"),
        (lambda: NUMBERS.filter(None), ArgumentTypeError, "filter takes a function of one element. Received: None"),
        (lambda: NUMBERS.concatenate([1]), ArgumentTypeError, "concatenate takes datasets. Received: list"),
        (lambda: Dataset.zip(NUMBERS, 3), ArgumentTypeError, "zip takes datasets. Received: int"),
        (Dataset.zip, ArgumentError, "zip: needs at least one dataset"),
        (Dataset.range, ArgumentError, "range takes 1 to 3 integers.*Received 0"),
        (lambda: Dataset.range(1, 5, 0), ArgumentError, "range: the step must not be 0"),
        (lambda: Dataset.range(1.5), ArgumentTypeError, "range: an argument must be an integer. Received: 1.5"),
        (lambda: NUMBERS.with_options({}), ArgumentTypeError, "with_options takes a replicant.data.Options. Received: dict"),
        (lambda: Dataset.from_tensors(()), DatasetError, r"from_tensors: there is no array in \(\)"),
        (
            lambda: Dataset.from_tensor_slices({"x": [1, 2], "y": 3}),
            ArgumentError,
            r"from_tensor_slices: component \['y'\] is a scalar and has no rows. Received: .*3.*Use `from_tensors`",
        ),
        (
            lambda: Dataset.from_tensor_slices(({"x": [1, 2]}, np.zeros((3, 2)))),
            ElementError,
            r"same number of rows, but component \[0\]\['x'\] has 2, component \[1\] has 3",
        ),
        (
            lambda: Dataset.from_tensor_slices([[1, 2], [3]]),
            DatasetError,
            "the element is not a tensor: its lists have unequal lengths.*Pad",
        ),
        (
            lambda: Dataset.from_tensors(object()),
            DatasetError,
            "the element is a object, which is not a tensor. Use numbers, strings, arrays",
        ),
        (
            lambda: NUMBERS.concatenate(NUMBERS.enumerate()),
            DatasetError,
            r"same structure and dtypes. The first has TensorSpec\(shape=\(\), dtype=int64\), the second \(TensorSpec",
        ),
        (
            lambda: NUMBERS.concatenate(Dataset.from_tensor_slices([1.0])),
            DatasetError,
            "same structure and dtypes.*dtype=int64.*dtype=float32",
        ),
        (
            lambda: InputOptions(experimental_per_replica_buffer_size=-1),
            ArgumentError,
            "experimental_per_replica_buffer_size must be at least 0. Received: -1",
        ),
    ],
)
def test_refused_at_once(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("dataset", "error", "message"),
    [
        (
            Dataset.range(1, 4).map(np.zeros).batch(2),
            ElementError,
            r"the element has shape \(1,\) in element 0 of the batch and \(2,\) in element 1.*Pad or cut",
        ),
        (
            Dataset.range(2).map(lambda n: {"a": n, "b": n or 0.5}).batch(2),
            ElementError,
            r"component \['b'\] has dtype float32 in element 0 of the batch and int64 in element 1.*Convert",
        ),
        (
            Dataset.range(2).map(lambda n: (n, n) if n else n).batch(2),
            ElementError,
            r"map\(.*lambda.*\) must return the same structure for all elements. It returned \*, then \(\*, \*\)",
        ),
        (
            Dataset.range(2).map(lambda n: (n, n) if n else n).shuffle(1).batch(2),
            ElementError,
            r"must have the same structure. Found: \*.* and \(\*, \*\)",
        ),
        (
            Dataset.range(2).map(lambda n: np.array(["a", None], object)),
            DatasetError,
            "the element is an array of Python objects, and not all are strings: None is of type NoneType. Give.*`dict",
        ),
        (Dataset.range(2).map(lambda n: object()), DatasetError, "the element is a object, which is not a tensor"),
        (Dataset.range(2).map(lambda n: {"k": [[1], [1, 2]]}), DatasetError, r"component \['k'\] is not a tensor"),
        (Dataset.range(2).unbatch(), DatasetError, "unbatch: the element is a scalar and has no rows"),
        (
            Dataset.from_tensors(([1, 2], [1])).unbatch(),
            ElementError,
            r"unbatch: all components need the same number of rows, but component \[0\] has 2, component \[1\] has 1",
        ),
        (
            Dataset.from_tensors([1, 2]).filter(lambda x: x > 1),
            ArgumentTypeError,
            r"filter: .*lambda.* must return one bool per element. Received: array\(\[False,  True\]\)",
        ),
        (Dataset.range(2).filter(lambda x: x), ArgumentTypeError, "must return one bool per element. Received: np.int64"),
    ],
)
def test_refused_when_it_is_read(dataset, error, message):
    with pytest.raises(error, match=message):
        list(dataset)


HUGE = np.broadcast_to(np.zeros((1, 2**20)), (2**20, 2**20))  # takes no memory itself


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (
            Dataset.from_tensor_slices(HUGE).batch(2**20),
            r"the element has shape \(1048576, 1048576\) and dtype float64 needs 8,192.0 GiB",
        ),
        (Dataset.from_tensors(HUGE).repeat(2).batch(2), r"has shape \(2, 1048576, 1048576\) .* needs 16,384.0 GiB"),
        (Dataset.range(2).map(lambda n: HUGE).batch(2), r"the element has shape \(2, 1048576, 1048576\) .* needs 16,384.0 GiB"),
        (Dataset.range(2).padded_batch(2).map(lambda n: n).padded_batch(2, [2**45]), "needs 262,144.0 GiB, but .* GiB of memory"),
    ],
)
def test_a_batch_that_cannot_fit_is_refused_before_it_is_built(dataset, message):
    with pytest.raises(DatasetError, match=message + ".*Use a smaller batch size"):
        list(dataset)


def distribute(dataset, num_replicas=2):
    return DistributedDataset(dataset, Topology(replicas_per_worker=num_replicas), lambda rows, sizes: rows)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Dataset.range(4), "the element of the dataset is a scalar, which 2 replicas cannot share.*batch"),
        (Dataset.range(4).batch(2).enumerate(), r"component \[0\] of the dataset is a scalar.*Call `batch"),
        (Dataset.range(4).batch(2).map(lambda x: {"x": x, "n": x.sum()}), r"component \['n'\] of the dataset is a scalar"),
        (
            Dataset.from_tensors(([1, 2], [1])),
            r"component \[0\] has shape \(2,\), component \[1\] has shape \(1,\). If these are single examples, call `batch\(",
        ),
    ],
)
def test_what_replicas_cannot_share_is_refused_before_the_first_step(dataset, message):
    with pytest.raises(DatasetError, match=message):
        distribute(dataset)
    assert len(list(distribute(dataset, 1))) > 0  # one replica shares with nobody


def test_unequal_sizes_that_only_show_in_the_loop():
    dataset = Dataset.zip(Dataset.range(3).batch(2), Dataset.range(4).batch(2))
    iterator = iter(distribute(dataset))
    next(iterator)
    with pytest.raises(ElementError, match=r"same leading size.*2 replicas.*\[0\] has shape \(1,\).*\[1\] has shape \(2,\)"):
        next(iterator)


def test_a_scalar_that_only_shows_in_the_loop():
    dataset = Dataset.range(4).batch(2).map(lambda x: x if x[0] == 0 else x.sum())
    iterator = iter(distribute(dataset))
    next(iterator)
    with pytest.raises(DatasetError, match="the element of the dataset is a scalar"):
        next(iterator)


@pytest.mark.parametrize("not_a_dataset", [3, "ab", None])
def test_only_datasets_are_distributed(not_a_dataset):
    with pytest.raises(ArgumentTypeError, match=rf"Received: {type(not_a_dataset).__name__}.*from_tensor_slices"):
        distribute(not_a_dataset)


def test_options_that_do_not_exist_are_refused():
    options = Options()
    with pytest.raises(ArgumentError, match=r"Options has no option 'experimental_threading'. It has: experimental_dist"):
        options.experimental_threading = 3
    with pytest.raises(ArgumentError, match=r"DistributeOptions has no option 'auto_shard'. It has: auto_shard_policy"):
        options.experimental_distribute.auto_shard = AutoShardPolicy.DATA
    with pytest.raises(ArgumentTypeError, match=r"auto_shard_policy must be a .*AutoShardPolicy.DATA. Received: 'DATA'"):
        options.experimental_distribute.auto_shard_policy = "DATA"


def test_policies_have_the_numbers_of_tf_data():
    assert {policy.name: policy.value for policy in AutoShardPolicy} == {
        "OFF": -1,
        "AUTO": 0,
        "FILE": 1,
        "DATA": 2,
        "HINT": 3,
    }
