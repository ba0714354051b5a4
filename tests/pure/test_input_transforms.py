"""What each transform gives, as literal values."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from replicant.data import AutoShardPolicy, Dataset, Options
from replicant.input.graph._structure import TensorSpec


def values(dataset):
    """Elements as plain Python, in lists where they are arrays."""
    return [plain(element) for element in dataset]


def plain(element):
    if isinstance(element, dict):
        return {key: plain(value) for key, value in element.items()}
    if isinstance(element, tuple):
        return tuple(plain(value) for value in element)
    return element.tolist() if hasattr(element, "tolist") else element


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (Dataset.range(3), [0, 1, 2]),
        (Dataset.range(5, 1, -2), [5, 3]),
        (Dataset.range(0), []),
        (Dataset.from_tensors([1, 2]), [[1, 2]]),
        (Dataset.from_tensors({"a": 1, "b": "text"}), [{"a": 1, "b": "text"}]),
        (Dataset.from_tensor_slices([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (Dataset.from_tensor_slices((jnp.arange(2), [b"x", b"y"])), [(0, b"x"), (1, b"y")]),
        (Dataset.from_tensor_slices(np.array(["a", "bc"])), ["a", "bc"]),
        (Dataset.from_tensor_slices([b"a\0", b"\0"]), [b"a\0", b"\0"]),
        (Dataset.range(5).batch(2), [[0, 1], [2, 3], [4]]),
        (Dataset.range(5).batch(2, drop_remainder=True), [[0, 1], [2, 3]]),
        (Dataset.range(2).batch(5), [[0, 1]]),
        (Dataset.range(4).batch(2).batch(2), [[[0, 1], [2, 3]]]),
        (Dataset.from_tensor_slices(["a", "b", "c"]).batch(2), [["a", "b"], ["c"]]),
        (Dataset.range(5).batch(3).unbatch(), [0, 1, 2, 3, 4]),
        (Dataset.range(6).batch(4).rebatch(3), [[0, 1, 2], [3, 4, 5]]),
        (Dataset.range(7).batch(7).rebatch([2, 1]), [[0, 1], [2], [3, 4], [5], [6]]),
        (Dataset.range(7).batch(7).rebatch([2, 3], drop_remainder=True), [[0, 1], [2, 3, 4], [5, 6]]),
        (Dataset.range(3).repeat(2), [0, 1, 2, 0, 1, 2]),
        (Dataset.range(3).repeat(0), []),
        (Dataset.range(3).repeat().take(7), [0, 1, 2, 0, 1, 2, 0]),
        (Dataset.range(0).repeat(), []),
        (Dataset.range(2).repeat(2).repeat(2), [0, 1, 0, 1, 0, 1, 0, 1]),
        (Dataset.range(5).take(2), [0, 1]),
        (Dataset.range(5).take(2).repeat(2), [0, 1, 0, 1]),
        (Dataset.range(5).take(0), []),
        (Dataset.range(5).take(-1), [0, 1, 2, 3, 4]),
        (Dataset.range(5).skip(3), [3, 4]),
        (Dataset.range(5).skip(9), []),
        (Dataset.range(5).skip(-1), []),
        (Dataset.range(3).skip(1).repeat(2), [1, 2, 1, 2]),
        (Dataset.range(7).shard(3, 0), [0, 3, 6]),
        (Dataset.range(7).shard(3, 2), [2, 5]),
        (Dataset.range(2).shard(3, 2), []),
        (Dataset.range(5).shard(2, 1).repeat(2), [1, 3, 1, 3]),
        (Dataset.range(5).repeat(3).shard(3, 2).batch(5), [[2, 0, 3, 1, 4]]),
        (Dataset.range(3, 5).enumerate(), [(0, 3), (1, 4)]),
        (Dataset.range(2).enumerate(start=5).repeat(2), [(5, 0), (6, 1), (5, 0), (6, 1)]),
        (Dataset.range(4).enumerate().batch(3), [([0, 1, 2], [0, 1, 2]), ([3], [3])]),
        (Dataset.zip(Dataset.range(3), Dataset.range(5, 9)), [(0, 5), (1, 6), (2, 7)]),
        (Dataset.zip((Dataset.range(3).repeat(), Dataset.range(2))), [(0, 0), (1, 1)]),
        (Dataset.zip({"a": Dataset.range(2), "b": (Dataset.range(9, 11),)}), [{"a": 0, "b": (9,)}, {"a": 1, "b": (10,)}]),
        (Dataset.zip(Dataset.range(3), Dataset.range(3)).batch(2), [([0, 1], [0, 1]), ([2], [2])]),
        (Dataset.range(2).concatenate(Dataset.range(8, 10)), [0, 1, 8, 9]),
        (Dataset.range(2).concatenate(Dataset.range(8, 10)).batch(3), [[0, 1, 8], [9]]),
        (
            Dataset.from_tensor_slices([1, 2]).concatenate(Dataset.from_tensor_slices([3])).repeat(2).batch(4),
            [[1, 2, 3, 1], [2, 3]],
        ),
        (Dataset.range(3).map(lambda x: (x, x * x)), [(0, 0), (1, 1), (2, 4)]),
        (Dataset.range(3).enumerate().map(lambda i, x: i + x), [0, 2, 4]),
        (Dataset.range(2).map(lambda x: {"a": x}).map(lambda d: d["a"] + 1), [1, 2]),
        (Dataset.range(2).map(lambda x: [x, x + 1]), [[0, 1], [1, 2]]),
        (Dataset.range(2).map(lambda x: f"n{x}").batch(2), [["n0", "n1"]]),
        (Dataset.range(2).map(lambda x: jnp.full((2,), x)).batch(2), [[[0, 0], [1, 1]]]),
        (Dataset.range(6).filter(lambda x: x % 3 == 0), [0, 3]),
        (Dataset.range(3).enumerate().filter(lambda i, x: i == 1), [(1, 1)]),
        (Dataset.range(4).cache().repeat(2).batch(3), [[0, 1, 2], [3, 0, 1], [2, 3]]),
        (Dataset.range(4).prefetch(2), [0, 1, 2, 3]),
        (Dataset.range(40).prefetch(16).repeat(2).skip(38).take(4), [38, 39, 0, 1]),
        (Dataset.range(4).prefetch(-1).batch(3), [[0, 1, 2], [3]]),
        (Dataset.range(4).prefetch(0), [0, 1, 2, 3]),
    ],
    ids=repr,
)
def test_elements(dataset, expected):
    assert values(dataset) == expected
    assert values(dataset) == expected  # another pass gives the same


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (Dataset.range(5), 5),
        (Dataset.range(5).batch(2), 3),
        (Dataset.range(5).batch(2, drop_remainder=True), 2),
        (Dataset.range(7).batch(7).rebatch([2, 1]), -2),
        (Dataset.from_tensors([1, 2, 3]).unbatch(), 3),
        (Dataset.range(5).repeat(), -1),
        (Dataset.range(5).repeat(3), 15),
        (Dataset.range(0).repeat(), 0),
        (Dataset.range(5).repeat().repeat(0), 0),
        (Dataset.range(5).repeat().take(3), 3),
        (Dataset.range(5).repeat().skip(3), -1),
        (Dataset.range(5).repeat().batch(2), -1),
        (Dataset.range(5).repeat().shard(2, 0), -1),
        (Dataset.range(5).skip(7), 0),
        (Dataset.range(5).shard(2, 1), 2),
        (Dataset.range(5).shuffle(2), 5),
        (Dataset.range(5).map(lambda x: x), 5),
        (Dataset.range(5).filter(lambda x: True), -2),
        (Dataset.range(5).filter(lambda x: True).take(3), -2),
        (Dataset.range(5).filter(lambda x: True).repeat(), -1),
        (Dataset.range(0).filter(lambda x: True), 0),
        (Dataset.zip(Dataset.range(5), Dataset.range(3)), 3),
        (Dataset.zip(Dataset.range(5).repeat(), Dataset.range(3)), 3),
        (Dataset.zip(Dataset.range(5).repeat(), Dataset.range(3).repeat()), -1),
        (Dataset.zip(Dataset.range(5), Dataset.range(3).filter(lambda x: True)), -2),
        (Dataset.range(5).concatenate(Dataset.range(3)), 8),
        (Dataset.range(5).concatenate(Dataset.range(3).repeat()), -1),
        (Dataset.range(5).concatenate(Dataset.range(3).filter(lambda x: True)), -2),
        (Dataset.range(5).cache().prefetch(1).enumerate(), 5),
    ],
    ids=repr,
)
def test_cardinality(dataset, expected):
    assert dataset.cardinality() == expected
    assert dataset


def test_len():
    assert len(Dataset.range(5).batch(2)) == 3
    with pytest.raises(TypeError, match="length is infinite"):
        len(Dataset.range(5).repeat())
    with pytest.raises(TypeError, match="length is unknown until it has been read"):
        len(Dataset.range(5).filter(lambda x: True))


class Named(NamedTuple):
    x: Any
    y: Any


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (Dataset.range(3), TensorSpec((), "int64")),
        (Dataset.from_tensor_slices([1.0, 2.0]), TensorSpec((), "float32")),
        (Dataset.from_tensor_slices(np.ones(2)), TensorSpec((), "float64")),
        (Dataset.from_tensor_slices([np.float64(1)]), TensorSpec((), "float64")),
        (Dataset.from_tensor_slices([2**40]), TensorSpec((), "int64")),
        (Dataset.from_tensor_slices([True]), TensorSpec((), "bool")),
        (Dataset.from_tensor_slices(["a"]), TensorSpec((), object)),
        (Dataset.range(3).batch(2), TensorSpec((None,), "int64")),
        (Dataset.range(3).batch(2, drop_remainder=True), TensorSpec((2,), "int64")),
        (Dataset.from_tensors(np.zeros((4, 3), np.uint8)), TensorSpec((4, 3), "uint8")),
        (Dataset.from_tensors(np.zeros((4, 3), np.uint8)).unbatch(), TensorSpec((3,), "uint8")),
        (Dataset.range(3).map(lambda x: x / 2), TensorSpec((), "float64")),
        (Dataset.range(3).map(lambda x: 1.5), TensorSpec((), "float32")),
        (Dataset.range(3).batch(2).map(lambda x: (x, x.sum())), (TensorSpec((None,), "int64"), TensorSpec((), "int64"))),
        (Dataset.range(3).batch(2).map(lambda x: np.ones((5, 2))), TensorSpec((5, 2), "float64")),
        (Dataset.range(3).enumerate(), (TensorSpec((), "int64"), TensorSpec((), "int64"))),
        (Dataset.range(3).map(lambda x: Named(x, "s")), Named(TensorSpec((), "int64"), TensorSpec((), object))),
        (
            Dataset.range(4).batch(2, True).concatenate(Dataset.range(3).batch(3, True)),
            TensorSpec((None,), "int64"),
        ),
        (Dataset.range(0).map(lambda x: x), None),
    ],
    ids=repr,
)
def test_element_spec(dataset, expected):
    assert dataset.element_spec == expected
    assert iter(dataset).element_spec == expected


def test_learning_the_spec_disturbs_nothing():
    """No order is used up, no cache is filled, no thread is started."""
    dataset = Dataset.range(9).shuffle(9, seed=3).cache().prefetch(2).map(lambda x: x)
    untouched = values(Dataset.range(9).shuffle(9, seed=3).cache().prefetch(2).map(lambda x: x))
    assert dataset.element_spec == TensorSpec((), "int64")
    assert values(dataset) == untouched


def test_structures_pass_through_unchanged():
    dataset = Dataset.from_tensor_slices(Named({"a": [1, 2]}, ([3, 4],))).batch(2)
    (element,) = dataset
    assert type(element) is Named
    assert plain(element.x) == {"a": [1, 2]}
    assert plain(element.y) == ([3, 4],)


def test_what_an_element_is_when_it_is_a_scalar():
    ((number, text),) = Dataset.from_tensors((1, "a"))
    assert isinstance(number, np.int32)
    assert type(text) is str


def test_every_batch_is_a_fresh_array():
    """Batches may be aliased by devices, so no memory is used twice, and none is the user's."""
    table = np.arange(12, dtype=np.float32).reshape(6, 2)
    for dataset in (
        Dataset.from_tensor_slices(table).batch(2),
        Dataset.from_tensor_slices(table),
        Dataset.from_tensors(table).repeat(3),
        Dataset.from_tensors(table).unbatch().batch(6).repeat(2),
        Dataset.from_tensor_slices(table).shuffle(3).batch(2),
    ):
        arrays = [np.asarray(element) for element in dataset]
        assert not any(np.shares_memory(array, table) for array in arrays)
        assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[i + 1 :])


