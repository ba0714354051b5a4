"""Variables in the branches and loops of JAX and Keras, against values worked out by hand, and one device."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant import GradientTape
from replicant.errors import ContextError

pytestmark = pytest.mark.both_ways


def everywhere(fn: Callable[[], Any], variables: list[Any], *, times: int = 1) -> tuple[Any, list[Any]]:
    """Call `fn` as a compiled function, and in two replicas, both from the same state. Return its result and the state after it."""
    before = [np.asarray(v.numpy()) for v in variables]
    found = []
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    for call in (replicant.function(fn), lambda: strategy.run(fn)):
        for v, value in zip(variables, before, strict=True):
            v.assign(value)
        for _ in range(times):
            result = call()
        leaves = [np.asarray(x).tolist() for x in jax.tree.leaves(result)]
        found.append((leaves, [np.asarray(v.numpy()).tolist() for v in variables]))
    assert found[0] == found[1]
    return found[0]


def test_gradient_accumulation_as_everybody_writes_it() -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = keras.Variable(np.ones(3, "float32"))
        optimizer = keras.optimizers.SGD(0.1)
        total = replicant.Variable(np.zeros(3, "float32"), synchronization="ON_READ", aggregation="SUM")
        count = replicant.Variable(0)

    def step(x: Any) -> None:
        with GradientTape() as tape:
            loss = (x @ w.value).sum() / 4
        total.assign_add(tape.gradient(loss, w))
        count.assign_add(1)

        def update() -> None:
            optimizer.apply_gradients([(total.value() / 2, w)])
            total.assign(jnp.zeros(3))

        keras.ops.cond(count.value() % 2 == 0, update, lambda: None)

    weights = []
    data = replicant.data.Dataset.from_tensor_slices(np.ones((16, 3), "float32")).batch(4)
    for batch in strategy.experimental_distribute_dataset(data):
        strategy.run(step, args=(batch,))
        weights.append(np.round(w.numpy()[0], 6).item())
    np.testing.assert_allclose(weights, [1.0, 0.9, 0.9, 0.8], rtol=1e-6)
    assert int(optimizer.iterations.numpy()) == 2


def test_a_branch_that_is_not_taken_changes_nothing() -> None:
    v, w = replicant.Variable(1.0), replicant.Variable(5.0)

    def fn() -> Any:
        def rises() -> Any:
            v.assign_add(1.0)
            return v.value()

        def falls() -> Any:
            w.assign_sub(1.0)
            return w.value()

        return jax.lax.cond(v.value() < 3.0, rises, falls), v.value() * 10.0 + w.value()

    assert everywhere(fn, [v, w], times=1) == ([2.0, 25.0], [2.0, 5.0])
    assert everywhere(fn, [v, w], times=4) == ([2.0, 32.0], [3.0, 2.0])


@pytest.mark.parametrize(("index", "expected"), [(0, [11.0, 5.0]), (1, [1.0, 50.0]), (2, [1.0, 5.0]), (7, [1.0, 5.0])])
def test_switch(index: int, expected: list[float]) -> None:
    v, w, i = replicant.Variable(1.0), replicant.Variable(5.0), replicant.Variable(index)

    def fn() -> None:
        branches = [lambda: v.assign_add(10.0), lambda: w.assign(w * 10.0), lambda: jnp.float32(0)]
        keras.ops.switch(i.value(), branches)

    assert everywhere(fn, [v, w, i])[1] == [*expected, index]


def test_all_forms_of_cond() -> None:
    v = replicant.Variable(0.0)

    def add(x: Any) -> Any:
        return v.assign_add(x)

    def fn() -> Any:
        jax.lax.cond(True, add, lambda x: x, 1.0)
        jax.lax.cond(pred=v > 0, true_fun=add, false_fun=lambda x: x, operand=10.0)
        jax.lax.cond(v > 0, 100.0, add, 5.0, lambda x: -x)  # as in old versions
        return jax.lax.cond(v > 200, add, false_fun=lambda x: add(2 * x), operand=1000.0)

    assert everywhere(fn, [v]) == ([2111.0], [2111.0])


def test_the_state_of_loops() -> None:  # noqa: C901 - one function for each loop
    """Fibonacci numbers in variables, by all loops."""
    a, b, n = replicant.Variable(0), replicant.Variable(1), replicant.Variable(0)

    def step() -> None:
        before = a.value()
        a.assign(b)
        b.assign_add(before)
        n.assign_add(1)

    def scanned() -> Any:
        def body(carry: Any, x: Any) -> Any:
            step()
            return carry + x, a.value()

        return jax.lax.scan(body, 0, jnp.arange(6))

    def counted() -> Any:
        def body(i: Any, carry: Any) -> Any:
            step()
            return carry + i

        return jax.lax.fori_loop(0, 6, body, 0)

    def until() -> Any:
        def body(carry: Any) -> Any:
            step()
            return carry + 1

        return jax.lax.while_loop(lambda carry: n.value() < 6, body, 0)

    def of_keras() -> Any:
        def body(i: Any) -> Any:
            step()
            return (i + 1,)

        return keras.ops.while_loop(lambda i: i < 6, body, (jnp.asarray(0),))

    def mapped() -> Any:
        def each(x: Any) -> Any:
            step()
            return a.value() * x

        return keras.ops.map(each, jnp.asarray([1, 1, 1, 10, 10, 10]))

    def limit() -> Any:
        return jax.lax.fori_loop(0, a.value() + 6, lambda i, c: (step(), c)[1], 0)

    state = [8, 13, 6]
    assert everywhere(scanned, [a, b, n]) == ([15, [1, 1, 2, 3, 5, 8]], state)
    a.assign(0), b.assign(1), n.assign(0)
    assert everywhere(counted, [a, b, n]) == ([15], state)
    a.assign(0), b.assign(1), n.assign(0)
    assert everywhere(until, [a, b, n]) == ([6], state)
    a.assign(0), b.assign(1), n.assign(0)
    assert everywhere(of_keras, [a, b, n]) == ([6], state)
    a.assign(0), b.assign(1), n.assign(0)
    assert everywhere(mapped, [a, b, n]) == ([[1, 1, 2, 30, 50, 80]], state)
    a.assign(0), b.assign(1), n.assign(0)
    assert everywhere(limit, [a, b, n]) == ([0], state)


def test_a_condition_that_changes_a_variable() -> None:
    tests, runs = replicant.Variable(0), replicant.Variable(0)

    def fn() -> Any:
        def test(i: Any) -> Any:
            tests.assign_add(1)
            return i < 3

        def body(i: Any) -> Any:
            runs.assign_add(tests)
            return i + 1

        return jax.lax.while_loop(test, body, 0)

    assert everywhere(fn, [tests, runs]) == ([3], [4, 6])


@pytest.mark.parametrize("length", [0, 1, 2])
def test_short_loops(length: int) -> None:
    v = replicant.Variable(1.0)

    def fn() -> None:
        jax.lax.fori_loop(0, length, lambda i, c: (v.assign(v * 3.0), c)[1], 0)
        jax.lax.while_loop(lambda i: i < length, lambda i: (v.assign_add(1.0), i + 1)[1], 0)

    assert everywhere(fn, [v])[1] == [[1.0, 4.0, 11.0][length]]


def test_nested() -> None:
    v, w, hidden = replicant.Variable(0), replicant.Variable(0), replicant.Variable(7)
    traces = []

    def fn() -> Any:
        def inner(j: Any, carry: Any) -> Any:
            traces.append(1)

            def odd() -> None:
                w.assign_add(v)

            jax.lax.cond((carry + j) % 2 == 1, odd, lambda: None)
            return carry

        def outer(i: Any, carry: Any) -> Any:
            v.assign_add(1)
            jax.lax.fori_loop(0, 3, inner, i)
            return carry + w.value()

        return jax.lax.cond(hidden > 3, lambda: jax.lax.fori_loop(0, 4, outer, 0), lambda: 0)

    expected_w, expected_v, total = 0, 0, 0
    for i in range(4):
        expected_v += 1
        for j in range(3):
            expected_w += expected_v if (i + j) % 2 else 0
        total += expected_w
    assert everywhere(fn, [v, w, hidden]) == ([total], [expected_v, expected_w, 7])
    assert len(traces) <= 2 * 5  # in two programs: the number of traces grows with the depth, and not as a power of it


def test_a_function_without_state_is_traced_once() -> None:
    weight, traces = replicant.Variable(2.0), []

    def fn() -> Any:
        def body(carry: Any, _: Any) -> Any:
            traces.append(1)
            return carry * weight, None

        return jax.lax.scan(body, jnp.float32(1), None, length=3)[0]

    assert float(replicant.function(fn)()) == 8.0
    assert len(traces) == 1


def test_programs_do_not_change_without_state() -> None:
    """What JAX makes of control flow that changes no variable is what it makes without a strategy."""
    weight = replicant.Variable(2.0)

    def compute(x: Any, w: Any) -> Any:
        x = jax.lax.cond(x > 0, lambda: x * w, lambda: -x)
        x = jax.lax.scan(lambda c, y: (c * w + y, c), x, jnp.arange(3.0))[0]
        return jax.lax.while_loop(lambda c: c < 100.0, lambda c: c * w, x)

    found: list[str] = []

    def fn(x: Any) -> Any:
        found.append(str(jax.make_jaxpr(compute)(x, weight.value())))
        return compute(x, weight.value())

    assert float(replicant.function(fn)(jnp.float32(1))) == 160.0
    assert found == [str(jax.make_jaxpr(compute)(jnp.float32(1), jnp.float32(2)))]


def test_layers_optimizers_metrics_and_seeds() -> None:
    """A whole training step in the branches of a cond, equal to the same steps in Python."""
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")

    def train(conditions: list[bool] | None) -> list[Any]:
        keras.utils.set_random_seed(3)
        strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
        with strategy.scope():
            model = keras.Sequential(
                [keras.layers.Dense(3, use_bias=False), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
            )
            model.build((None, 4))
            optimizer = keras.optimizers.Adam(0.1)
            optimizer.build(model.trainable_variables)
            metric = keras.metrics.Mean()
            generator = replicant.random.Generator.from_seed(4)

        def update(rows: Any) -> None:
            with GradientTape() as tape:
                loss = replicant.compute_average_loss(
                    (model(rows, training=True) ** 2).sum(1) + generator.uniform(()), global_batch_size=8
                )
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
            metric.update_state(loss)

        def step(rows: Any, condition: Any) -> None:
            keras.ops.cond(condition, lambda: update(rows), lambda: None)

        (batch,) = strategy.experimental_distribute_dataset(replicant.data.Dataset.from_tensor_slices(x).batch(8))
        for condition in conditions or [True, True]:
            if conditions is None:
                strategy.run(update, args=(batch,))
            else:
                strategy.run(step, args=(batch, jnp.asarray(condition)))
        return [*model.get_weights(), *[v.numpy() for v in optimizer.variables], metric.result(), generator.state.numpy()]

    for mine, theirs in zip(train([True, False, True, False]), train(None), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=1e-6)


def test_gradients_of_what_a_loop_carries() -> None:
    """As under TensorFlow's tape: of each value that was read, also in later iterations, and not through assignments."""
    v, w = replicant.Variable(2.0), replicant.Variable(1.0)

    def fn() -> Any:
        with GradientTape() as tape:

            def body(total: Any, x: Any) -> Any:
                total += v * x * w
                v.assign(v * v)
                return total + v, None

            total = jax.lax.scan(body, jnp.float32(0), jnp.asarray([1.0, 10.0]))[0]
        return total, tape.gradient(total, [v, w])

    # v is 2, 4 and 16: 2 + 4 + 40 + 16; by v: x and 1 for each read; by w: 2 * 1 + 4 * 10.
    assert everywhere(fn, [v, w]) == ([62.0, 13.0, 42.0], [16.0, 1.0])


