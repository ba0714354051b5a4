"""Distributed datasets on devices: loops, structures, strings, input functions, and shares without rows."""

import threading
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicant
from replicant import PerReplica
from replicant.data import Dataset, InputOptions, InputReplicationMode
from replicant.errors import ArgumentTypeError, ContextError, DivergenceError, OutOfRangeError


class Named(NamedTuple):
    a: Any
    b: Any


@pytest.fixture(scope="module")
def two():
    return replicant.MirroredStrategy(["cpu:0", "cpu:1"])


@pytest.fixture(scope="module")
def four():
    return replicant.MirroredStrategy([f"cpu:{i}" for i in range(4)])


def rows(strategy, value):
    return [np.asarray(x).tolist() for x in strategy.experimental_local_results(value)]


def words(count):
    return np.array([f"word {i}" for i in range(count)], dtype=object)


# Loops


def test_several_iterators_over_one_dataset_at_once(two):
    dataset = two.experimental_distribute_dataset(Dataset.range(6).batch(2))
    first, second = iter(dataset), iter(dataset)
    steps = [rows(two, next(iterator)) for iterator in (first, second, first, second, second, first)]
    assert steps == [[[0], [1]], [[0], [1]], [[2], [3]], [[2], [3]], [[4], [5]], [[4], [5]]]
    assert list(first) == list(second) == []


def test_an_iterator_that_is_closed_early_leaves_no_thread_and_another_is_not_disturbed(two):
    dataset = two.experimental_distribute_dataset(Dataset.range(8).repeat().batch(2))
    with iter(dataset) as kept:
        with iter(dataset) as closed:
            next(closed), next(kept)
        assert next(closed, "end") == "end"
        assert rows(two, next(kept)) == [[2], [3]]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("replicant")]


@pytest.mark.parametrize("steps", [1, 3])
def test_a_loop_of_several_steps_inside_function(two, steps):
    total = replicant.Variable(0.0)
    traces = []

    @replicant.function
    def train(iterator):
        for _ in range(steps):
            batch = next(iterator)
            traces.append(two.reduce("SUM", two.run(lambda x: x * 2.0, args=(batch,)), axis=0))
            total.assign_add(traces[-1])

    dataset = two.experimental_distribute_dataset(Dataset.range(12).map(np.float32).batch(4))
    iterator = iter(dataset)
    for _ in range(3 // steps):
        train(iterator)
    assert float(total.value()) == 2 * sum(range(12))
    with pytest.raises(StopIteration):
        train(iterator)


def test_get_next_and_optionals(two):
    iterator = iter(two.experimental_distribute_dataset(Dataset.range(3).batch(2)))
    assert rows(two, iterator.get_next()) == [[0], [1]]
    optional = iterator.get_next_as_optional()
    assert optional.has_value()
    assert rows(two, optional.get_value()) == [[2], []]
    assert not iterator.get_next_as_optional().has_value()
    with pytest.raises(OutOfRangeError, match="at its end"):
        iterator.get_next()


def test_stats_count_rows_of_all_replicas(two):
    with iter(two.experimental_distribute_dataset(Dataset.range(7).batch(4))) as iterator:
        assert len(list(iterator)) == 2
        assert (iterator.stats().num_steps, iterator.stats().num_examples) == (2, 7)


# Structures, and shares without rows

STRUCTURES = {
    "tuple": (lambda x: (x, np.float32(x + 1)), lambda b: (b[0] * 2, b[1] * 2)),
    "dict": (lambda x: {"a": x, "b": np.full((2, 3), x, np.uint8)}, lambda b: {"a": b["a"] * 2, "b": b["b"] * 2}),
    "named tuple": (lambda x: Named(x, (x, np.float16(x))), lambda b: Named(b.a * 2, (b.b[0] * 2, b.b[1] * 2))),
    "nested": (
        lambda x: {"a": (x, np.bool_(x % 2)), "b": {"c": np.complex64(x)}},
        lambda b: {"a": (b["a"][0] * 2, b["a"][1]), "b": {"c": b["b"]["c"] * 2}},
    ),
    "strings": (lambda x: (x, str(x), {"s": np.array([str(x)] * 2, object)}), lambda b: (b[0] * 2, b[1], b[2])),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_every_structure_passes_with_full_short_and_empty_shares(four, name):
    """Batches of 4, then of 2: the last two replicas of the second step have no rows."""
    make, double = STRUCTURES[name]
    dataset = Dataset.range(6).map(lambda x: make(np.int32(x))).batch(4)
    plain = list(dataset)
    steps = list(four.experimental_distribute_dataset(dataset))
    for whole, step in zip(plain, steps, strict=True):
        result = four.run(double, args=(step,))
        expected = double(whole)
        for given, leaf in zip(jax.tree.leaves(expected), jax.tree.leaves(result, is_leaf=replicant_value), strict=True):
            parts = [np.asarray(part) for part in four.experimental_local_results(leaf)]
            assert [len(part) for part in parts] == [1, 1, int(len(given) > 2), int(len(given) > 2)]
            assert {part.dtype for part in parts} == {given.dtype}
            assert {part.shape[1:] for part in parts} == {given.shape[1:]}
            assert np.concatenate(parts).tolist() == given.tolist()


def replicant_value(value):
    return isinstance(value, replicant.DistributedValues)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "float16", "float32", "complex64", "bfloat16"])