def test_cached_elements_cannot_be_written_to():
    dataset = Dataset.range(4).batch(2).map(lambda x: x + 1).cache()
    for _ in range(2):
        for element in dataset:
            with pytest.raises(ValueError, match="read-only"):
                element[0] = 1


def test_cache_leaves_the_arrays_of_the_user_writable():
    mine = np.zeros(3)
    list(Dataset.range(2).map(lambda x: mine).cache())
    mine += 1
    assert mine.tolist() == [1, 1, 1]


def test_cache_reads_its_input_once():
    calls = []
    dataset = Dataset.range(4).map(lambda x: calls.append(int(x)) or x).cache()
    next(iter(dataset))  # an incomplete pass is not kept
    assert calls == [0]
    first, second = iter(dataset), iter(dataset)
    assert values(first) == values(second) == values(dataset) == [0, 1, 2, 3]
    assert calls == [0, 0, 1, 2, 3, 0, 1, 2, 3]  # `second` was opened before the first pass was complete


def test_options_go_along_and_are_copied():
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA
    dataset = Dataset.range(4).with_options(options).batch(2)
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.OFF
    assert dataset.options().experimental_distribute.auto_shard_policy is AutoShardPolicy.DATA
    dataset.options().experimental_distribute.auto_shard_policy = AutoShardPolicy.OFF
    assert dataset.options().experimental_distribute.auto_shard_policy is AutoShardPolicy.DATA
    for combined in (Dataset.zip(Dataset.range(2), dataset), Dataset.range(1).batch(1).concatenate(dataset)):
        assert combined.options().experimental_distribute.auto_shard_policy is AutoShardPolicy.DATA