def test_gradients_of_reads_before_in_and_after_a_loop() -> None:
    v = replicant.Variable(2.0)

    def fn() -> Any:
        with GradientTape() as tape:
            before = 100.0 * v

            def body(i: Any, total: Any) -> Any:
                total += v.value()
                v.assign_add(1.0)
                return total

            target = before + jax.lax.fori_loop(0, 3, body, jnp.float32(0)) + 1000.0 * v
        return target, tape.gradient(target, v)

    assert everywhere(fn, [v]) == ([200.0 + 9.0 + 5000.0, 1103.0], [5.0])


def test_gradients_of_what_a_branch_assigns() -> None:
    v, x = replicant.Variable(3.0), replicant.Variable(2.0)

    def fn() -> Any:
        with GradientTape() as tape:
            before = v * x

            def taken() -> Any:
                v.assign(x * 5.0)
                return v * v

            inside = jax.lax.cond(v > 0, taken, lambda: v * 7.0)
            target = before + inside + v * 100.0
        return target, tape.gradient(target, [v, x])

    # By v: 2 before, 2 * 10 inside, 100 after it. By x: 3 before; an assignment has no gradient.
    assert everywhere(fn, [v, x]) == ([6.0 + 100.0 + 1000.0, 122.0, 3.0], [10.0, 2.0])


