"""A variable's copies, wherever they are read: eagerly, in a compiled function, in a replica."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicant
from replicant import Variable
from replicant.errors import ContextError, VariableError

pytestmark = pytest.mark.both_ways


@pytest.fixture(scope="module")
def two(fuse_replicas: str) -> replicant.MirroredStrategy:
    return replicant.MirroredStrategy(["cpu:0", "cpu:1"])


@pytest.fixture
def ones_and_twos(two: replicant.MirroredStrategy) -> replicant.PerReplica:
    return two.experimental_distribute_values_from_function(lambda c: np.float32(c.replica_id_in_sync_group + 1))


def local(two: replicant.MirroredStrategy, aggregation: str) -> Variable:
    with two.scope():
        return Variable(0.0, synchronization="ON_READ", aggregation=aggregation)


def floats(values: tuple) -> list[float]:
    return [float(v) for v in values]


def test_values_in_a_function_are_the_current_ones(two: replicant.MirroredStrategy, ones_and_twos: replicant.PerReplica) -> None:
    v = local(two, "SUM")

    @replicant.function
    def add(x):
        two.run(v.assign_add, args=(x,))
        return v.values

    assert [floats(add(ones_and_twos)) for _ in range(3)] == [[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]
    assert floats(v.values) == [3.0, 6.0]


def test_values_in_a_replica_are_its_own(two: replicant.MirroredStrategy, ones_and_twos: replicant.PerReplica) -> None:
    v = local(two, "SUM")
    two.run(v.assign, args=(ones_and_twos,))
    (own,) = two.run(lambda: v.values)
    assert floats(own.values) == [1.0, 2.0]


@pytest.mark.parametrize(("op", "expected"), [("SUM", 3.0), ("MEAN", 1.5)])
@pytest.mark.parametrize("wrap", [lambda fn: fn, replicant.function], ids=["eager", "function"])
def test_reduce_of_a_variable_reduces_its_copies(two, ones_and_twos, wrap, op: str, expected: float) -> None:
    v = local(two, "ONLY_FIRST_REPLICA")
    two.run(v.assign, args=(ones_and_twos,))
    assert float(wrap(lambda: two.reduce(op, v))()) == expected


@pytest.mark.parametrize(
    ("aggregation", "copies"), [("SUM", [1.5, 1.5]), ("MEAN", [3.0, 3.0]), ("ONLY_FIRST_REPLICA", [3.0, 3.0]), ("NONE", [3.0, 3.0])]
)
def test_a_cross_replica_assignment_sets_all_copies(two: replicant.MirroredStrategy, aggregation: str, copies: list[float]) -> None:
    v = local(two, aggregation)
    assert float(v.assign(3.0)) == 3.0
    assert floats(v.values) == copies


def test_an_addition_that_cannot_be_read_back_changes_nothing(two: replicant.MirroredStrategy) -> None:
    v = local(two, "NONE")
    with pytest.raises(VariableError, match="ON_READ and aggregation=NONE, so assign_add in cross-replica context is ambiguous"):
        v.assign_add(1.0)
    assert floats(v.values) == [0.0, 0.0]


def all_reduce(x: jax.Array) -> jax.Array:
    context = replicant.get_replica_context()
    assert context is not None
    return context.all_reduce("SUM", x)


def in_branch(x: jax.Array) -> jax.Array:
    return jax.lax.cond(x > 1, lambda: all_reduce(x), lambda: x)


def in_nested_branch(x: jax.Array) -> jax.Array:
    return jax.lax.cond(x > 1, jax.jit(lambda: jax.lax.cond(jnp.asarray(True), lambda: all_reduce(x), lambda: x)), lambda: x)


def in_loop(x: jax.Array) -> jax.Array:
    return jax.lax.while_loop(lambda c: c[0] < x, lambda c: (c[0] + 1, all_reduce(c[1])), (jnp.float32(0), x))[1]


@pytest.mark.parametrize("fn", [in_branch, in_nested_branch, in_loop])
def test_an_exchange_that_some_replicas_would_not_make(two, ones_and_twos, fn) -> None:
    """It would hang: those that enter the branch wait for the others."""
    with pytest.raises(ContextError, match=r"inside a branch or loop \((cond|while)\) whose condition differs between replicas"):
        two.run(fn, args=(ones_and_twos,))


def test_an_exchange_in_a_branch_that_all_replicas_take(two, ones_and_twos) -> None:
    def fn(x):
        return jax.lax.cond(all_reduce(x) > 2, lambda: all_reduce(x), lambda: x)

    assert floats(two.run(fn, args=(ones_and_twos,)).values) == [3.0, 3.0]


@pytest.mark.parametrize("aggregation", ["SUM", "MEAN", "ONLY_FIRST_REPLICA"])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_copies_that_are_assigned_before_the_first_run_of_a_function(two, aggregation: str, shape: tuple[int, ...]) -> None:
    with two.scope():
        v = replicant.Variable(jnp.ones(shape), synchronization="ON_READ", aggregation=aggregation)

    def step(x):
        v.assign(jnp.full(shape, 10.0))
        before = v.value()
        two.run(lambda x: v.assign_add(jnp.full(shape, x.sum())) is None, args=(x,))
        return before, v.value()

    added = {  # rows of 1, 2, .. on two replicas: the first has one more if their number is odd
        "SUM": {6: 21.0, 5: 15.0},
        "MEAN": {6: 10.5, 5: 7.5},
        "ONLY_FIRST_REPLICA": {6: 6.0, 5: 6.0},
    }[aggregation]
    compiled = replicant.function(step)
    for rows, change in added.items():
        data = replicant.data.Dataset.from_tensor_slices(np.arange(1, rows + 1, dtype=np.float32)).batch(rows)
        (x,) = two.experimental_distribute_dataset(data)
        before, after = compiled(x)
        np.testing.assert_array_equal(before, np.full(shape, 10.0))
        np.testing.assert_array_equal(after, np.full(shape, 10.0 + change))