def test_repr_shows_the_pipeline():
    dataset = Dataset.range(4).shuffle(2, seed=1).batch(2, drop_remainder=True)
    assert repr(dataset) == "<Dataset: range(0, 4, 1) > shuffle(2, seed=1) > batch(2, drop_remainder=True)>"
    assert repr(Dataset.zip(dataset, dataset.take(1))).endswith("> take(1)) > zip>")


class Frame:
    """What Replicant sees of a frame of pandas: columns by their names, and an array of all values."""

    def __init__(self, **columns):
        self.columns = columns

    def __array__(self, dtype=None, copy=None):
        return np.stack([*self.columns.values()], axis=1)

    def keys(self):
        return self.columns.keys()

    def __getitem__(self, name):
        return self.columns[name]


def test_a_frame_is_the_array_of_its_values_and_keeps_its_dtype():
    frame = Frame(a=np.array([1.5, 2.5]), b=np.array([3.0, 4.0]))
    rows = list(Dataset.from_tensor_slices(frame))
    assert [(row.dtype, row.tolist()) for row in rows] == [(np.float64, [1.5, 3.0]), (np.float64, [2.5, 4.0])]
    assert list(Dataset.from_tensor_slices(dict(frame))) == [{"a": 1.5, "b": 3.0}, {"a": 2.5, "b": 4.0}]