def test_tapes_inside_and_at_both_depths() -> None:
    v = replicant.Variable(3.0)

    def fn() -> Any:
        with GradientTape() as outer:

            def body(carry: Any, _: Any) -> Any:
                with GradientTape() as inner:
                    loss = v * v
                gradient = inner.gradient(loss, v)
                v.assign_sub(0.5 * gradient)
                return carry + gradient + v, None

            total = jax.lax.scan(body, jnp.float32(0), None, length=2)[0]
        return total, outer.gradient(total, v)

    # The inner gradient is 6, then v is 0. By v: 2 of each inner gradient, and 1 of each read.
    assert everywhere(fn, [v]) == ([6.0, 6.0], [0.0])


def test_a_run_in_a_branch_of_a_function() -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        mirrored = replicant.Variable(1.0, aggregation="MEAN")
        copies = replicant.Variable(0.0, synchronization="ON_READ", aggregation="SUM")

    def replica() -> None:
        rank = replicant.get_replica_context().replica_id_in_sync_group
        mirrored.assign_add(rank.astype("float32"))
        copies.assign_add(rank + 1.0)

    @replicant.function
    def fn(n: Any) -> Any:
        def body(i: Any, carry: Any) -> Any:
            jax.lax.cond(i % 2 == 0, lambda: strategy.run(replica), lambda: None)
            return carry + mirrored

        return jax.lax.fori_loop(0, n, body, jnp.float32(0))

    assert float(fn(jnp.asarray(4))) == 1.5 + 1.5 + 2.0 + 2.0
    assert (float(mirrored), float(copies)) == (2.0, 6.0)