def test_shares_without_rows_keep_every_dtype(four, dtype):
    dataset = Dataset.from_tensor_slices(np.ones((5, 3)).astype(jnp.dtype(dtype))).batch(4)
    _, last = four.experimental_distribute_dataset(dataset)
    assert [(part.shape, part.dtype) for part in last.values] == [((1, 3), dtype)] + [((0, 3), dtype)] * 3
    assert four.reduce("SUM", four.run(lambda x: x.sum(), args=(last,))).item() == 3 if dtype != "bool" else True


# Strings


def test_strings_pass_through_run_without_compiling_anew(two):
    traces = []

    @replicant.function
    def step(batch):
        traces.append(1)
        return two.run(lambda number, word: (word, number + 1), args=batch)

    dataset = Dataset.from_tensor_slices((np.arange(10), words(10))).batch(4, drop_remainder=True).repeat(2)
    seen = []
    for batch in two.experimental_distribute_dataset(dataset):
        word, number = step(batch)
        assert isinstance(word, PerReplica)
        seen += zip(np.concatenate(rows(two, number)).tolist(), np.concatenate(rows(two, word)).tolist(), strict=True)
    assert seen == [(i + 1, f"word {i}") for i in range(8)] * 2
    assert step.num_compiled == 1
    assert len(traces) == 1


def test_strings_of_unequal_shares_pass_through(four):
    dataset = Dataset.from_tensor_slices((np.arange(5.0), words(5))).batch(5)
    (batch,) = four.experimental_distribute_dataset(dataset)
    number, word = four.run(lambda number, word: (number * 2, word), args=batch)
    assert rows(four, number) == [[0, 2], [4, 6], [8], []]
    assert rows(four, word) == [["word 0", "word 1"], ["word 2", "word 3"], ["word 4"], []]


def test_strings_without_numbers_and_with_one_replica(two):
    (batch,) = two.experimental_distribute_dataset(Dataset.from_tensor_slices(words(2)).batch(2))
    assert rows(two, two.run(lambda word: word, args=(batch,))) == [["word 0"], ["word 1"]]
    one = replicant.OneDeviceStrategy("cpu:0")
    word, size = one.run(lambda word: (word, len(word)), args=(words(2),))
    assert (word.tolist(), size) == (["word 0", "word 1"], 2)


def test_an_array_of_strings_for_all_replicas_comes_back_bare(two):
    names = words(3)
    assert two.run(lambda x, names: names, args=(jnp.arange(2), names)) is names


