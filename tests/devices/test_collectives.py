"""all_reduce, all_gather, merge_call, reduce and gather on replicas of equal and of different sizes."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant.errors import ArgumentError, ArgumentTypeError, ContextError, RaggedStepError

pytestmark = pytest.mark.both_ways

EVEN = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
RAGGED = [[0.0, 1.0], [2.0], []]


@pytest.fixture(scope="module")
def three(fuse_replicas: str) -> replicant.MirroredStrategy:
    return replicant.MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"])


def per_replica(values: list[list[float]]) -> replicant.PerReplica:
    return replicant.PerReplica([np.asarray(v, np.float32) for v in values])


def exchange(x):
    context = replicant.get_replica_context()
    total = context.all_reduce("SUM", {"rows": jnp.sum(x), "more": jnp.ones(2, jnp.int32)})
    mean = context.all_reduce(replicant.ReduceOp.MEAN, jnp.asarray(x.shape[0]))
    return total, mean, context.all_gather(x, 0), context.all_gather(x[:, None], -2), context.replica_id_in_sync_group


@pytest.mark.parametrize("values", [EVEN, RAGGED], ids=["even", "ragged"])
def test_every_replica_gets_the_same_answer(three: replicant.MirroredStrategy, values: list[list[float]]) -> None:
    total, mean, flat, columns, ids = three.run(exchange, args=(per_replica(values),))
    everything = sum(values, [])
    for r in range(3):
        assert float(total["rows"].values[r]) == sum(everything)
        assert total["more"].values[r].tolist() == [3, 3]
        assert float(mean.values[r]) == len(everything) / 3
        assert flat.values[r].tolist() == everything
        assert columns.values[r].tolist() == [[v] for v in everything]
        assert int(ids.values[r]) == r


@pytest.mark.parametrize("values", [EVEN, RAGGED], ids=["even", "ragged"])
def test_merge_call_runs_once_with_all_arguments(three: replicant.MirroredStrategy, values: list[list[float]]) -> None:
    def merge(strategy, x, *, scale):
        total = strategy.reduce("SUM", x, axis=0)
        mine = strategy.experimental_distribute_values_from_function(lambda c: np.float32(c.replica_id_in_sync_group))
        return {"total": total * scale, "mine": mine, "text": "same"}

    def fn(x):
        return replicant.get_replica_context().merge_call(merge, args=(x,), kwargs={"scale": 2.0})

    result = three.run(fn, args=(per_replica(values),))
    assert [float(v) for v in result["total"].values] == [2 * sum(sum(values, []))] * 3
    assert [float(v) for v in result["mine"].values] == [0.0, 1.0, 2.0]
    assert result["text"] == "same"


def test_gradients_of_exchanges(three: replicant.MirroredStrategy) -> None:
    """The gradient of an all-reduce is the all-reduce of the incoming gradients; of an all-gather, the own slice of their sum."""

    def fn(x):
        context = replicant.get_replica_context()
        weight = (context.replica_id_in_sync_group + 1).astype(jnp.float32)
        with replicant.GradientTape(persistent=True) as tape:
            total = context.all_reduce("SUM", x) * weight
            mean = context.all_reduce("MEAN", x) * weight
            gathered = jnp.sum(context.all_gather(x, 0) * jnp.arange(1.0, 4.0)) * weight
        return tape.gradient(total, x), tape.gradient(mean, x), tape.gradient(gathered, x)

    x = per_replica([[1.0], [1.0], [1.0]])
    of_sum, of_mean, of_gather = three.run(fn, args=(x,))
    assert [v.tolist() for v in of_sum.values] == [[6.0]] * 3
    assert [v.tolist() for v in of_mean.values] == [[2.0]] * 3
    assert [v.tolist() for v in of_gather.values] == [[6.0], [12.0], [18.0]]


@pytest.mark.parametrize(
    ("values", "op", "axis", "expected"),
    [
        (EVEN, "SUM", None, [6.0, 9.0]),
        (EVEN, "mean", None, [2.0, 3.0]),
        (EVEN, "SUM", 0, 15.0),
        (EVEN, "MEAN", -1, 2.5),
        (RAGGED, "SUM", 0, 3.0),
        (RAGGED, "MEAN", 0, 1.0),
        ([[], [], []], "SUM", 0, 0.0),
    ],
)
def test_reduce(three: replicant.MirroredStrategy, values, op: str, axis: int | None, expected) -> None:
    assert np.asarray(three.reduce(op, per_replica(values), axis=axis)).tolist() == expected


def test_reduce_of_mirrored_nested_and_plain_values(three: replicant.MirroredStrategy) -> None:
    same = replicant.Mirrored(jnp.asarray([1.0, 3.0]), num_replicas=3)
    assert three.reduce("SUM", {"a": same}, axis=None)["a"].tolist() == [3.0, 9.0]
    assert float(three.reduce("MEAN", same, axis=0)) == 2.0
    assert three.reduce("MEAN", 5.0) == 5.0
    assert float(three.reduce("SUM", np.asarray([1.0, 2.0]), axis=0)) == 9.0  # once per replica
    whole = three.reduce(
        "MEAN", replicant.PerReplica([np.asarray([1, 2], np.int32), np.asarray([3, 4], np.int32), np.asarray([5, 7], np.int32)])
    )
    assert whole.tolist() == [3.0, pytest.approx(13 / 3)]


def test_gather_even_ragged_and_empty(three: replicant.MirroredStrategy) -> None:
    assert three.gather(per_replica(EVEN), 0).tolist() == [0, 1, 2, 3, 4, 5]
    assert three.gather(per_replica(RAGGED), -1).tolist() == [0, 1, 2]
    assert three.gather(per_replica([[], [], []]), 0).tolist() == []
    matrix = replicant.PerReplica([np.full((2, k + 1), k) for k in range(3)])
    assert three.gather(matrix, 1).tolist() == [[0, 1, 1, 2, 2, 2]] * 2
    assert three.gather("plain", 0) == "plain"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s: s.reduce("MAX", per_replica(EVEN)), ArgumentError, "'MAX' is not a valid ReduceOp"),
        (lambda s: s.reduce("SUM", per_replica(RAGGED)), ArgumentError, r"equal shapes.*replica 0: \[2\].*Give an axis"),
        (lambda s: s.reduce("SUM", per_replica(EVEN), axis=1), ArgumentError, r"axis=1 is out of range.*rank 1.*\[-1, 1\)"),
        (lambda s: s.reduce("SUM", per_replica(EVEN), axis="0"), ArgumentTypeError, "axis must be an int"),
        (lambda s: s.reduce("SUM", 3.0), ArgumentError, "3.0 is ambiguous, because it is not a distributed value"),
        (
            lambda s: s.reduce("SUM", replicant.PerReplica([np.asarray([True])] * 3)),
            ArgumentTypeError,
            "cannot add values of dtype bool",
        ),
        (lambda s: s.reduce("SUM", replicant.PerReplica(["a", "b", "c"])), ArgumentTypeError, "takes numeric arrays"),
        (lambda s: s.gather(replicant.PerReplica([np.float32(1)] * 3), 0), ArgumentError, r"scalar \(rank 0\)"),
        (lambda s: s.gather(per_replica(EVEN), 2), ArgumentError, "axis=2 is out of range"),
        (lambda s: s.gather(replicant.PerReplica([np.asarray(["x"])] * 3), 0), ArgumentTypeError, "takes numeric arrays"),
        (
            lambda s: s.gather(replicant.PerReplica([np.ones((1, 2)), np.ones((1, 3)), np.ones((1, 2))]), 0),
            ArgumentError,
            r"except along axis 0.*replica 1: \[1, 3\]",
        ),
    ],
)
def test_misuse_of_reduce_and_gather(three: replicant.MirroredStrategy, call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(three)


@pytest.mark.parametrize(
    ("fn", "error", "message"),
    [
        (lambda c, _: c.all_reduce("MAX", jnp.ones(1)), ArgumentError, "'MAX' is not a valid ReduceOp"),
        (lambda c, _: c.all_reduce("SUM", 1.0), ArgumentTypeError, "got 1.0 of type float.*same on every replica"),
        (lambda c, _: c.all_reduce("SUM", jnp.asarray(True)), ArgumentTypeError, "cannot add values of dtype bool"),
        (lambda c, _: c.all_gather(jnp.asarray(1.0), 0), ArgumentError, r"scalar \(rank 0\)"),
        (lambda c, x: c.all_reduce("SUM", x), RaggedStepError, r"all_reduce needs equal shapes.*replica 0: float32\[2\]"),
        (
            lambda c, x: c.all_gather(jnp.ones((1, *x.shape)), 0),
            RaggedStepError,
            r"equal dtypes and \(except along axis 0\) shapes",
        ),
        (lambda c, x: c.all_reduce("SUM", jnp.ones(2)) if len(x) == 2 else x, RaggedStepError, "1 of 3 replicas wait"),
        (lambda _, x: {f"rows{len(x)}": x}, RaggedStepError, "results of different structures: replica 0"),
    ],
)
def test_misuse_inside_run(three: replicant.MirroredStrategy, fn, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        three.run(lambda x: fn(replicant.get_replica_context(), x), args=(per_replica(RAGGED),))


def test_an_exchange_inside_a_gradient(three: replicant.MirroredStrategy) -> None:
    weight = replicant.Variable(2.0)

    def fn(x):
        with replicant.GradientTape() as tape:
            loss = replicant.get_replica_context().all_reduce("SUM", jnp.sum(x) * weight)
        return tape.gradient(loss, weight)

    even = three.run(fn, args=(per_replica(EVEN),))
    assert [float(v) for v in even.values] == [3.0, 15.0, 27.0]
    ragged = three.run(fn, args=(per_replica(RAGGED),))
    assert [float(v) for v in ragged.values] == [3 * float(sum(x)) for x in RAGGED]


def test_variables_in_merge_call(three: replicant.MirroredStrategy) -> None:
    """merge_call speaks for all replicas: what it assigns is not combined again."""
    v = replicant.Variable(1.0, aggregation="SUM")
    own = replicant.Variable(0.0, synchronization="ON_READ", aggregation="SUM", name="own")

    def add_total(strategy, x):
        v.assign_add(strategy.reduce("SUM", x))

    three.run(lambda x: replicant.get_replica_context().merge_call(add_total, args=(jnp.sum(x),)), args=(per_replica(EVEN),))
    assert float(v) == 16.0
    with pytest.raises(ContextError, match=r"'own' with synchronization=ON_READ was called inside merge_call"):
        three.run(lambda: replicant.get_replica_context().merge_call(lambda _: own.assign(1.0)))


def test_an_exchange_that_only_some_replicas_would_enter_is_refused(three: replicant.MirroredStrategy) -> None:
    def fn(x):
        context = replicant.get_replica_context()
        return jax.lax.cond(jnp.sum(x) > 2, lambda: context.all_reduce("SUM", x), lambda: x)

    with pytest.raises(ContextError, match=r"inside a branch or loop \(cond\) whose condition differs between replicas"):
        three.run(fn, args=(per_replica(EVEN),))

    def agreed(x):
        context = replicant.get_replica_context()
        return jax.lax.cond(context.all_reduce("SUM", jnp.sum(x)) > 2, lambda: context.all_reduce("SUM", x), lambda: x)

    assert three.run(agreed, args=(per_replica(EVEN),)).values[0].tolist() == [6.0, 9.0]


def test_exchanges_inside_loops(three: replicant.MirroredStrategy) -> None:
    def fn(x):
        context = replicant.get_replica_context()
        return jax.lax.fori_loop(0, 2, lambda _, total: context.all_reduce("SUM", total), jnp.sum(x))

    assert [float(v) for v in three.run(fn, args=(per_replica(EVEN),)).values] == [45.0] * 3
    total = float(sum(map(sum, RAGGED)))
    assert [float(v) for v in three.run(fn, args=(per_replica(RAGGED),)).values] == [3 * total] * 3


def test_a_branch_in_a_loop_whose_condition_is_the_same_everywhere(three: replicant.MirroredStrategy) -> None:
    """As in a line search: what the loop carries decides, and is exchanged in each iteration."""

    def fn(x):
        def total(value):
            return replicant.get_replica_context().all_reduce("SUM", jnp.sum(x) * value)

        def body(carried):
            i, value = carried
            return i + 1, jax.lax.cond(value > 100, lambda value: value, total, value)

        return jax.lax.while_loop(lambda carried: carried[0] < 3, body, (0, jnp.ones(())))[1]

    assert float(three.run(fn, args=(per_replica(EVEN),)).value) == 225.0  # 15, 225, and then no more
    assert float(three.run(fn, args=(per_replica(RAGGED),)).value) == 27.0


class TotalOfRows(keras.layers.Layer):
    """Exchanges inside a Keras layer, once with a Python object that belongs to the replica."""

    def call(self, x):
        context = replicant.get_replica_context()
        total = context.all_reduce("SUM", jnp.sum(x))
        return context.merge_call(lambda strategy, values, add: strategy.reduce("SUM", values, axis=None) + add, args=(total, 1))


def careless(context, x):
    """A function that goes on after errors."""
    try:
        return context.all_reduce("SUM", jnp.sum(x))
    except Exception:  # noqa: BLE001 - what the test is about
        return -1.0


@pytest.mark.parametrize("values", [EVEN, RAGGED], ids=["even", "ragged"])
def test_an_exchange_in_a_layer_or_in_a_try_block(three: replicant.MirroredStrategy, values: list[list[float]]) -> None:
    """While the traces of uneven replicas wait for each other, neither Keras nor the function takes that for an error."""
    layer = TotalOfRows()

    def fn(x):
        return layer(x), careless(replicant.get_replica_context(), x)

    total = float(np.sum(np.concatenate([np.asarray(each) for each in values])))
    for run in (three.run, replicant.function(lambda fn, args: three.run(fn, args=args))):
        in_layer, caught = run(fn, args=(per_replica(values),))
        assert [float(x) for x in three.experimental_local_results(in_layer)] == [3 * total + 1] * 3
        assert [float(x) for x in three.experimental_local_results(caught)] == [total] * 3


def test_exchanges_inside_jitted_functions_work_for_all_sizes(three: replicant.MirroredStrategy) -> None:
    def fn(x):
        context = replicant.get_replica_context()
        return jax.jit(lambda total: context.all_reduce("SUM", total))(jnp.sum(x))

    assert [float(v) for v in three.run(fn, args=(per_replica(EVEN),)).values] == [15.0] * 3
    assert [float(v) for v in three.run(fn, args=(per_replica(RAGGED),)).values] == [3.0] * 3


def test_losses_are_those_of_one_replica(three: replicant.MirroredStrategy) -> None:
    with pytest.raises(ArgumentTypeError, match="takes the losses of one replica; got a PerReplica value"):
        replicant.compute_average_loss(per_replica(EVEN), global_batch_size=6)