def test_equal_conditions_may_exchange_and_others_may_not() -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        v = replicant.Variable(0.0, aggregation="SUM")
        own = replicant.Variable(0.0, synchronization="ON_READ", aggregation="SUM")

    def step(condition_of: Callable[[Any], Any]) -> None:
        rank = replicant.get_replica_context().replica_id_in_sync_group
        jax.lax.cond(condition_of(rank), lambda: v.assign_add(rank + 1.0), v.value)

    strategy.run(step, args=(lambda _: v.value() == 0,))
    assert float(v) == 3.0
    with pytest.raises(ContextError, match=r"is inside a branch or loop \(cond\) whose condition differs between replicas"):
        strategy.run(step, args=(lambda rank: rank == 0,))
    assert float(v) == 3.0

    def alone() -> None:
        rank = replicant.get_replica_context().replica_id_in_sync_group
        jax.lax.cond(rank == 0, lambda: own.assign_add(10.0), own.value)

    strategy.run(alone)
    assert float(own) == 10.0


def test_where_a_loop_turns_out_to_change_what_a_constant_was() -> None:
    """A number in the code that assigns does not change the dtype that the loop carries."""
    v = replicant.Variable(jnp.asarray(1, jnp.bfloat16))

    def fn() -> None:
        jax.lax.fori_loop(0, 2, lambda i, c: (v.assign(2), v.assign_add(0.5), c)[2], 0.0)

    assert everywhere(fn, [v])[1] == [2.5]


def test_an_error_in_a_branch_leaves_no_trace() -> None:
    v = replicant.Variable(1.0)

    def fails() -> Any:
        v.assign(5.0)
        raise ValueError("mine")

    @replicant.function
    def fn() -> Any:
        try:
            jax.lax.cond(v > 0, fails, v.value)
        except ValueError:
            v.assign_add(1.0)
        return v.value()

    assert (float(fn()), float(v)) == (2.0, 2.0)