@pytest.mark.parametrize(
    "use",
    [
        lambda w: w == "a",
        lambda w: w[0],
        list,
        jnp.asarray,
        np.asarray,
        lambda w: 1 if w else 0,
    ],
)
def test_computing_with_strings_inside_run_says_what_to_do(two, use):
    (batch,) = two.experimental_distribute_dataset(Dataset.from_tensor_slices(words(2)).batch(2))
    with pytest.raises(ArgumentTypeError, match=r"<array of strings of shape \(1,\) on the host> passes through.*dataset\.map"):
        two.run(use, args=(batch,))


def test_python_numbers_that_differ_by_replica_become_arrays(two):
    assert rows(two, two.run(lambda x: x, args=(PerReplica([1, 2]),))) == [1, 2]
    assert rows(two, two.run(lambda x: jnp.ones(()) * x, args=(PerReplica([1, 2]),))) == [1.0, 2.0]
    assert rows(two, two.run(lambda x: x, args=(PerReplica([0.5, 1.5]),))) == [0.5, 1.5]


def test_other_python_objects_that_differ_by_replica(two):
    """The function is traced for each of them, and what it computes is taken to differ."""
    assert two.run(lambda x: x, args=(PerReplica(["a", "b"]),)).values == ("a", "b")
    assert rows(two, two.run(lambda x: jnp.ones(()) * len(x), args=(PerReplica(["a", "bb"]),))) == [1.0, 2.0]
    mixed = two.run(lambda x: x if x is None else x + 1, args=(PerReplica([None, jnp.asarray(1)]),))
    assert (mixed.values[0], int(mixed.values[1])) == (None, 2)
    variable = replicant.Variable(0.0)
    with pytest.raises(DivergenceError, match="differs between the 2 replicas"):
        two.run(lambda x: variable.assign(jnp.float32(len(x))), args=(PerReplica(["a", "bb"]),))


# Input functions


def test_input_functions(two):
    contexts = []

    def dataset_fn(context):
        contexts.append(context)
        return Dataset.range(7).batch(context.get_per_replica_batch_size(4))

    dataset = two.distribute_datasets_from_function(dataset_fn)
    steps = [rows(two, step) for step in dataset]
    assert steps == [[[0, 1], [2, 3]], [[4, 5], [6]]] == [rows(two, step) for step in dataset]
    assert [(c.num_input_pipelines, c.input_pipeline_id, c.num_replicas_in_sync) for c in contexts] == [(1, 0, 2)]
    assert dataset.cardinality() == 2


def test_scalars_for_replicas_and_an_empty_vector_for_those_without(two):
    steps = list(two.distribute_datasets_from_function(lambda context: Dataset.range(3).map(np.float32)))
    assert rows(two, steps[0]) == [0.0, 1.0]
    assert rows(two, two.run(lambda x: x + 1, args=(steps[0],))) == [1.0, 2.0]
    assert [part.shape for part in steps[1].values] == [(), (0,)]
    assert rows(two, two.run(lambda x: x.sum() * 2, args=(steps[1],))) == [4.0, 0.0]


def test_one_replica_gets_the_elements_as_they_are():
    one = replicant.OneDeviceStrategy("cpu:0")
    elements = list(one.distribute_datasets_from_function(lambda context: Dataset.range(2).map(lambda x: (np.float32(x), str(x)))))
    assert elements == [(0.0, "0"), (1.0, "1")]
    assert isinstance(elements[0][0], jax.Array)


def test_once_per_replica_and_strings(two):
    def dataset_fn(context):
        return Dataset.from_tensor_slices([f"{context.input_pipeline_id}{i}" for i in range(3)]).batch(2)

    options = InputOptions(experimental_replication_mode=InputReplicationMode.PER_REPLICA, experimental_fetch_to_device=False)
    dataset = two.distribute_datasets_from_function(dataset_fn, options)
    assert [rows(two, two.run(lambda x: x, args=(step,))) for step in dataset] == [[["00", "01"], ["10", "11"]], [["02"], ["12"]]]


def test_input_functions_inside_run_are_refused(two):
    with pytest.raises(ContextError, match=r"distribute_datasets_from_function\(\)"):
        two.run(lambda: two.distribute_datasets_from_function(lambda context: Dataset.range(2)))
